"""The one composition on all records behind a learner of effects: what it refuses, plans, fits and guarantees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import MakeStatement
from torchdpcate.estimators.cate.fitted_composition import FittedComposition
from torchdpcate.estimators.cate.mechanisms.base import Composed, Mechanism, composed_mechanism
from torchdpcate.estimators.cate.planned import planned_composition
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.weighted_balance import weighted_balance
from torchdpcate.nuisance.trainer import check_device
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, own_code
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

RECORDS = "records"
"""The one block of a composition."""


@dataclass(frozen=True, eq=False)
class Composition:
    """A learner's settings of its composition, with the public facts that it is planned by.

    Attributes:
        settings: Of the second stage and its nuisances.
        schema: Of the records.
        budget: Of the fit; None without privacy.
        plans: Its kind of plan; None where the learner has none.
        learner: Name of the learner's class.
        of_blocks: Names of settings that were given and that only blocks have.
        trainer: Makes a Lightning Trainer, where nuisances need one.
    """

    settings: AdaptiveSecondStage
    schema: TableSchema
    budget: PrivacyBudget | None
    plans: str | None
    learner: str
    of_blocks: Sequence[str]
    trainer: "Callable[..., Trainer]"
    _planned: dict[int, ComposedPlan] = field(default_factory=dict, repr=False)

    def blocks(self, n: int) -> dict[str, Tensor]:
        """Return the one block of all records."""
        self.plan(n)
        return {RECORDS: torch.arange(n)}

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
        if self.plans is None:
            raise InputError(f"second_stage = adaptive: {self.learner} has no composition; use RLearner or DRLearner")
        if self.of_blocks:
            raise InputError(
                f"{self.of_blocks[0]}: second_stage = adaptive takes all records in every stage and has nuisances of "
                "its own; leave it out, or use second_stage=linear"
            )
        if n not in self._planned:
            self._planned[n] = self.settings.plan(n, self.budget, self.schema.domain, self.plans)
        return self._planned[n]

    @property
    def needs_all_records(self) -> str | None:
        """See ``PrivateEstimator``."""
        return self.settings.needs_all_records

    def fit(
        self, records: CausalData | RecordStream, session: FitSession, statement: MakeStatement
    ) -> FittedComposition:
        """Run all steps, which pay for the release too; over a stream in passes."""
        plan = self.plan(records.n)
        check_device(self.trainer)
        pays = session.scope([RECORDS], Charge(Purpose.RELEASE, Composed.name), bool(self._conditions))
        domain, levels = self.schema.domain, self.schema.two_levels
        solver, nuisance = self.settings.learnt_by(self.budget, isinstance(records, RecordStream))
        rows, nuisance = rows_of(records, domain), nuisance.trained_by(self.trainer)
        found = fit_composition(rows, domain, plan, pays, levels, solver, nuisance)
        balance, guarantee = None, self._guarantee
        if isinstance(records, CausalData):
            balance = weighted_balance(domain, records, found.propensity)
        return FittedComposition(found, plan, self.schema, guarantee, self.learner, pays.entries, statement, balance)

    def expected_noise(self, n: int, mechanism: "str | Mechanism | None", residual_scale: float | None) -> PlannedNoise:
        """Return the error that all its noise and its priors leave; a mechanism changes nothing of it."""
        composed_mechanism(mechanism)
        self.plan(n)
        return planned_composition(self.plan(n), self.schema.domain, residual_scale)

    @property
    def _conditions(self) -> tuple[Condition, ...]:
        """What the guarantee rests on beside its proof: code of the user's."""
        own = own_code("second stage", self.settings) + own_code("second stage", self.settings.solver)
        return own + tuple(found for part in self.settings.nuisance.parts for found in own_code("nuisances", part))

    @property
    def _guarantee(self) -> Guarantee | None:
        """Of the release."""
        if self.budget is None:
            return None
        certified = Guarantee(Level.CERTIFIED, self.budget, source="docs/guarantees/composed_effect.md")
        return certified.resting_on(self._conditions)
