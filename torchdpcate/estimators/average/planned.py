"""The noise to expect in an average effect: what its mechanism would add to the sums of typical records."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from torchdpcate.estimators.average.effect_estimator import (
    EffectEstimator,
    EffectFacts,
    ReleasedRanges,
    Total,
    Weighted,
)
from torchdpcate.estimators.planned_noise import TYPICAL_RESIDUAL

HALF = 0.5
"""Share of the treated that plans expect where no propensity is known."""
TYPICAL_EFFECT = 0.25
"""Effect that plans expect, in outcome ranges, where noise in a denominator shows as far as there is one."""


def with_typical_ranges(facts: EffectFacts, reach: float) -> EffectFacts:
    """Return the facts with the ranges of weights that typical coefficients leave; those of a release are narrower.

    Args:
        facts: Public facts, before there are coefficients.
        reach: Least propensity that coefficients are expected to have over the domain.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> facts = with_typical_ranges(EffectFacts(100, ATE(0.01), 0.3, 0.7), reach=0.25)
        >>> [round(end, 9) for end in facts.ranges.stated["treated_weights"]]
        [1.333333333, 4.0]
    """
    reach = max(reach, facts.estimand.overlap)
    ends = torch.tensor([reach, 1 - reach], dtype=torch.float64)
    treated, control = (facts.estimand.at(ends, torch.full_like(ends, z)).sort().values for z in (1.0, 0.0))
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (facts.low, facts.high))
    ranges = ReleasedRanges((treated[:1], treated[1:]), (control[:1], control[1:]), (low, high))
    return replace(facts, ranges=ranges)


def typical_records(facts: EffectFacts, treated: float = HALF) -> Total:
    """Return what sums over n typical records: half of them treated, outcomes a quarter of their range off the middle.

    Args:
        facts: Public facts.
        treated: Share of the treated, and everybody's propensity.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> total = typical_records(EffectFacts(100, ATE(0.1)))
        >>> total(lambda batch: batch.w.sum(-1, keepdim=True)).item()
        200.0
    """
    sides = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    e = torch.full_like(sides, min(max(treated, facts.estimand.overlap), 1 - facts.estimand.overlap))

    def arm(z: float) -> Weighted:
        every, y = torch.full_like(sides, z), HALF + TYPICAL_RESIDUAL * sides + TYPICAL_EFFECT * (z - HALF)
        return Weighted(every[None], y[None], facts.estimand.at(e, every)[None], torch.full_like(every, HALF)[None])

    arms = [(arm(1.0), treated), (arm(0.0), 1 - treated)]
    half = facts.n / len(sides)
    return lambda terms: torch.stack([terms(batch) * (share * half) for batch, share in arms]).sum(0)


def planned_sums(
    estimator: EffectEstimator, facts: EffectFacts, epsilons: Mapping[str, float], treated: float
) -> float | None:
    """Return the standard deviation that noise in the sums gives an estimate of outcomes in [0, 1]; None if not known.

    Args:
        estimator: Of sums over weighted records.
        facts: Public facts.
        epsilons: Of each of its parts.
        treated: Share of the treated.
    """
    found = estimator.planned(typical_records(facts, treated), facts, epsilons)
    if found is None:
        return None
    # a denominator that noise dominates still is at least what public weights make it, where there is such a bound
    bounded = estimator.centred and facts.estimand.size_range[0] > 0
    return math.inf if bool(found.noise_dominated[0]) and not bounded else found.noise[0].item()
