"""The public plan of effects in subgroups: which sums are released, with which noise, and what to expect of it."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.subgroups.scores import ScorePlan
from torchdpcate.estimators.subgroups.sums import sensitivity
from torchdpcate.estimators.subgroups.weighting import Weighting
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, LaplaceMechanism
from torchdpcate.release.cell_effects import DEVIATIONS, DOMINATED, GAUSSIAN, LAPLACE, NUMBERS, count_noise, mean_noise
from torchdpcate.release.subgroups import CROSSED, SEPARATE, strata_of

if TYPE_CHECKING:
    import pandas as pd

_MOST_STRATA = 4096
_TYPICAL_MEAN = 0.5  # of outcomes in [-1, 1], at either side; that of scores is 0


@dataclass(frozen=True, eq=False)
class SubgroupPlan:
    """Everything public about effects in subgroups, before any record is read.

    Attributes:
        n: Number of records.
        subgroups: The cells.
        released: ``separate`` or ``crossed``: which sums get noise.
        law: Law of the noise, ``laplace`` or ``gaussian``.
        mechanism: Noise of all sums together.
        budget: What they cost together.
        weighting: How records weigh.
        half_range: Half of the outcome's range.
        scores: The plan of doubly robust scores; None where outcomes are summed.
    """

    n: int
    subgroups: Subgroups
    released: str
    law: str
    mechanism: AdditiveMechanism
    budget: PrivacyBudget
    weighting: Weighting
    half_range: float
    scores: ScorePlan | None = None

    @property
    def strata(self) -> Subgroups:
        """The cells whose sums get noise."""
        return strata_of(self.subgroups, self.released)

    @property
    def scale(self) -> float:
        """Scale of the noise of each number."""
        return self.mechanism.released_scale(len(self.weighting.mass) * NUMBERS * self.strata.size)

    @property
    def unions(self) -> Tensor:
        """How many of the strata each cell is the union of, float64 [cells]."""
        return self.subgroups.members(self.strata).sum(1)

    @property
    def records(self) -> Tensor:
        """Records of each cell, if those of a partition are all as large, float64 [cells]."""
        sizes = [partition.size for partition in self.subgroups.partitions for _ in range(partition.size)]
        return self.n / torch.tensor(sizes, dtype=torch.float64)

    @property
    def cell_noise(self) -> Tensor:
        """Standard deviation of the privacy noise to expect of each cell, in outcome units, float64 [cells].

        For cells of a partition that are all as large, and mean outcomes half way from the middle of their range to an
        end: 1.3 times as much at an end, 0.9 in the middle. Of scores, with the clip to expect.
        """
        mass = torch.tensor(self.weighting.mass, dtype=torch.float64)
        mean, unit = (_TYPICAL_MEAN, self.half_range) if self.scores is None else (0.0, self.scores.clip)
        pull = float(mean_noise(self.law, torch.tensor(mean, dtype=torch.float64)).norm())
        deviation = DEVIATIONS[self.law] * self.scale * self.unions.sqrt() * pull
        return unit * (deviation[:, None] / (self.records[:, None] * mass)).norm(dim=1)

    @property
    def expected_noise(self) -> float:
        """The largest of ``cell_noise``, in outcome units."""
        return float(self.cell_noise.max())

    @property
    def least_records(self) -> Tensor:
        """Records that a cell needs for its noise not to dominate it, float64 [cells]."""
        least = DOMINATED * count_noise(self.law, self.scale) * self.unions.sqrt()
        return least / min(self.weighting.mass)

    def of_partitions(self) -> dict[str, float]:
        """Return the largest of ``cell_noise`` by the names of the partitions; those of one name are numbered."""
        found: dict[str, float] = {}
        for partition, noise in zip(self.subgroups.partitions, self._split(self.cell_noise), strict=True):
            name, count = partition.name, sum(other.startswith(partition.name) for other in found)
            found[f"{name} ({count + 1})" if name in found else name] = float(noise.max())
        return found

    def remarks(self) -> tuple[str, ...]:
        """Return what public facts say of each partition, in words."""
        least, parts = self._split(self.least_records), self.of_partitions()
        return tuple(
            f"{name}: {partition.size} cells of about {self.n / partition.size:,.0f} records; each needs at least "
            f"{math.ceil(float(own.max())):,}, or noise dominates it"
            for (name, partition, own) in zip(parts, self.subgroups.partitions, least, strict=True)
        )

    def _split(self, values: Tensor) -> Sequence[Tensor]:
        """Return numbers of cells [cells], partition by partition."""
        return values.split([partition.size for partition in self.subgroups.partitions])

    def table(self) -> "pd.DataFrame":
        """Return one row a cell: its name, the records planned and the least ones, and the noise to expect."""
        import pandas as pd

        columns = {
            "cell": self.subgroups.labels,
            "records": self.records.numpy(),
            "least_records": self.least_records.numpy(),
            "noise": self.cell_noise.numpy(),
            "partition": self.subgroups.of_partition,
        }
        return pd.DataFrame(columns)

    def public(self) -> dict[str, Any]:
        """Return the public constants, as statements have them."""
        return {
            "law": self.law,
            "released": self.released,
            "partitions": len(self.subgroups.partitions),
            "cells": self.subgroups.size,
            "strata": self.strata.size,
            "sensitivity": self.mechanism.sensitivity,
            "scale": self.scale,
            **self.weighting.public(),
            **({} if self.scores is None else self.scores.public()),
        }


def plan_subgroups(
    n: int,
    subgroups: Subgroups,
    budget: PrivacyBudget,
    weighting: Weighting,
    half_range: float,
    law: str = "auto",
    released: str = "auto",
    scores: ScorePlan | None = None,
) -> SubgroupPlan:
    """Return the plan of least noise, by public facts alone.

    Laplace noise is less than Gaussian noise for few partitions; sums of crossed cells are better than those of each
    partition where the cells are unions of few of them.

    Args:
        n: Number of records.
        subgroups: The cells.
        budget: What all sums together may cost; of scores, what their plan leaves takes its place.
        weighting: How records weigh.
        half_range: Half of the outcome's range.
        law: ``laplace`` (pure), ``gaussian`` (needs delta), or ``auto``.
        released: ``separate``, ``crossed`` or ``auto``.
        scores: The plan of doubly robust scores; None sums outcomes.

    Raises:
        InputError: No such law or way, Gaussian noise without delta, or too many crossed cells.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.data.schema import TableSchema
        >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], -1.0, 1.0))
        >>> cells, budget = Subgroups.of([{"x0": [0.5]}], schema), PrivacyBudget(1.0, 1e-5)
        >>> plan = plan_subgroups(1000, cells, budget, Weighting("equal", 0.5, 0.5), half_range=1.0)
        >>> plan.law, round(plan.scale, 4), round(plan.expected_noise, 4)
        ('laplace', 2.0, 0.0265)
    """
    laws, ways = _chosen("law", law, (LAPLACE, GAUSSIAN)), _chosen("released", released, (SEPARATE, CROSSED))
    if law == GAUSSIAN and budget.delta == 0:
        raise InputError("law = gaussian: needs delta > 0; take law=laplace for a pure guarantee")
    found = []
    for own, way in itertools.product(laws, ways):
        if own == GAUSSIAN and (budget.delta == 0 or not (law == own or scores is None or scores.has(own))):
            continue
        if way == CROSSED and not _crosses(subgroups, released):
            continue
        strata, cost = strata_of(subgroups, way), budget if scores is None else scores.cost(own)
        mechanism = noise_of(own, cost, strata, n) if scores is None else noise_by(scores.event(own), strata, n)
        found.append(SubgroupPlan(n, subgroups, way, own, mechanism, cost, weighting, half_range, scores))
    return min(found, key=_error)


def noise_of(law: str, budget: PrivacyBudget, strata: Subgroups, n: int) -> AdditiveMechanism:
    """Return the noise of the sums of these cells, over n records, at a budget."""
    moved = sensitivity(law, len(strata.partitions), n)
    return LaplaceMechanism(budget.epsilon, moved) if law == LAPLACE else GaussianMechanism(budget, moved)


def noise_by(event: PureEvent | GaussianEvent, strata: Subgroups, n: int) -> AdditiveMechanism:
    """Return the noise of the sums of these cells, over n records, that this event pays for."""
    if isinstance(event, PureEvent):
        return LaplaceMechanism(event.epsilon, sensitivity(LAPLACE, len(strata.partitions), n))
    return GaussianMechanism.of_event(event, sensitivity(GAUSSIAN, len(strata.partitions), n))


def _chosen(name: str, given: str, known: tuple[str, ...]) -> tuple[str, ...]:
    if given == "auto":
        return known
    if given not in known:
        raise InputError(f"{name} = {given!r}: choose auto, {' or '.join(known)}")
    return (given,)


def _crosses(subgroups: Subgroups, asked: str) -> bool:
    """Return whether the partitions can be crossed, and are not one alone."""
    if asked == CROSSED:
        size = subgroups.crossed().size  # refuses
        if size > _MOST_STRATA:
            raise InputError(f"released = crossed: {size:,} crossed cells; give at most {_MOST_STRATA:,}")
        return True
    if len(subgroups.partitions) < 2:
        return False
    try:
        return subgroups.crossed().size <= _MOST_STRATA
    except InputError:
        return False


def _error(plan: SubgroupPlan) -> float:
    """Return what decides: the variance of the noise of a sum, its mean over the cells of each partition, added up."""
    sizes = plan.n / plan.records
    return float(((plan.cell_noise * plan.records).square() / sizes).sum())
