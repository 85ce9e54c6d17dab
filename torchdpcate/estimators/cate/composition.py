"""The one composition on all records behind a learner of effects: what it refuses, plans, fits and guarantees."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.composition.builder import rebuilt
from torchdpcate.composition.linear_fit import Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import effect_errors
from torchdpcate.composition.records import ComposedFit, fit_composition, rows_of
from torchdpcate.composition.settings import AdaptiveSecondStage, ComposedNuisance, LightningFit, WideAndDeep
from torchdpcate.data.assignment import NO_INTERVALS
from torchdpcate.data.checked import keyed_digest
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balance import Comparability, comparability, weighted_balance
from torchdpcate.estimators.base import MakeStatement
from torchdpcate.estimators.cate.composition_plan import CompositionPlan, planned_composition
from torchdpcate.estimators.cate.mechanisms.base import Composed, Mechanism, composed_mechanism
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.fit.trainer import check_device, user_trainer
from torchdpcate.fit.weighted_basis import effects_of
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, user_code
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import BalanceTable
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import QueryRelease

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_ON_THE_CPU = (
    "trainer.accelerator = {}: this plan trains no network, and its sums over records run on the CPU, for which their "
    "rounding is proved; nuisance=additive (or mlp) trains on the device"
)


@dataclass(frozen=True, eq=False)
class FittedComposition:
    """What a composition found, and what its release says.

    Attributes:
        found: By the steps.
        plan: The public plan.
        schema: Columns and public bounds.
        guarantee: Of a release.
        learner: Name of the learner's class.
        entries: What the steps entered in the ledger.
        statement: Makes privacy statements.
        balance: Of the covariates by the propensity, the curator's; None of more than two arms, or of streams.
        comparable: Works out whether treated and controls can be compared; as ``balance``.
    """

    found: ComposedFit
    plan: ComposedPlan
    schema: TableSchema
    guarantee: Guarantee | None
    learner: str
    entries: set[int]
    statement: MakeStatement
    balance: BalanceTable | None = None
    comparable: Callable[[], Comparability] | None = None

    def release_function(self, mechanism: "str | Mechanism | None", budget: PrivacyBudget | None) -> ComposedRelease:
        """Return the release that the fit has paid for, the same one each time."""
        chosen = composed_mechanism(mechanism)
        if budget is not None:
            raise InputError("budget: second_stage = adaptive has spent the learner's budget in fit; leave it out")
        assert self.guarantee is not None
        plan = CompositionPlan(self.plan, self.schema, self.learner)
        guarantee = self.guarantee.resting_on(user_code("mechanism", chosen))
        privacy = self.statement(plan, guarantee, plan.public(), self.entries)
        return plan.conclude(plan.answers_of(self.found), privacy)

    def release_queries(
        self,
        queries: Tensor,
        mechanism: "str | Mechanism | None",
        budget: PrivacyBudget | None,
        include_nuisances: bool,
    ) -> QueryRelease:
        """Return the released function at the queries alone."""
        self.schema.two_arms("release_queries")
        if include_nuisances:
            raise InputError(
                "include_nuisances = True: the nuisances of second_stage = adaptive serve their one effect; leave it "
                "out, or use second_stage=linear"
            )
        function = self.release_function(mechanism, budget)
        return QueryRelease(queries, function.effect_tensor(queries), self.schema, function.privacy)

    def effect(self, x: Tensor) -> Tensor:
        """Return the effects at encoded covariates, [m]: the steps' noise is in it, and nothing is rounded.

        Of K > 2 arms [m, K - 1].
        """
        domain = self.schema.domain
        u, bound = domain.scale(x), domain.outcome_range
        return effects_of(self.found.features(u), self.found.effect.shrunk, self.plan.arms).clamp(-bound, bound)

    def planned_error(self) -> float:
        """Return the root mean squared error to expect at the released residual scale, in outcome units; public."""
        return effect_errors(self.plan, self.schema.domain, self.found.effect.scale).total


RECORDS = "records"
"""The one block of a composition."""


@dataclass(frozen=True, eq=False)
class Composition:
    """A learner's settings of its composition, with the public facts that it is planned by.

    Attributes:
        settings: Of the second stage and its nuisances.
        schema: Of the records.
        budget: Of the fit; None without privacy.
        composes: Whether the learner has a composition.
        learner: Name of the learner's class.
        of_blocks: Names of settings that were given and that only blocks have.
        trainer: Makes a Lightning Trainer, where nuisances need one.
    """

    settings: AdaptiveSecondStage
    schema: TableSchema
    budget: PrivacyBudget | None
    composes: bool
    learner: str
    of_blocks: Sequence[str]
    trainer: "Callable[..., Trainer]"
    _planned: dict[int, ComposedPlan] = field(default_factory=dict, repr=False)

    def blocks(self, n: int) -> dict[str, Tensor]:
        """Return the one block of all records."""
        return {RECORDS: torch.arange(self.plan(n).n)}

    def check(self, n: int, mechanism: "str | Mechanism | None") -> None:
        """Refuse what a composition does not have.

        Raises:
            InputError: Another mechanism, a learner without a composition, a setting that only blocks have, no plan for
                this budget, or a Trainer whose device is not there.
        """
        composed_mechanism(mechanism)
        self.plan(n)
        check_device(self.trainer)

    def plan(self, n: int) -> ComposedPlan:
        """Return the public plan for n records.

        Raises:
            InputError: A learner without a composition, a setting that only blocks have, or no plan for this budget.
        """
        if not self.composes:
            raise InputError(
                f"second_stage = adaptive: {self.learner} has no composition; use RLearner (learner=r), or "
                "second_stage=linear"
            )
        if self.of_blocks:
            raise InputError(
                f"{self.of_blocks[0]}: second_stage = adaptive takes all records in every stage and has nuisances of "
                "its own; leave it out, or use second_stage=linear"
            )
        if n not in self._planned:
            self._planned[n] = self._settings.plan(n, self.budget, self.schema.domain, len(self.schema.actions))
        return self._planned[n]

    @property
    def _settings(self) -> AdaptiveSecondStage:
        """The settings without intervals and lines where records come in clusters."""
        settings = self.settings
        if self.schema.cluster is None:
            return settings
        if settings.intervals is True:
            raise InputError(f"intervals = true: {NO_INTERVALS}; leave intervals=auto")
        if settings.lines not in (False, "auto"):
            raise InputError(f"lines = {settings.lines!r}: {NO_INTERVALS}; leave lines=auto")
        return replace(settings, intervals=False, lines=False)

    @property
    def needs_all_records(self) -> str | None:
        return self.settings.needs_all_records

    takes_censored = True
    """See ``PrivateEstimator``."""

    @property
    def needs_equal_records(self) -> str | None:
        """See ``PrivateEstimator``: weights are of sums over records, as streams are."""
        return self.settings.needs_all_records

    def fit(
        self, records: CausalData | RecordStream, session: FitSession, statement: MakeStatement
    ) -> FittedComposition:
        """Run all steps, which pay for the release too; over a stream in passes."""
        plan = self.plan(records.n)
        device = check_device(self.trainer)
        domain, levels = self.schema.domain, self.schema.domain.two_levels
        site = self.settings.site
        by_sums = isinstance(records, RecordStream) or plan.weight is not None or site is not None
        if by_sums and plan.units:
            plan = rebuilt(plan, hidden=False)  # which trains nothing
        solver, nuisance = self.settings.learnt_by(self.budget, by_sums)
        rows, nuisance = rows_of(records, domain, self.schema.actions), nuisance.trained_by(self.trainer)
        conditions = self._conditions(plan, solver, nuisance)
        pays = session.charging([RECORDS], Charge(Purpose.RELEASE, Composed.name), bool(conditions))
        if device.type != "cpu" and not any(nuisance.chosen(step, plan).trains for step in plan.shares.shares):
            warnings.warn(_ON_THE_CPU.format(device.type), stacklevel=2)
        if site is not None:  # before anything is paid
            facts = CompositionPlan(plan, self.schema, self.learner).agreed()
            site.begin(facts, keyed_digest(records), session.reservation is not None)
        own: tuple[Any, ...] = solver, nuisance, site, self.schema, self.settings.rule
        found = fit_composition(rows, domain, plan, pays, levels, *own)
        own = None, None
        if isinstance(records, CausalData) and plan.arms == 2:
            pi = found.propensity
            own = weighted_balance(domain, records, pi), partial(comparability, self.schema, records, pi)
        guarantee = self._guarantee(conditions)
        return FittedComposition(found, plan, self.schema, guarantee, self.learner, pays.entries, statement, *own)

    def expected_noise(self, n: int, mechanism: "str | Mechanism | None", residual_scale: float | None) -> PlannedNoise:
        """Return the error that all its noise and its priors leave; a mechanism changes nothing of it."""
        composed_mechanism(mechanism)
        self.plan(n)
        return planned_composition(self.plan(n), self.schema, residual_scale)

    def _conditions(self, plan: ComposedPlan, solver: Solver, nuisance: ComposedNuisance) -> tuple[Condition, ...]:
        """What the guarantee rests on beside its proof: code of the user's, its Trainer where one trains."""
        own = user_code("second stage", self.settings) + user_code("second stage", self.settings.solver)
        own += tuple(found for part in self.settings.nuisance.parts for found in user_code("nuisances", part))
        learners = [nuisance.chosen(step, plan) for step in plan.shares.shares]
        learners += [nuisance.network] if plan.units and nuisance.network is not None else []
        parts = [solver, *(part for learner in learners for part in learner.parts)]
        under = [user_trainer(part.trainer) for part in parts if isinstance(part, WideAndDeep | LightningFit)]
        return tuple(dict.fromkeys([*own, *(found for some in under for found in some)]))

    def _guarantee(self, conditions: Sequence[Condition]) -> Guarantee | None:
        """Of the release."""
        if self.budget is None:
            return None
        certified = Guarantee(Level.CERTIFIED, self.budget, source="docs/guarantees/composed_effect.md")
        return certified.resting_on(conditions)
