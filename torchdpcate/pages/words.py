"""What a release found, in plain words for its readers."""

from typing import Any

import torch
from torch import Tensor

from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.release import EffectRelease, QueryRelease, Release
from torchdpcate.release.rule import DecisionRelease, PolicyRelease
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

_ABOUT = {
    "ATE": "everybody",
    "ATT": "those who were treated",
    "ATC": "those who were not treated",
    "ATO": "those who might have got either",
}
_MIDDLE = 0.9  # of a population: where its effects lie


def findings(release: Release, reference: Tensor) -> list[str]:
    """Return what a release says, one sentence each, the most important first.

    Args:
        release: Any release.
        reference: Encoded rows of the public population that shares and ranges are about, [k, q].
    """
    if isinstance(release, AverageEffectRelease):
        return _average(release)
    if isinstance(release, SubgroupRelease):
        return _subgroups(release)
    if isinstance(release, EffectRelease):
        return _effects(release, reference)
    return _decisions(release, reference)


def number(value: float) -> str:
    """Return a number with its sign, to three figures.

    Example:
        >>> number(0.04261), number(-1234567.0), number(0.0)
        ('+0.0426', '−1.23e+06', '0')
    """
    return "0" if value == 0 else f"{value:+.3g}".replace("-", "\N{MINUS SIGN}", 1)


def ends(low: float, high: float) -> str:
    """Return an interval's ends in words."""
    return f"{LEVEL:.0%} interval {number(low)} to {number(high)}"


def _average(release: AverageEffectRelease) -> list[str]:
    treatment, outcome, main = release.schema.treatment, release.schema.outcome, release.main
    about = _ABOUT[release.estimand]
    said = f"Among {about}, {treatment} changes {outcome} by {number(release.estimate)} on average"
    if main.law is None and not main.noise_dominated:
        return [f"{said}; no interval is known for this estimate."]
    low, high = release.interval()
    if main.noise_dominated:
        return [f"{said}, but noise dominates this estimate: any effect from {number(low)} to {number(high)} fits."]
    zero = "It holds zero: the records do not show whether there is an effect." if low <= 0 <= high else ""
    return [f"{said} ({ends(low, high)}).", *([zero] if zero else [])]


def _subgroups(release: SubgroupRelease) -> list[str]:
    table, (low, high) = release.table(), release.interval(simultaneous=True).T
    known = ~release.effects.noise_dominated.numpy()
    found = []
    if known.any():
        best = table[known].sort_values("estimate", kind="stable").iloc[-1]
        found.append(
            f"The largest estimated effect of {release.schema.treatment} on {release.schema.outcome} is "
            f"{number(best['estimate'])}, where {best['cell']} ({ends(best['low'], best['high'])})."
        )
    clear = int(((low > 0) | (high < 0)).sum())
    found.append(f"In {clear} of {len(table)} subgroups the interval that counts all of them at once leaves zero out.")
    if not known.all():
        found.append(f"In {int((~known).sum())} subgroups noise dominates: nothing is known of them.")
    return found


def _effects(release: EffectRelease, reference: Tensor) -> list[str]:
    treatment, outcome = release.schema.treatment, release.schema.outcome
    if isinstance(release, QueryRelease):
        low, high = release.answers.min().item(), release.answers.max().item()
        return [
            f"At its {len(release.answers)} public queries, the effect of {treatment} on {outcome} is estimated to lie "
            f"between {number(low)} and {number(high)}."
        ]
    effects = release.effect_tensor(reference)
    found = []
    if isinstance(release, ComposedRelease):
        said = f"On average, {treatment} changes {outcome} by {number(release.average_effect)}"
        found.append(f"{said} ({ends(*release.average())})." if release.law is not None else f"{said}.")
        if release.rung == "constant":
            return [*found, "That is one number for everybody: so many records and this budget carry no more."]
    else:
        found.append(
            f"Over the reference population, {treatment} changes {outcome} by {number(effects.mean().item())}."
        )
    edges = effects.new_tensor([(1 - _MIDDLE) / 2, (1 + _MIDDLE) / 2])
    low, high = effects.quantile(edges).tolist()
    found.append(
        f"For the middle {_MIDDLE:.0%} of the reference population the effect lies between {number(low)} and "
        f"{number(high)}; it is above zero for {_share(effects > 0)}."
    )
    return found


def _decisions(release: Release, reference: Tensor) -> list[str]:
    treatment, outcome = release.schema.treatment, release.schema.outcome
    answers = release.answer(reference)
    if isinstance(release, PolicyRelease):
        shares = "; ".join(f"{treatment} = {a} for {_share(answers == a)}" for a in release.actions)
        return [
            f"The policy chosen from a public library is: {release.name}.",
            f"Of the reference population: {shares}.",
        ]
    assert isinstance(release, DecisionRelease)
    if isinstance(release, ComposedRule) and release.constant is not None:
        who = "everybody" if release.constant else "nobody"
        return [
            f"To make {outcome} large, the rule gives {treatment} to {who}: so many records and this budget carry "
            "no more."
        ]
    return [
        f"To make {outcome} large, the rule gives {treatment} to {_share(answers > 0)} of the reference population."
    ]


def _share(chosen: Any) -> str:
    return f"{torch.as_tensor(chosen).double().mean().item():.0%}"
