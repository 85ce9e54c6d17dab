"""What a card says in words: for a reader without mathematics, and in the registry's fields."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchdpcate.data.words import outcome_words
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.combination import COMBINED
from torchdpcate.release.display import subject
from torchdpcate.release.release import Release
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.verify.statement import SHARED

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


_OUTSIDE = {
    "refuse": "Values outside the public bounds are refused or moved to them, record by record.",
    "clip": "Covariates outside the public bounds are moved to them, of records and queries alike; so are outcomes.",
}


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


def own_words(release: Release) -> dict[str, Any]:
    """Return what a release knows of itself, by the keys of ``registry.FIELDS``."""
    privacy, schema = release.privacy, release.schema
    outcome = f"{outcome_words(schema)} in [{schema.domain.outcome_low:g}, {schema.domain.outcome_high:g}]"
    return {
        "basic.description": (subject(release) + f" ({privacy.public.get('learner', 'two-stage learner')})."),
        "basic.data_product_type": release.product,
        "dp_variant.variant_name": _variant(privacy),
        "dp_variant.data_domain": (
            f"Tables of {privacy.n} records: treatment {schema.treatment} in {_arms(release)}, outcome {outcome}, "
            f"{len(schema.covariates)} covariates within public bounds."
        ),
        "dp_variant.unprotected_quantities": _sentence(
            "Public by assumption: the number of records and of each block, bounds, overlap, split and its seed, "
            "queries and settings. Not protected",
            privacy.not_protected,
        ),
        "privacy_loss.privacy_unit": privacy.protected.name,
        "privacy_loss.privacy_unit_details": (
            f"Adjacent data sets: {privacy.adjacency}. Unit: {privacy.unit}. The distance of two data sets of one size "
            f"is the number of {'persons in whom' if privacy.person else 'positions at which'} they differ; adjacent "
            "ones are at most 1 apart."
        ),
        "privacy_loss.number_of_privacy_units": privacy.n // privacy.protected.records,
        **_parameters(privacy),
        "deployment_model.model_name": "Central",
        "deployment_model.model_name_details": "The curator holds the records and adds the noise before publishing.",
        "deployment_model.trust_assumptions": (
            "Data subjects trust the curator with the records, and to publish the release folder alone. Readers need "
            "not be trusted, whatever else they know and however they join forces."
        ),
        "deployment_model.actors": "Data subjects; the curator, who holds the records; readers, who hold the release.",
        **_use_of_the_records(privacy),
        "deployment_model.access_type": "Non-interactive",
        "deployment_model.access_type_details": "The file answers by itself; no question ever reaches the records.",
        "implementation.preprocessing_and_hyperparameter_tuning": (
            f"{_OUTSIDE[schema.out_of_bounds]} "
            + _sentence("Tuning", [str(privacy.tuning.get("text", "not recorded"))])
        ),
        "implementation.mechanisms": _mechanisms(privacy),
        "implementation.composition": f"{composition_in_words(privacy)}; see the event tree.",
        "implementation.post_processing": release.reading,
        "administrative.status": "Draft",
    }


def _arms(release: Release) -> str:
    """Write the labels of the arms, with the categories they stand for."""
    schema = release.schema
    named = dict(zip(schema.actions, schema.arms, strict=False))
    labels = getattr(release, "actions", schema.actions)  # a choice of a policy may have its own
    return f"{{{', '.join(f'{label} ({named[label]})' if label in named else str(label) for label in labels)}}}"


def _of_a_sweep(privacy: PrivacyStatement) -> bool:
    """Whether other runs, an unknown number, used the same records."""
    return "runs" in privacy.tuning and privacy.tuning["runs"] is None


def _use_of_the_records(privacy: PrivacyStatement) -> dict[str, str | None]:
    """Say which release of the run this is, and of the records where a shared ledger knows.

    Where nothing is claimed a charge has no count and is one.
    """
    own = [c.charge for c in privacy.charges if c.purpose is Purpose.RELEASE and c.count != 0]
    # what is charged in parts is one release
    releases = sum(not charge.part for charge in own) + len({charge.mechanism for charge in own if charge.part})
    shared = re.fullmatch(SHARED, str(privacy.tuning.get("text")))
    which = f"Release {max(releases, 1)} of this run; nothing is known of other runs on the same records"
    used = "by the releases of the event tree, and by whatever else was fitted to it"
    if privacy.mechanism == COMBINED:
        which, used = "One combination of the releases of several sites", "by its own site's releases, one table a site"
    if shared is not None:
        number = "" if releases < 2 else f" (number {releases} of its run)"
        which = f"Release {shared[1]} of these records by their shared ledger{number}; in all {shared[2]} spent"
        used = "by every run of that ledger"
    elif _of_a_sweep(privacy):
        which = f"Release {max(releases, 1)} of this run, one of the runs of a sweep over the same records"
        used = "by every run of a sweep"
    several = releases > 1 or _of_a_sweep(privacy) or (shared is not None and int(shared[1]) > 1)
    key = "deployment_model"
    return {
        f"{key}.release_type": "Many releases" if several else None,  # whether others were made the curator knows
        f"{key}.release_type_details": f"{which}; what else is published from them adds up.",
        f"{key}.data_source_type": "Static",
        f"{key}.data_source_type_details": f"One table, used {used}.",
    }


def _variant(privacy: PrivacyStatement) -> str | None:
    if not privacy.claims:
        return None
    return "Approximate DP" if privacy.delta else "Pure DP"


def _parameters(privacy: PrivacyStatement) -> Mapping[str, Any]:
    key = "privacy_loss.privacy_parameters"
    if not privacy.claims:
        return {f"{key}_details": "None: no privacy guarantee is claimed."}
    pure = {} if not privacy.delta else {"delta": privacy.delta}
    details = f"Level {privacy.level}: {level_in_words(privacy)}. {composition_in_words(privacy)}."
    if privacy.person:
        details += f" By person, who has {privacy.protected.records} of the records; blocks state costs by record."
    return {key: {"epsilon": privacy.epsilon, **pure}, f"{key}_details": details}


def _mechanisms(privacy: PrivacyStatement) -> str:
    labels = [charge.words for charge in privacy.charges]
    libraries = ", ".join(f"{name} {number}" for name, number in privacy.versions.items())
    scale = f" Noise of {privacy.mechanism}: {privacy.formula}." if privacy.claims else ""
    safety = _sentence(" Assumed", privacy.assumptions) if privacy.assumptions else ""
    return f"{'; '.join(labels)}.{scale} Libraries: {libraries}.{safety} Timing is outside the guarantee."


def _sentence(start: str, texts: list[str]) -> str:
    return f"{start}: {'; '.join(texts)}."
