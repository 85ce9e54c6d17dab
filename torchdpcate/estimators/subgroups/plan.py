"""The public plan of effects in subgroups: weights and sums of records, which are released, with which noise."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.composition.censoring import FollowUpCells
from torchdpcate.composition.steps import summation_error
from torchdpcate.data._arrays import plural
from torchdpcate.data.censoring import planned_curve_error
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.planned_noise import planned_deviation, shown
from torchdpcate.laws import AddedNoise
from torchdpcate.plan import Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import GaussianMechanism, LaplaceMechanism
from torchdpcate.release.cell_effects import (
    DEVIATIONS,
    DOMINATED,
    GAUSSIAN,
    LAPLACE,
    NUMBERS,
    RATE,
    basis,
    count_noise,
    mean_noise,
    powers,
    rate_numbers,
)
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.release.subgroups import CROSSED, SEPARATE, SubgroupRelease, strata_of

EQUAL, KNOWN = "equal", "known"
"""All alike; by the propensity that the domain states."""
RANDOMISED = "randomised"
PROPENSITIES = ("auto", RANDOMISED)
"""What a user may say of the propensity."""

_LINES = (
    "effects in subgroups are then lines of one composition: task=subgroups with privacy.delta above 0 "
    "(AverageEffect(subgroups=...))"
)
_DRAWN = "task=subgroups subgroup_effects.propensity=randomised (SubgroupEffects)"
_HOLDS_IF = {
    EQUAL: (
        "treatment was randomised with one probability within each cell; where it was not, estimates are biased and "
        "intervals may never hold the effects"
    ),
    KNOWN: "treatment was assigned with the propensity that the domain states",
}


@dataclass(frozen=True)
class Weighting:
    r"""Weights of records in units of the largest one, in [0, 1]: by the probability of either arm.

    .. math:: w = \frac{1 / e_a(x)}{\max 1 / e_a}, \qquad e_1 = e, \; e_0 = 1 - e

    Attributes:
        way: ``equal`` or ``known``.
        low: Least propensity, public.
        high: Largest propensity, public.
        planned: Share of the treated that a plan expects.
        shares: Share of each arm that a plan expects, the reference first, where there are more than two.
    """

    way: str
    low: float
    high: float
    planned: float = 0.5
    shares: tuple[float, ...] = ()

    @classmethod
    def of(cls, given: str, schema: TableSchema) -> "Weighting":
        """Return the weighting for what a user says of the propensity.

        Args:
            given: ``auto``: that of the domain; or ``randomised``: one probability within each cell, which need not be
                known.
            schema: Columns and public facts.

        Raises:
            InputError: No such word, or a propensity that is not known.
        """
        if given not in PROPENSITIES:
            raise InputError(f"propensity = {given!r}: choose one of {', '.join(PROPENSITIES)}")
        known = schema.domain.known_propensity
        if schema.pairs is not None:
            return cls(EQUAL, 0.5, 0.5, shares=(1.0,))
        if len(schema.actions) > 2:
            return cls._of_arms(given, schema)
        if given == RANDOMISED:
            return cls(EQUAL, 0.5, 0.5)
        if known is None and schema.domain.is_rate:
            raise InputError(
                f"exposure: rates are of trials; state propensity: in the domain, or take {_DRAWN}; of a "
                "cohort give outcomes over one length of follow-up, or by a horizon (time, event, horizon)"
            )
        if known is None and schema.cluster is not None:
            raise InputError(
                f"cluster {schema.cluster.name!r}: intervals count clusters of a trial alone, whose arms have one "
                f"probability or that of a covariate; state propensity: in the domain, or take {_DRAWN}"
            )
        if known is None:
            raise InputError(f"propensity = {given}: the domain states none; {_LINES}, or take {_DRAWN}")
        low, high = known.bounds
        return cls(EQUAL if low == high else KNOWN, low, high, (low + high) / 2)

    @classmethod
    def _of_arms(cls, given: str, schema: TableSchema) -> "Weighting":
        """Return the weighting of more than two arms, whose probabilities are the same for all records."""
        known, arms = schema.domain.known_propensity, len(schema.actions)
        if known is None and given != RANDOMISED:
            raise InputError(
                f"propensity = {given}: treatment {schema.treatment!r} has {arms} arms, whose averages need a trial "
                "that assigns each with one probability: state propensity: [...] in the domain, a number for each arm, "
                f"or take {_DRAWN}; of other records task=cate (RLearner) has effects of all arms and "
                "their means, and task=policy_selection policies; or put the records of two arms into a file of their "
                "own"
            )
        shares = (1 / arms,) * arms if known is None else tuple(known.of_arms[:, 0].tolist())
        return cls(EQUAL, 0.5, 0.5, shares=shares)

    @property
    def largest(self) -> tuple[float, float]:
        """Largest weight of a control and of a treated record before they are scaled; 1 where all weigh the same."""
        if self.way == EQUAL:
            return 1.0, 1.0
        return 1 / (1 - self.high), 1 / self.low

    @property
    def mass(self) -> tuple[float, ...]:
        """Expected sum of the weights of each arm, controls first, for each record of a cell."""
        if self.way == EQUAL:
            return self.shares or (1 - self.planned, self.planned)
        return 1 - self.high, self.low

    @property
    def assumption(self) -> str:
        """What estimates rest on, in words."""
        return _HOLDS_IF[self.way]

    def weights(self, a: Tensor, propensity: Tensor | None) -> Tensor:
        """Return the weights [n] of records with treatments a [n] in {0, 1} and propensities [n]."""
        if self.way == EQUAL or propensity is None:
            return torch.ones_like(a, dtype=torch.float64)
        e = propensity.double().clamp(self.low, self.high)
        treated = a.double()
        own = treated * e + (1 - treated) * (1 - e)
        return ((treated * self.low + (1 - treated) * (1 - self.high)) / own).clamp(0.0, 1.0)

    def public(self) -> dict[str, Any]:
        """Return the public constants, as statements have them."""
        control, treated = self.largest
        return {
            "weights": self.way,
            "estimand": "ATE",
            "weight_control": control,
            "weight_treated": treated,
            "assumptions": self.assumption,
        }


def record_numbers(
    y: Tensor, weights: Tensor, law: str, middle: float, half: float, exposure: Tensor | None = None
) -> Tensor:
    """Return what each record adds to the numbers of its cells and arm, float64 [n, k].

    Args:
        y: Outcomes [n] within the domain, or differences of pairs.
        weights: Weights [n] in [0, 1].
        law: Law of the noise, which decides the basis.
        middle: Of their bounds.
        half: Half the width between these.
        exposure: In [0, 1], of rates, [n].
    """
    u = (y - middle) / half
    if law == RATE:
        assert exposure is not None
        return weights[:, None] * rate_numbers(u.clamp(0, 1), exposure.double().clamp(0, 1))
    return weights[:, None] * (powers(u.clamp(-1, 1)) @ basis(law).T)


def cell_sums(
    numbers: Tensor, a: Tensor | None, positions: Tensor, strata: int, n: int | None = None, arms: int = 2
) -> Tensor:
    """Return the sums over the records of each cell and arm, exact whatever the order, float64 [strata, arms, k].

    Each number is rounded to ``sum_grid(n, 1)``, of which float64 adds multiples without error.

    Args:
        numbers: What each record adds, in [-1, 1], [n, k].
        a: Position of each record's arm, [n]; None sums all arms together, [strata, 1, k].
        positions: Cells of each record, one of each partition, [n, partitions].
        strata: Number of cells.
        n: Number of all records, where these are some of them; None: these are all.
        arms: Number of arms.
    """
    step = sum_grid(len(numbers) if n is None else n, 1.0)
    steps = numbers.clamp(-1, 1).div(step).round()
    arms, own = (1, 0) if a is None else (arms, a.round().long())
    total = torch.zeros(arms * strata, numbers.shape[1], dtype=torch.float64)
    for cells in positions.T:  # one of each partition
        total.index_add_(0, arms * cells + own, steps)
    return total.mul_(step).reshape(strata, arms, -1)


def sensitivity(law: str, partitions: int, n: int) -> float:
    r"""Return how far one replaced record moves the numbers of all cells together, rounding included.

    .. math:: \Delta_1 = 2 P + k P g \text{ (laplace)}, \qquad \Delta_2 = \sqrt P (2 + \sqrt k g) \text{ (gaussian)}

    for k numbers and P partitions, each of which a record moves in one cell and arm, or in two, of any arms; g is the
    grid of the sums. Proof: docs/guarantees/average_effects.md.

    Args:
        law: Law of the noise.
        partitions: P.
        n: Number of records.

    Example:
        >>> round(sensitivity("laplace", 2, 1000), 9), round(sensitivity("gaussian", 4, 1000), 9)
        (4.0, 4.0)
    """
    step = sum_grid(n, 1.0)
    if law != GAUSSIAN:
        return partitions * (2 + NUMBERS[law] * step)
    return math.sqrt(partitions) * (2 + math.sqrt(NUMBERS[law]) * step)


_MOST_STRATA = 4096
FOLLOW_UP = Charge(Purpose.WEIGHTS, "subgroups", "follow_up")
CURVE, _INWARDS = 0.3, 1e-9  # share of counts of the ends of follow-up, and what rounding of shares may take
_TYPICAL_MEAN, _TYPICAL_RATE = 0.5, 0.1  # of outcomes in [-1, 1], at either side; over exposures in [0, 1]
_FORMULA = (
    "Laplace noise of scale 2 P/epsilon, or Gaussian noise for sensitivity 2 sqrt(P), on three sums (of rates six) of "
    "each cell and arm of P partitions; "
    "docs/guarantees/average_effects.md"
)


@dataclass(frozen=True, eq=False)
class SubgroupPlan(Plan[SubgroupRelease]):
    r"""Everything public about effects in subgroups, before any record is read.

    Three sums over the records of each cell and arm get noise. A record adds three numbers to one cell and arm of each
    partition, of however many arms: not negative and 1 in all, for Laplace noise; 1, u and 1 - u^2, for Gaussian noise,
    u being its outcome in [-1, 1]. So with P partitions a replaced record moves all numbers together by at most

    .. math:: \Delta_1 = 2 P, \qquad \Delta_2 = 2 \sqrt P,

    however many cells there are.

    Guarantee:
        Certified: pure with Laplace noise, (epsilon, delta) with Gaussian noise; weights are all the same, known by
        design, or of a propensity that was paid for. Proof: docs/guarantees/average_effects.md.

    Attributes:
        n: Number of records.
        schema: Columns and public bounds.
        subgroups: The cells.
        budget: What everything costs together; None without privacy.
        weighting: How records weigh.
        law: Law of the noise of the sums, ``laplace`` or ``gaussian``.
        released: ``separate`` or ``crossed``: which sums get noise.
        learner: Name of the learner's class.
    """

    name: ClassVar[str] = "subgroups"
    kinds: ClassVar[tuple[str, ...]] = (SubgroupRelease.kind,)

    n: int
    schema: TableSchema
    subgroups: Subgroups
    budget: PrivacyBudget | None
    weighting: Weighting
    law: str
    released: str
    learner: str = "SubgroupEffects"

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        if self.budget is None:
            return {}
        sums = {"sums": Query(Charge(Purpose.RELEASE, self.name), self.sums_law)}
        return (
            sums if self.ends is None else {"follow_up": Query(FOLLOW_UP, self.ends_law, prefix="follow_up_"), **sums}
        )

    @cached_property
    def ends(self) -> FollowUpCells | None:
        """Counts of the ends of follow-up, of which a curve of censoring is made; None where all outcomes are known."""
        censoring = self.schema.domain.censoring
        return None if censoring is None else FollowUpCells(censoring, len(self.schema.actions))

    @cached_property
    def ends_law(self) -> AddedNoise:
        """Noise of these counts: a record leaves one, and enters another."""
        assert self.ends is not None
        l2, times, bound = self.ends.moved()
        moved = (l2 if self.law == GAUSSIAN else 2.0) + times * summation_error(self.n, bound)
        return self._noise(CURVE, moved, self.ends.size)

    @cached_property
    def sums_law(self) -> AddedNoise:
        """Noise of all sums together."""
        moved = sensitivity(self.law, len(self.strata.partitions), self.n)
        size = len(self.weighting.mass) * NUMBERS[self.law] * self.strata.size
        return self._noise(1.0 if self.ends is None else 1 - CURVE - _INWARDS, moved, size)

    def _noise(self, share: float, moved: float, size: int) -> AddedNoise:
        """Return the noise of numbers that one record moves so far, for a share of epsilon, or of mu^2."""
        assert self.budget is not None
        if self.law != GAUSSIAN:
            return AddedNoise(LaplaceMechanism(share * self.budget.epsilon, moved), size)
        whole = GaussianMechanism(self.budget, 1.0).event
        event = replace(whole, noise_multiplier=whole.noise_multiplier / math.sqrt(share))
        return AddedNoise(GaussianMechanism.of_event(event, moved), size)

    @property
    def formula(self) -> str:
        return _FORMULA

    def settings(self) -> dict[str, Any]:
        stated = {} if self.budget is None else {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        if self.law != GAUSSIAN:
            stated.pop("delta", None)
        return {
            "learner": self.learner,
            **stated,
            "law": self.law,
            "released": self.released,
            "partitions": len(self.subgroups.partitions),
            "cells": self.subgroups.size,
            "strata": self.strata.size,
            **self.weighting.public(),
            "assumptions": self.assumed,
            **({} if self.schema.pairs is None else {"pairs": self.schema.pairs.name}),
        }

    def __post_init__(self) -> None:
        _ = self.schema.design_effect  # refuses clusters without numbers

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (self.assumed,)

    @property
    def assumed(self) -> str:
        """What estimates and intervals rest on, in words."""
        cluster, pairs = self.schema.cluster, self.schema.pairs
        if pairs is not None:
            return pairs.assumption(drawn=self.schema.domain.known_propensity is not None)
        return self.weighting.assumption + ("" if cluster is None else f"; {cluster.assumption}")

    @classmethod
    def restated(cls, release: SubgroupRelease) -> Self:
        public, block = release.privacy.public, release.privacy.blocks[0]
        weighting = Weighting.of(RANDOMISED if public["weights"] == EQUAL else "auto", release.schema)
        budget = requested_budget(block, public["epsilon"], public.get("delta", 0.0))
        facts = release.privacy.n, release.schema, release.subgroups, budget, weighting, release.law, release.released
        return cls(*facts, str(public["learner"]))

    def answers(self, release: SubgroupRelease) -> dict[str, Tensor]:
        ends = {} if release.follow_up is None else {"follow_up": release.follow_up}
        return ends | {"sums": release.statistics}

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> SubgroupRelease:
        return SubgroupRelease(
            self.subgroups,
            self.released,
            answers["sums"].reshape(self.strata.size, -1, NUMBERS[self.law]).to(torch.float64),
            self.law,
            self.scale,
            self.schema,
            privacy,
            answers.get("follow_up"),
        )

    @property
    def scale(self) -> float:
        """Scale of the noise of each number; 0 without privacy."""
        return 0.0 if self.budget is None else self.sums_law.scale

    @cached_property
    def strata(self) -> Subgroups:
        """The cells whose sums get noise."""
        return strata_of(self.subgroups, self.released)

    @property
    def unions(self) -> Tensor:
        """How many of the strata each cell is the union of, float64 [cells]."""
        return self.subgroups.members(self.strata).sum(1)

    @property
    def records(self) -> Tensor:
        """Records of each cell, by expected weights, if those of a partition are all as large, float64 [cells]."""
        sizes = [partition.size for partition in self.subgroups.partitions for _ in range(partition.size)]
        return self.mass / torch.tensor(sizes, dtype=torch.float64)

    @property
    def mass(self) -> float:
        """Number of records, or the expected sum of their weights."""
        weight = self.schema.domain.expected_weight
        return self.n if weight is None else self.n * weight

    @cached_property
    def cell_noise(self) -> Tensor:
        """Standard deviation of the privacy noise to expect of each cell, in outcome units, float64 [cells].

        For cells of a partition that are all as large, and mean outcomes half way from the middle of their range to an
        end: 1.3 times as much at an end, 0.9 in the middle. Of more than two arms of the one with the most.
        """
        mass = torch.tensor(self.weighting.mass, dtype=torch.float64)
        unit, typical = self.schema.cell_unit, _TYPICAL_RATE if self.law == RATE else _TYPICAL_MEAN
        pull = float(mean_noise(self.law, torch.tensor(typical, dtype=torch.float64)).norm())
        deviation = DEVIATIONS[self.law] * self.scale * self.unions.sqrt() * pull
        each = deviation[:, None] / (self.records[:, None] * mass)
        if len(self.weighting.mass) > 2:  # the noisiest of the arms, beside the reference
            each = torch.stack([each[:, 0], each[:, 1:].amax(1)], 1)
        return (unit * each.norm(dim=1)).hypot(torch.tensor(self.curve_noise, dtype=torch.float64))

    @property
    def sampling(self) -> float:
        """Standard error by sampling to expect of the noisiest cell; the two outcomes of a pair are independent."""
        mass = torch.tensor(self.weighting.mass, dtype=torch.float64)
        each = 1 / mass if self.schema.pairs is None else 2 / mass
        variance = self.schema.design_effect * (each[0] + (each[1:].max() if len(mass) > 1 else 0))
        return planned_deviation(self.schema) * math.sqrt(float(variance / self.records.min()))

    @property
    def curve_noise(self) -> float:
        """What noise in the curve of censoring is expected to do to an effect: half, or the floor, are followed."""
        censoring, mass = self.schema.domain.censoring, torch.tensor(self.weighting.mass, dtype=torch.float64)
        if censoring is None or self.budget is None:
            return 0.0
        noise = DEVIATIONS[self.law] * self.ends_law.scale
        return planned_curve_error(censoring, self.n * mass, noise)

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
        """Return the largest of ``cell_noise`` by the names of the partitions."""
        names = dict.fromkeys(self.subgroups.of_partition)
        return {name: float(own.max()) for name, own in zip(names, self._split(self.cell_noise), strict=True)}

    def remarks(self) -> tuple[str, ...]:
        """Return what public facts say of each partition, in words."""
        least, parts, pairs = self._split(self.least_records), self.of_partitions(), self.schema.pairs
        bound: tuple[str, ...] = ()
        if pairs is not None and pairs.most is None and self.law != RATE:
            part = self.schema.greatest / 4
            bound = (
                f"assignment: a public bound of a difference, most:, makes the noise as many times smaller: with most: "
                f"{part:g}, a quarter of the outcome's range, {shown(self.expected_noise / 4)}",
            )
        return bound + tuple(
            f"{name}: {plural(partition.size, 'cell')} of about {self.mass / partition.size:,.0f} records; each needs "
            f"at least {math.ceil(float(own.max())):,}, or noise dominates it"
            for (name, partition, own) in zip(parts, self.subgroups.partitions, least, strict=True)
        )

    def _split(self, values: Tensor) -> Sequence[Tensor]:
        """Return numbers of cells [cells], partition by partition."""
        return values.split([partition.size for partition in self.subgroups.partitions])


def plan_subgroups(
    n: int,
    schema: TableSchema,
    subgroups: Subgroups,
    budget: PrivacyBudget | None,
    weighting: Weighting,
    **settings: Any,
) -> SubgroupPlan:
    """Return the plan of least noise, by public facts alone.

    Laplace noise is less than Gaussian noise for few partitions; sums of crossed cells are better than those of each
    partition where the cells are unions of few of them.

    Args:
        n: Number of records.
        schema: Columns and public bounds.
        subgroups: The cells.
        budget: What everything may cost together; None without privacy.
        weighting: How records weigh.
        settings: Further ones of ``SubgroupPlan``.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], -1.0, 1.0))
        >>> cells, budget = Subgroups.of([{"x0": [0.5]}], schema), PrivacyBudget(1.0, 1e-5)
        >>> plan = plan_subgroups(1000, schema, cells, budget, Weighting("equal", 0.5, 0.5))
        >>> plan.law, round(plan.scale, 4), round(plan.expected_noise, 4)
        ('laplace', 2.0, 0.0265)
    """
    first = RATE if schema.domain.is_rate else LAPLACE
    if budget is None:
        return SubgroupPlan(n, schema, subgroups, None, weighting, first, SEPARATE, **settings)
    laws = (first,) if budget.delta == 0 or first == RATE else (LAPLACE, GAUSSIAN)
    ways = (SEPARATE, CROSSED) if _crosses(subgroups) else (SEPARATE,)
    facts = n, schema, subgroups, budget, weighting
    return min((SubgroupPlan(*facts, *own, **settings) for own in itertools.product(laws, ways)), key=_error)


def _crosses(subgroups: Subgroups) -> bool:
    """Return whether the partitions can be crossed, and are not one alone."""
    if len(subgroups.partitions) < 2:
        return False
    try:
        return subgroups.crossed().size <= _MOST_STRATA
    except InputError:
        return False


def _error(plan: SubgroupPlan) -> float:
    """Return what decides: the variance of the noise of a sum, its mean over the cells of each partition, added up."""
    return float(((plan.cell_noise * plan.records).square() * plan.records).sum()) / plan.mass
