"""Effects in subgroups of public cuts: checks, a fit session, one release with intervals, and its worst neighbours."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.composition.censoring import CountedByFollowUp
from torchdpcate.composition.records import rows_of
from torchdpcate.composition.steps import propensity_of
from torchdpcate.data.assignment import Pairs
from torchdpcate.data.censoring import Censoring
from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import StratumPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.data.weights import times_weight
from torchdpcate.estimators.answers import AnswersCells
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise, planned_deviation, shown, told
from torchdpcate.estimators.subgroups.plan import (
    CURVE,
    EQUAL,
    FOLLOW_UP,
    KNOWN,
    RANDOMISED,
    SubgroupPlan,
    Weighting,
    cell_sums,
    plan_subgroups,
    record_numbers,
)
from torchdpcate.plan import RECORDS
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, Target, worst_case
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE, RATE, CellEffects, cell_effects
from torchdpcate.release.subgroups import SEPARATE, SubgroupRelease

_NONE = 1e-12  # scale of no noise
_ASSUMED = "cells of a partition are all as large, mean outcomes at a quarter of their range, rates at a tenth"
SAMPLING = "sampling"


@dataclass(eq=False, repr=False)
class SubgroupEffects(AnswersCells, PrivateEstimator):
    r"""Average effects in subgroups of public cuts, each with a confidence interval, for one charge.

    In each cell the difference of the arms' mean outcomes, weighted by the probability of the arm where that differs
    among its records,

    .. math:: \tau_c = \bar y_{c1} - \bar y_{c0}, \qquad
        \bar y_{cz} = \frac{\sum_{i \in c,\, a_i = z} w_i y_i}{\sum_{i \in c,\, a_i = z} w_i}

    It is of trials with delta = 0, of K arms, of clusters, of pairs, and of rates (an exposure, by whose sum that of
    outcomes is divided); else ``AverageEffect`` has lines of subgroups. By a horizon records weigh by a curve of
    censoring.

    Of pairs of which one record is treated (``Pairs``) a record is a pair, and the effect the mean of its differences.

    Of K arms, in a trial, each but the first is compared with the first, the reference: K - 1 effects a cell.
    Cells of one partition are disjoint, and a record is in one arm, so that any number of cells and arms cost as much
    as one.
    Several partitions share one noise vector, calibrated jointly. Which sums get noise, and of which law, follows from
    public facts as wins most (``plan``).

    Guarantee:
        Certified: pure, or (epsilon, delta) where the noise is Gaussian. n, cells, bounds and settings are public; that
        effects are causal rests on randomisation, and intervals on what the release names under ``assumptions``. Proof:
        docs/guarantees/average_effects.md.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns.
        budget: Privacy budget of fit and release. None fits without privacy; such a learner releases nothing.
        subgroups: Partitions, or a yaml file of them, or ``everybody``; see ``Subgroups.of``.
        propensity: ``auto``: that of the domain; or ``randomised``: one probability within each cell, which need not be
            known.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        subgroups_: The cells.
        plan_: The public plan, whose ``public()`` is what statements have.
        ledger_: What has been spent; None without privacy.
        sizes_: Records per block, public.

    Raises:
        InputError: Cells that are none, or an unknown propensity.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 1), torch.arange(4000) % 2
        >>> Y = 0.2 + 0.4 * A * (X[:, 0] > 0.5)
        >>> domain, cells = Domain([0.0], [1.0], 0.0, 1.0), [{"x0": [0.5]}]
        >>> learner = SubgroupEffects(domain, PrivacyBudget(4.0, 0.0), subgroups=cells, propensity="randomised")
        >>> release = learner.fit(X, A, Y).release()
        >>> [bool(low < truth < high) for truth, (low, high) in zip([0.0, 0.4], release.interval(1 - 1e-9))]
        [True, True]
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    subgroups: Any
    propensity: str = "auto"
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    def check(self, n: int) -> None:
        """Refuse, before anything is learnt or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: See the class.
        """
        self.plan(n).public()

    def plan(self, n: int) -> SubgroupPlan:
        """Return the public plan for n records, with the noise to expect of each cell; nothing is spent.

        Args:
            n: Number of records.

        Raises:
            InputError: See the class.
        """
        cells, schema = self._cells(), TableSchema.of(self.domain)
        return plan_subgroups(n, schema, cells, self.budget, self._weighting(cells), learner=type(self).__name__)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the standard error in the noisiest cell, if a partition's are all as large.

        Infinite where noise would dominate such a cell.
        """
        budget, plan = self._planned(n), self.plan(n)
        swamped = bool((plan.records < plan.least_records).any())
        level = Level.CONDITIONAL if self._own_learner() else Level.CERTIFIED
        whole, arms = plan.subgroups.of_everybody, len(plan.weighting.mass) > 2
        parts = {"noise" if whole else f"noise by {name}": noise for name, noise in plan.of_partitions().items()}
        parts |= {} if plan.schema.domain.is_rate else {SAMPLING: plan.sampling}
        differ = f"outcomes differ by {shown(planned_deviation(plan.schema))}{told(plan.schema)}"
        return PlannedNoise(
            math.inf if swamped else math.hypot(plan.expected_noise, parts.get(SAMPLING, 0.0)),
            ("the average effect" if whole else "the effect in the noisiest cell") + " of an arm" * (whole and arms),
            plan.schema.effect_range,
            n,
            budget,
            parts,
            level,
            (_ASSUMED, *([differ] if SAMPLING in parts else [])),
            () if SAMPLING in parts else (SAMPLING,),
            plan.remarks(),
        )

    def release(self) -> SubgroupRelease:
        """Pay for the sums of all cells, which a fit by a horizon did, and return the effects, the same ones each time.

        Raises:
            InputError: Not fitted, or fitted without privacy.
        """
        self._ready()
        return self._once(self._release)  # type: ignore[no-any-return]

    def _release(self) -> SubgroupRelease:
        plan, guarantee, public = self.plan_, self.plan_.guarantee(), self.plan_.public()
        if "sums" not in self._answers:
            self._ask("sums", self._sums)
        return plan.conclude(self._answers, self._statement_of(plan, guarantee, public, self._entries))

    def _ask(self, name: str, exact: Tensor) -> Tensor:
        """Pay for an answer, keep it and return it."""
        session = self._session.charging([RECORDS], self.plan_.queries[name].charge)
        self._answers[name] = self.plan_.ask(name, session, exact)
        self._entries |= session.entries
        return self._answers[name]

    def nonprivate_effects(self) -> CellEffects:
        """Return the effects without noise in their sums. The curator's, never to be published.

        Raises:
            InputError: Not fitted.
        """
        self._require_fitted("nonprivate_effects")
        plan = self.plan_
        members = plan.subgroups.members(plan.strata)
        times = self.protected.records * self.schema_.design_effect
        return cell_effects(self._sums, members, plan.law, _NONE, plan.schema.cell_unit, times, plan.schema.event)

    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain)

    def _arms(self) -> Sequence[int]:
        return self.schema_.actions if self.schema_.pairs is None else (1,)

    def _start(self) -> None:
        super()._start()
        if self.schema_.pairs is not None:
            self.protect(self.schema_.pairs.unit)

    def _cells(self) -> Subgroups:
        return Subgroups.of(self.subgroups, TableSchema.of(self.domain))

    def _weighting(self, cells: Subgroups) -> Weighting:
        schema = TableSchema.of(self.domain)
        weighting = Weighting.of(self.propensity, schema)
        known = schema.domain.known_propensity
        if weighting.way == KNOWN and isinstance(known, StratumPropensity) and cells.has_levels_of(known.covariate):
            return replace(weighting, way=EQUAL)  # one propensity within each cell
        return weighting

    def _prepare(self, records: CausalData | RecordStream) -> None:
        self.plan_ = self.plan(records.n)
        self.subgroups_ = self.plan_.subgroups
        if self.schema_.pairs is not None and isinstance(records, CausalData):
            self.subgroups_.check_alike(records.x, self.schema_.domain)

    @property
    def needs_all_records(self) -> str | None:
        """See ``PrivateEstimator``: all of it is sums over records, or pairs of them."""
        paired = TableSchema.of(self.domain).pairs is not None
        return "a stream does not bring pairs together: take data.stream=false" if paired else None

    takes_pairs = True
    needs_equal_records = None
    """See ``PrivateEstimator``: terms are multiplied by the weights."""
    takes_censored = takes_rates = True

    def _learn(self, records: CausalData | RecordStream) -> None:
        """Sum, by a released curve of censoring where there is one; the records themselves are not kept."""
        plan, domain, cells = self.plan_, self.schema_.domain, (self.plan_.strata.size, self.plan_.n)
        known, actions, paired = plan.weighting.way == KNOWN, self._arms(), self.schema_.pairs is not None

        def outcomes(batch: CausalData) -> Tensor:
            weights = plan.weighting.weights(batch.a, propensity_of(batch) if known else None)
            weights = weights if domain.is_rate else times_weight(weights, batch)
            numbers = record_numbers(batch.y, weights, plan.law, *plan.schema.summed, batch.weight)
            return cell_sums(numbers, None if paired else batch.a, plan.strata.positions(batch.x), *cells, len(actions))

        rows = rows_of(records, domain, actions)
        self._answers: dict[str, Tensor] = {}
        self._entries: set[int] = set()
        if plan.ends is None or domain.censoring is None:
            self._sums = rows.total(outcomes)
            return
        ends, private = rows.total(plan.ends).double(), self.budget is not None
        counted = CountedByFollowUp(domain.censoring, self._ask("follow_up", ends) if private else ends)
        self._sums = rows.then(counted).total(outcomes)
        if private:  # within the fit, whose fixed charges compose tightly; later ones would pass a filter
            self._ask("sums", self._sums)


_DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0)
_CELLS = [{"x0": [0.5]}, {"x1": [0.5]}]
_RECORDS = 50
_RUNS = 30_000  # each of 24 exact draws


def _planned(
    budget: PrivacyBudget, law: str, pairs: Pairs | None = None, censoring: Censoring | None = None
) -> SubgroupPlan:
    domain = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0, censoring=censoring)
    schema = replace(TableSchema.from_domain(domain), assignment=pairs)
    cells, weighting = Subgroups.of(_CELLS, schema), Weighting.of(RANDOMISED, schema)
    return SubgroupPlan(_RECORDS, schema, cells, budget, weighting, law, SEPARATE)


def worst_ends(plan: SubgroupPlan) -> tuple[Tensor, Tensor]:
    """Return the counts of the ends of follow-up of two neighbouring data sets: a record leaves one, enters another."""
    assert plan.ends is not None
    x, found = torch.zeros(_RECORDS, 2, dtype=torch.float64), []
    for moved in (False, True):
        a, follow_up = (torch.arange(_RECORDS) % 2).double(), torch.full((_RECORDS, 2), 0.5, dtype=torch.float64)
        a[0], follow_up[0] = (0.0, torch.tensor([1.0, 0.0])) if moved else (1.0, torch.tensor([0.0, 1.0]))
        found.append(plan.ends(CausalData(x, a, follow_up[:, 1], follow_up=follow_up)))
    return found[0], found[1]


def worst_sums(plan: SubgroupPlan, same_cell: bool) -> tuple[Tensor, Tensor]:
    """Return the sums of two neighbouring data sets, each [strata, 2, 3], or of pairs [strata, 1, 3].

    A treated record of the highest outcome becomes one of the lowest in its cells, or a control in other cells; a pair
    of the largest difference one of the least.

    Args:
        plan: The plan, of two covariates in [0, 1].
        same_cell: Whether it stays where it is.
    """
    datasets, (middle, half) = [], plan.schema.summed
    for moved in (False, True):
        x = torch.full((_RECORDS, 2), 0.4, dtype=torch.float64)
        a, y = (torch.arange(_RECORDS) % 2).double(), torch.full((_RECORDS,), middle, dtype=torch.float64)
        x[0], a[0], y[0] = 0.9, 1.0, middle + half
        if moved:
            y[0] -= 2 * half
            if not same_cell:
                x[0], a[0] = 0.1, 0.0
        exposure = (torch.arange(_RECORDS) > 0).double()  # one number alone
        numbers = record_numbers(y, torch.ones_like(y), plan.law, middle, half, exposure)
        datasets.append(
            cell_sums(numbers, a if plan.schema.pairs is None else None, plan.strata.positions(x), plan.strata.size)
        )
    return datasets[0], datasets[1]


@worst_case(
    "subgroups",
    SubgroupEffects,
    pair="a treated record of the highest outcome becomes a control of the lowest one in other cells of two partitions",
)
def _laplace(budget: PrivacyBudget) -> Game:
    plan = _planned(PrivacyBudget(budget.epsilon, 0.0), LAPLACE)
    return plan.game("sums", *worst_sums(plan, same_cell=False), most_runs=_RUNS)


@worst_case(
    "subgroups_rates",
    SubgroupPlan,
    attacks=[Target(Charge(Purpose.RELEASE, SubgroupPlan.name), {"law": RATE})],
    pair="a treated record without time at risk becomes a control without any in other cells of two partitions",
)
def _rates(budget: PrivacyBudget) -> Game:
    plan = _planned(PrivacyBudget(budget.epsilon, 0.0), RATE)
    return plan.game("sums", *worst_sums(plan, same_cell=False), most_runs=_RUNS)


@worst_case(
    "subgroups_follow_up",
    SubgroupPlan,
    attacks=[FOLLOW_UP],
    pair="a treated record with the event in the first part of the horizon becomes a control followed to its end",
)
def _follow_up(budget: PrivacyBudget) -> Game:
    plan = _planned(PrivacyBudget(budget.epsilon / CURVE, 0.0), LAPLACE, censoring=Censoring("t", "d", 1.0))
    claim = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return replace(plan.game("follow_up", *worst_ends(plan), most_runs=_RUNS), guarantee=claim)


@worst_case(
    "subgroups_gaussian",
    SubgroupPlan,
    attacks=[Target(Charge(Purpose.RELEASE, SubgroupPlan.name), {"law": GAUSSIAN})],
    pair="a treated record turns from the highest outcome to the lowest one in its cells of two partitions",
)
def _gaussian(budget: PrivacyBudget) -> Game:
    plan = _planned(budget, GAUSSIAN)
    return plan.game("sums", *worst_sums(plan, same_cell=True), most_runs=_RUNS)


@worst_case(
    "subgroups_pairs",
    SubgroupPlan,
    attacks=[Target(Charge(Purpose.RELEASE, SubgroupPlan.name), {"pairs": None})],
    pair="a pair of the largest difference becomes one of the least in other cells of two partitions",
)
def _pairs(budget: PrivacyBudget) -> Game:
    plan = _planned(PrivacyBudget(budget.epsilon, 0.0), LAPLACE, Pairs("pair"))
    return plan.game("sums", *worst_sums(plan, same_cell=False), most_runs=_RUNS)
