"""What a card says in words, for a reader without mathematics."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.combination import COMBINED
from torchdpcate.release.statement import PrivacyStatement

_IN_WORDS = {
    Level.CERTIFIED: "a proof covers what the program computed, with public constants",
    Level.CONDITIONAL: "the proof rests on the conditions listed here; the program could not check all of them",
    Level.HEURISTIC: "there is no proof; for research only",
}
_FAILS = "a condition listed here was checked and fails: nothing is claimed"
_ALONE = "this is true of this release alone; what else is published from the same records adds up"
_FALSE_ALARMS = 0.05
_FACTOR_LIMIT = 1e6  # beyond it the factor says nothing any more


def level_in_words(privacy: PrivacyStatement) -> str:
    """Say what the level rests on, or that a condition of it is known to fail."""
    fails = any(condition["holds"] is False for condition in privacy.conditions)
    level = Level(privacy.level)
    return _FAILS if fails and level == Level.CONDITIONAL else _IN_WORDS[level]


def composition_in_words(privacy: PrivacyStatement) -> str:
    """Say how the costs of blocks and charges make the whole."""
    if len(privacy.blocks) == 1:
        return "All charges are on the same records, sequential and adaptive, so that their costs add up"
    return (
        "Parallel over disjoint blocks of records, sequential and adaptive within a block: each record lies in one "
        "block, so that the whole costs the largest of the blocks"
    )


def split_in_words(privacy: PrivacyStatement) -> str:
    """Say which records came into which block."""
    if len(privacy.blocks) == 1:
        return "all records are in one block"
    if privacy.mechanism == COMBINED:
        return "each site has blocks of its own, by its name"
    order = "drawn from the system's entropy and kept nowhere"
    if not privacy.private_noise:
        order = "drawn by the fixed seed of its noise, which a test requests and which protects nobody"
    return (
        f"the records are put into a secret order, {order}; positions in that order, and no values, say which block a "
        "record is in, by the public seed"
    )


def describe(privacy: PrivacyStatement) -> str:
    """Say the guarantee in words, with what it allows the best attacker.

    A test that distinguishes two neighbouring data sets with false alarms alpha detects at most
    min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - alpha - delta)) (Kairouz, Oh & Viswanath 2015).
    """
    if privacy.epsilon is None or privacy.delta is None:
        return _no_claim(privacy)
    condition = "If the conditions hold: " if privacy.level == Level.CONDITIONAL else ""
    factor = math.exp(min(privacy.epsilon, 100.0))
    times = f"{factor:.3g} times" if factor < _FACTOR_LIMIT else "more than a million times"
    chance = f", apart from a chance of 1 in {1 / privacy.delta:,.0f}" if privacy.delta else ""
    who, place, it = ("person", "their", "them") if privacy.person else ("record", "its", "it")
    detected = 100 * most_detected(privacy.epsilon, privacy.delta, _FALSE_ALARMS)
    return (
        f"{condition}Whatever is concluded from this release is at most {times} as likely with a given {who} as with "
        f"any other {who} in {place} place{chance}: {_ALONE}. An attacker who knows everything else, and may be wrong "
        f"in 5 of 100 cases without the {who}, finds the {who} in at most {detected:.3g} of 100 cases with {it}."
    )


def most_detected(epsilon: float, delta: float, false_alarms: float) -> float:
    """Largest rate at which any test of the given false-alarm rate detects a neighbour.

    Example:
        >>> round(most_detected(1.0, 0.0, 0.05), 4)
        0.1359
    """
    near = math.exp(min(epsilon, 100.0)) * false_alarms + delta
    return max(0.0, min(near, 1 - math.exp(-epsilon) * (1 - false_alarms - delta), 1.0))


def _no_claim(privacy: PrivacyStatement) -> str:
    reason = "a condition of its proof is known to fail"
    if not privacy.private_noise:
        reason = "the noise had a fixed seed, and who knows the seed can take the noise off again"
    elif privacy.level == Level.HEURISTIC:
        reason = "there is no proof for it, or for an earlier release from the same records"
    return f"No privacy guarantee: {reason}. Handle the release as confidentially as the records themselves."


def summary_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return name and value of each entry of a release's summary, in words for people.

    Of a list of mappings it is each one's words in a line.

    Example:
        >>> list(summary_rows({"cells": [{"cell": "sex = f", "estimate": 0.25, "low": 0.125}], "interval_level": 0.9}))
        [('sex = f', 'estimate 0.25, low 0.125'), ('interval level', 0.9)]
    """
    for name, value in summary.items():
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            for entry in value:
                (_, title), *rest = entry.items()
                yield str(title), ", ".join(f"{_shown(key)} {_number(found)}" for key, found in rest)
        else:
            yield _shown(name), "none" if value is None else value


def _shown(name: str) -> str:
    return name.replace("_", " ")


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_number, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
