"""What the peers of covariate balancing release: numbers, their noise, and the estimate that follows from them."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.balanced_difference import UPPER
from torchdpcate.estimators.average.effect_estimator import EffectFacts
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
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism

GROUP_RANGE = 2.0
"""Of the estimate of a group, for outcomes in [0, 1]."""


class DifferenceInMeans(AverageMechanism):
    """An outcome table of records that weigh the same."""

    name: ClassVar[str] = "difference_in_means"
    formula: ClassVar[str] = (
        "root-polytope noise of radius 1/epsilon on the outcomes' table, then Laplace noise on the variance; "
        "covariate_balancing sections 3.3 and 5"
    )
    numbers: ClassVar[Mapping[str, str]] = OutcomeTable.numbers
    states: ClassVar[Stated] = states(*TABLE_CONSTANTS)

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        return OutcomeTable.of_numbers(stated, EffectFacts(stated.n, EQUAL))


def sum_mechanism(n: int, estimand: Estimand, epsilon: float) -> LaplaceMechanism:
    """Return the noise of the sum over n records."""
    # terms are rounded so that sums are exact, each by half a step
    return LaplaceMechanism(epsilon, estimand.most_treated + estimand.most_control + sum_grid(n, estimand.largest))


def sum_estimate(total: Tensor, n: int, scale: float) -> NoisyEstimate:
    """Return the estimate, without an interval: nothing is released of how much sampling moves the sum."""
    return NoisyEstimate.of_mean(total, n, torch.full_like(total, math.inf), scale, {"sum": total})


class HorvitzThompson(AverageMechanism):
    """One sum over weighted outcomes, which the number of records divides."""

    name: ClassVar[str] = "horvitz_thompson"
    formula: ClassVar[str] = (
        "Laplace noise of scale 4/(eta epsilon) on the Horvitz-Thompson sum, after a propensity by objective "
        "perturbation with epsilon/2; covariate_balancing section 5"
    )
    numbers: ClassVar[Mapping[str, str]] = {"sum": "sum"}
    states: ClassVar[Stated] = states("epsilon_weights", "epsilon_sum", "sum_scale", fits=("weights",))
    intervals: ClassVar[bool] = False

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        n, of = stated.n, stated.estimand
        if not of.public_size:
            raise ContradictionError(f"a Horvitz-Thompson estimate is none of the {of.name}")
        scale = sum_mechanism(n, of, stated.epsilon("sum")).released_scale(1)
        found = sum_estimate(stated.sums()["sum"], n, scale)
        return Recomputed(found, exactly({"sum_scale": scale}), {"sum": (n * of.largest, scale)})


def sum_mechanisms(groups: int, total: float, squares: float) -> tuple[LaplaceMechanism, LaplaceMechanism]:
    """Return the noise of the sum of the groups' estimates and of their squared deviations, at an epsilon for each."""
    # sums are exact; one estimate moves the mean, and with it the rounding of every squared deviation
    moved = GROUP_RANGE**2 * (1 - 1 / groups) + 2 * groups * sum_grid(groups, GROUP_RANGE**2)
    return LaplaceMechanism(total, GROUP_RANGE), LaplaceMechanism(squares, moved)


def mean_estimate(
    total: Tensor, squares: Tensor, groups: int, noise_total: float, noise_squares: float
) -> NoisyEstimate:
    """Return the estimate from sums [runs] with noise of these scales."""
    variance = ((squares + UPPER * noise_squares) / (groups * (groups - 1))).clamp(0, 1 / groups)
    return NoisyEstimate.of_mean(total, groups, variance.sqrt(), noise_total, {"sum": total, "spread": squares})


class SubsampleAggregate(AverageMechanism):
    """The sum of the groups' estimates, and of their squared deviations."""

    name: ClassVar[str] = "subsample_aggregate"
    formula: ClassVar[str] = (
        "Laplace noise of scale 4/epsilon on the sum of M group estimates, and of scale 8(1-1/M)/epsilon on their "
        "squared deviations; covariate_balancing section 5"
    )
    numbers: ClassVar[Mapping[str, str]] = {"sum": "sum", "spread": "spread"}
    states: ClassVar[Stated] = states(
        "groups", "ridge", "seed", *(f"epsilon_{part}" for part in numbers), *(f"{part}_scale" for part in numbers)
    )

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        groups = stated.public["groups"]
        if isinstance(groups, bool) or not isinstance(groups, int) or not 2 <= groups <= stated.n:
            raise ContradictionError(f"{groups} groups cannot be made of its records")
        mechanisms = sum_mechanisms(groups, *(stated.epsilon(part) for part in cls.numbers))
        scales = {part: noise.released_scale(1) for part, noise in zip(cls.numbers, mechanisms, strict=True)}
        sums = stated.sums()
        found = mean_estimate(sums["sum"], sums["spread"], groups, *scales.values())
        largest = {"sum": groups * GROUP_RANGE / 2, "spread": groups * GROUP_RANGE**2}
        reaches = {part: (largest[part], scale) for part, scale in scales.items()}
        return Recomputed(found, exactly({f"{part}_scale": scale for part, scale in scales.items()}), reaches)
