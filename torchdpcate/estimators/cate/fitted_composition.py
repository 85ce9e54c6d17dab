"""What one composition learnt, and the release that it has paid for."""

from dataclasses import dataclass

from torch import Tensor

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import planned_error
from torchdpcate.composition.records import ComposedFit
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import MakeStatement
from torchdpcate.estimators.cate.composition_plan import CompositionPlan
from torchdpcate.estimators.cate.mechanisms.base import Mechanism, composed_mechanism
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, own_code
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.released_weights import BalanceTable


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
    """

    found: ComposedFit
    plan: ComposedPlan
    schema: TableSchema
    guarantee: Guarantee | None
    learner: str
    entries: set[int]
    statement: MakeStatement
    balance: BalanceTable | None = None

    def release_function(self, mechanism: "str | Mechanism | None", budget: PrivacyBudget | None) -> ComposedRelease:
        """Return the release that the fit has paid for, the same one each time."""
        chosen = composed_mechanism(mechanism)
        if budget is not None:
            raise InputError("budget: second_stage = adaptive has spent the learner's budget in fit; leave it out")
        assert self.guarantee is not None
        plan = CompositionPlan(self.plan, self.schema, self.learner)
        guarantee = self.guarantee.resting_on(own_code("mechanism", chosen))
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
        if include_nuisances:
            raise InputError(
                "include_nuisances = True: the nuisances of second_stage = adaptive serve their one effect; leave it "
                "out, or use second_stage=linear"
            )
        function = self.release_function(mechanism, budget)
        return QueryRelease(queries, function.effect_tensor(queries), self.schema, function.privacy)

    def effect(self, x: Tensor) -> Tensor:
        """Return the effects at encoded covariates, [m]: the steps' noise is in it, and nothing is rounded."""
        domain = self.schema.domain
        u, bound = domain.scale(x), domain.outcome_range
        z = self.found.standardisation(u if self.found.columns is None else u[:, list(self.found.columns)])
        return (self.found.effect.regression.basis(z) @ self.found.effect.shrunk).clamp(-bound, bound)

    def planned_error(self) -> float:
        """Return the root mean squared error to expect at the released residual scale, in outcome units; public."""
        return planned_error(self.plan, self.schema.domain.outcome_range, self.found.effect.scale)
