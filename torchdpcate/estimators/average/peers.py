"""What the peers of covariate balancing release: numbers, their noise, and the estimate that follows from them."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.estimators.average.balanced_difference import SUMS
from torchdpcate.estimators.average.effect_estimator import WEIGHT_RANGES, EffectFacts, with_stated_ranges
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.outcome_table import EQUAL, TABLE_CONSTANTS, OutcomeTable
from torchdpcate.estimators.average.stated import (
    AverageMechanism,
    ContradictionError,
    Recomputed,
    StatedEffect,
    exactly,
    states,
)
from torchdpcate.estimators.average.sum_and_squares import most_deviations, sums_mechanism
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism


class DifferenceInMeans(AverageMechanism):
    """An outcome table of records that weigh the same."""

    name: ClassVar[str] = "difference_in_means"
    formula: ClassVar[str] = (
        "root-polytope noise of radius 1/epsilon on the outcomes' table, then Laplace noise on the variance; "
        "covariate_balancing sections 3.3 and 5"
    )
    numbers: ClassVar[Mapping[str, str]] = OutcomeTable.numbers
    states: ClassVar[Stated] = states(*TABLE_CONSTANTS)
    rests_on: ClassVar[str] = (
        "treatment was randomised with one probability for everybody; where it was not, the estimate is biased and the "
        "interval may never hold the effect"
    )

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        return OutcomeTable.of_numbers(stated, EffectFacts(stated.n, EQUAL))


def sum_unit(facts: EffectFacts) -> Tensor:
    """Return what one record moves the sum by, [runs], at released coefficients where there are any."""
    # terms are rounded so that sums are exact, each by half a step
    return facts.weight_bounds.sum(-1) + sum_grid(facts.n, facts.estimand.largest)


def sum_estimate(total: Tensor, n: int, scale: float | Tensor) -> NoisyEstimate:
    """Return the estimate, without an interval: nothing is released of how much sampling moves the sum."""
    return NoisyEstimate.of_mean(total, n, torch.full_like(total, math.inf), scale, {"sum": total})


class HorvitzThompson(AverageMechanism):
    """One sum over weighted outcomes, which the number of records divides."""

    name: ClassVar[str] = "horvitz_thompson"
    formula: ClassVar[str] = (
        "Laplace noise of scale 2 (W_1 + W_0)/epsilon on the Horvitz-Thompson sum, W_z the largest weight of arm z at "
        "the released propensity, which is by objective perturbation with epsilon/2; covariate_balancing section 5"
    )
    numbers: ClassVar[Mapping[str, str]] = {"sum": "sum"}
    states: ClassVar[Stated] = states("epsilon_weights", "epsilon_sum", "sum_scale", *WEIGHT_RANGES, fits=("weights",))
    rests_on: ClassVar[str] = (
        "the log-odds of treatment are linear in the covariates; where they are not, the estimate is biased"
    )
    intervals: ClassVar[bool] = False

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        n, of = stated.n, stated.estimand
        if not of.public_size:
            raise ContradictionError(f"a Horvitz-Thompson estimate is none of the {of.name}")
        facts = with_stated_ranges(stated, EffectFacts(n, of), WEIGHT_RANGES)
        scale = sum_unit(facts).item() * LaplaceMechanism(stated.epsilon("sum"), 1.0).released_scale(1)
        found = sum_estimate(stated.sums()["sum"], n, scale)
        return Recomputed(found, exactly({"sum_scale": scale}), {"sum": (n * of.largest, scale)})


def mean_estimate(total: Tensor, squares: Tensor, groups: int, scale: float) -> NoisyEstimate:
    """Return the estimate from the sums [runs] of estimates, with noise of this scale, and of their squares."""
    variance = (most_deviations(total, squares, groups, scale) / (groups * (groups - 1))).clamp_max(1 / groups)
    return NoisyEstimate.of_mean(total, groups, variance.sqrt(), scale, {"sum": total, "spread": squares})


class SubsampleAggregate(AverageMechanism):
    """The sum of the groups' estimates, and of their squares."""

    name: ClassVar[str] = "subsample_aggregate"
    formula: ClassVar[str] = (
        "Laplace noise of scale 2/epsilon on the sum of M group estimates, and of scale 4/epsilon on that of their "
        "squares, as one event; docs/guarantees/subsample_aggregate.md"
    )
    numbers: ClassVar[Mapping[str, str]] = {"sum": SUMS, "spread": SUMS}
    states: ClassVar[Stated] = states("groups", "ridge", "seed", f"epsilon_{SUMS}", "sum_scale")
    rests_on: ClassVar[str] = (
        "the log-odds of treatment are linear in the covariates, and groups are so large that their bias is small; the "
        "interval counts neither"
    )

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        groups = stated.public["groups"]
        if isinstance(groups, bool) or not isinstance(groups, int) or not 2 <= groups <= stated.n:
            raise ContradictionError(f"{groups} groups cannot be made of its records")
        sums, scale = stated.sums(), sums_mechanism(groups, stated.epsilon(SUMS)).released_scale(2)
        found = mean_estimate(sums["sum"], sums["spread"], groups, scale)
        reaches = {"sum": (float(groups), scale), "spread": (float(groups), 2 * scale)}
        return Recomputed(found, exactly({"sum_scale": scale}), reaches)
