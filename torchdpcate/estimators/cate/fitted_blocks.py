"""What a fit by blocks learnt, and its releases, which the blocks of the second stage pay for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate._process import gpu_memory
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.effect_plan import EffectPlan
from torchdpcate.estimators.cate.first_stage import TrainedFirstStage
from torchdpcate.estimators.cate.mechanisms.base import (
    MECHANISMS,
    FunctionMechanism,
    Mechanism,
    Prepared,
    QueryMechanism,
)
from torchdpcate.estimators.cate.mechanisms.offer import noise_at_queries
from torchdpcate.estimators.cate.online.correction import head_of
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.cate.procedure import Fitted, MakeStatement, Procedure
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Condition
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.second_stage.recipes import SecondStage
from torchdpcate.second_stage.stage import FittedStage, RKHSStage

OBJECTIVE = "objective"
"""The mechanism where the user names none: the one of least noise."""


@dataclass(frozen=True, eq=False)
class FittedBlocks(Fitted):
    """Trained nuisances, a fitted second stage, and the session that pays for its releases.

    Attributes:
        procedure: The settings that were fitted.
        n: Number of records.
        first: Nuisances and the columns in use.
        second_stage: Settings of the second stage, those that tuning chose.
        threshold: Private Huber threshold, in outcome units; None if none was needed.
        stage: The fitted second stage.
        schema: Columns and public bounds.
        session: Of the fit.
        pays: Names of the blocks that pay for releases.
        budget: What releases may spend at least; None without privacy.
        public: Learner, split and seed, public facts of the fit.
        own: What guarantees rest on: code of the user's.
        statement: Makes privacy statements.
    """

    procedure: Procedure
    n: int
    first: TrainedFirstStage
    second_stage: SecondStage
    threshold: float | None
    stage: FittedStage
    schema: TableSchema
    session: FitSession
    pays: Sequence[str]
    budget: PrivacyBudget | None
    public: Mapping[str, Any]
    own: tuple[Condition, ...]
    statement: MakeStatement

    def release_function(self, mechanism: "str | Mechanism | None", budget: PrivacyBudget | None) -> FunctionRelease:
        """Release the function by a function mechanism."""
        chosen = self._able(mechanism or OBJECTIVE)
        if not isinstance(chosen, FunctionMechanism):
            raise InputError(
                f"mechanism = {chosen.name}: answers finitely many queries; use release=queries (release_queries), "
                f"{'an online service (answer_online), ' if chosen.online else ''}or mechanism=objective"
            )
        private, own = self._spend(chosen, partial(chosen.privatize, self.stage), budget)
        return chosen.make_release(
            self.stage,
            private,
            features=chosen.features(self.stage).twin(self.first.nuisances),
            nuisances=self.first.nuisances,
            schema=self.schema,
            privacy=self._statement(chosen, private, own),
            columns=self.first.columns,
        )

    def release_queries(
        self,
        queries: Tensor,
        mechanism: "str | Mechanism | None",
        budget: PrivacyBudget | None,
        include_nuisances: bool,
    ) -> QueryRelease:
        """Release answers by a query mechanism, or a released function at the queries alone."""
        chosen = self._able(mechanism or OBJECTIVE)
        if isinstance(chosen, FunctionMechanism):
            function = self.release_function(chosen, budget)
            answers = function.effect_tensor(queries)
            scales = None if function.noise_scale is None else function._noise_scale(queries)
            privacy = function.privacy
        elif isinstance(chosen, QueryMechanism):
            run = partial(chosen.answer, self.stage, self.first.view(queries))
            private, own = self._spend(chosen, run, budget)
            bound = self.schema.domain.outcome_range
            answers = (self.plug_in_effect(queries) + private.output).clamp(-bound, bound)
            scales, privacy = private.noise_scales, self._statement(chosen, private, own)
        nuisances = self.first.nuisances if include_nuisances else None
        head = head_of(self.stage, self.first.columns)
        return QueryRelease(queries, answers, self.schema, privacy, scales, nuisances, head)

    def answer_online(
        self,
        folder: str | Path,
        mechanism: "str | Mechanism",
        budget: PrivacyBudget | None,
        counter: str | Path | None,
    ) -> OnlineService:
        """Set up a service by a mechanism that can."""
        chosen = self._able(mechanism)
        if not chosen.online:
            raise InputError(f"mechanism = {chosen.name}: does not answer online; use mechanism=gaussian_process")

        def create(budget: PrivacyBudget, session: FitSession) -> OnlineService:
            return OnlineService.create(
                folder,
                self.stage,
                self.first.nuisances,
                self.schema,
                budget=budget,
                session=session,
                statement=lambda terms: self._statement(chosen, terms, session.entries),
                columns=self.first.columns,
                counter=counter,
            )

        return self._spend(chosen, create, budget)[0]

    def effect(self, x: Tensor, stage: FittedStage | None = None) -> Tensor:
        """See ``Fitted``.

        Args:
            x: Encoded covariates.
            stage: The second stage; None takes the fitted one.
        """
        bound = self.schema.domain.outcome_range
        correction = (stage or self.stage).correction(self.first.view(x)).cpu()
        return (self.plug_in_effect(x) + correction).clamp(-bound, bound)

    def plug_in_effect(self, x: Tensor) -> Tensor:
        """Return mu1 - mu0 of the nuisances at encoded covariates, [m]."""
        with torch.no_grad():
            return self.first.nuisances.effect(self.first.view(x))

    def noise_at(self, queries: Tensor, budget: PrivacyBudget | None) -> dict[str, float]:
        """Return the noise of an answer at encoded queries by mechanism; see ``CATELearner.plan``."""
        if self.budget is None or not isinstance(self.stage, RKHSStage):
            raise InputError("plan: needs a budget and second_stage=linear, tangent or kernel_ridge")
        return noise_at_queries(self.stage, self.first.view(queries), budget or self.budget)

    def _able(self, mechanism: "str | Mechanism") -> Mechanism:
        """Return the mechanism if this fit can release by it."""
        self.procedure.check(self.n, mechanism)
        chosen: Mechanism = MECHANISMS.make(mechanism, Mechanism)
        return chosen

    def _spend(
        self, mechanism: Mechanism, run: Callable[..., Any], budget: PrivacyBudget | None
    ) -> tuple[Any, set[int]]:
        """Run a mechanism on what its blocks have left; return its result and ledger entries."""
        budget = self.session.budget if mechanism.free else budget
        charge = Charge(Purpose.RELEASE, mechanism.name)
        with gpu_memory(f"mechanism = {mechanism.name}", "lower queries.count or the second stage's features or width"):
            return self.session.spend(run, self.pays, charge, budget, mechanism.gaussian)

    def _statement(self, mechanism: Mechanism, result: Prepared, own: set[int]) -> PrivacyStatement:
        plan = EffectPlan(
            mechanism=mechanism,
            law=result.law,
            head=result.head,
            budget=result.budget,
            blocks=self.session.sizes,
            pays=tuple(self.pays),
            **self.public,
        )
        return self.statement(mechanism, result.guarantee.resting_on(self.own), plan.public(), own)
