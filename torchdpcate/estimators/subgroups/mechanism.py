"""What releases effects in subgroups: the sums of all cells with noise, charged once."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.estimators.mechanism import Prepared, ReleaseMechanism, Stated
from torchdpcate.estimators.subgroups.plan import SubgroupPlan
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.cell_effects import NUMBERS
from torchdpcate.release.holds_if import HOLDS_IF
from torchdpcate.release.release import Release
from torchdpcate.release.subgroups import SubgroupRelease

CONSTANTS = (
    *("learner", "law", "released", "partitions", "cells", "strata", "sensitivity", "scale"),
    *("weights", "estimand", "weight_control", "weight_treated"),
)
"""Public constants of every release."""
STEPS = ("kept", "steps", "huber_quantile", "steps_epsilon", "steps_delta", "constants")
"""Further ones where scores are summed: what the plan of their composition is made of."""


class SubgroupSums:
    r"""Three sums over the records of each cell and arm, with Laplace or Gaussian noise, in one charge.

    A record adds three numbers to one cell and arm of each partition: not negative and 1 in all, for Laplace noise;
    1, u and 1 - u^2, for Gaussian noise, u being its outcome in [-1, 1]; or to one cell, u being its clipped score. So
    with P partitions a replaced record moves all numbers together by at most

    .. math:: \Delta_1 = 2 P, \qquad \Delta_2 = 2 \sqrt P,

    however many cells there are.

    Guarantee:
        Certified: pure with Laplace noise, (epsilon, delta) with Gaussian noise; weights are all the same, known by
        design, or of a propensity that was paid for. Proof: docs/guarantees/subgroups.md.
    """

    name: ClassVar[str] = "subgroups"
    formula: ClassVar[str] = (
        "Laplace noise of scale 2 P/epsilon, or Gaussian noise for sensitivity 2 sqrt(P), on three sums of each cell "
        "and arm of P partitions; docs/guarantees/subgroups.md"
    )
    states: ClassVar[Stated] = Stated(
        Level.CERTIFIED,
        (SubgroupRelease.kind,),
        frozenset(CONSTANTS),
        frozenset((HOLDS_IF, "eta", *STEPS)),
        fits=("weights",),
    )

    @classmethod
    def prepare(cls, sums: Tensor, plan: SubgroupPlan, conditions: tuple[Condition, ...] = ()) -> Prepared:
        """Return the mechanism on the sums of a fit, ready to run.

        Args:
            sums: Exact sums of the plan's strata, [strata, arms, 3].
            plan: The public plan.
            conditions: Of a user's own code, on which the guarantee rests.
        """
        exact = sums.reshape(1, -1)

        def draw(noise: NoiseSource, runs: int) -> Tensor:
            return plan.mechanism.add_noise(exact.expand(runs, -1), noise)

        guarantee = Guarantee(Level.CERTIFIED, plan.budget, source=cls.name).resting_on(conditions)
        return Prepared(plan.mechanism.event, guarantee, draw, plan.public(), plan.scale)

    @classmethod
    def recompute(cls, release: Release) -> Iterator[str]:
        """Return what of a release does not follow from its public facts; see ``estimators.mechanism``."""
        from torchdpcate.estimators.subgroups.recompute import problems

        assert isinstance(release, SubgroupRelease)
        yield from problems(cls.name, release)


class ScoreSums(SubgroupSums):
    """The same sums of clipped doubly robust scores in place of outcomes, without arms."""

    formula: ClassVar[str] = (
        "Gaussian events on all records for the nuisances, mu^2 the sum of their shares; Laplace noise of scale "
        "2 P/epsilon, or Gaussian noise for sensitivity 2 sqrt(P), on three sums of clipped doubly robust scores of "
        "each cell of P partitions; docs/guarantees/subgroups.md"
    )


def numbers_of(output: Tensor, strata: int) -> Tensor:
    """Return the numbers of a run [p] by cell and arm, [strata, arms, 3]."""
    return output.reshape(strata, -1, NUMBERS).to(torch.float64)


SUBGROUP_MECHANISMS: Mapping[str, ReleaseMechanism] = {SubgroupSums.name: SubgroupSums}  # type: ignore[dict-item]
"""Mechanisms that release effects in subgroups, by name."""
