"""The one composition on all records behind a learner of effects: what it refuses, plans, fits and guarantees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from torchdpcate.composition.noisy_newton import NoisyNewton
from torchdpcate.composition.nuisances import Additive, Auto
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import ComposedFit, RecordsFit, fit_composition
from torchdpcate.composition.settings import AdaptiveSecondStage, known_propensities, two_levels
from torchdpcate.composition.streamed import check_streamed, stream_composition
from torchdpcate.data.domain import Domain
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.cate.mechanisms.composed import Composed
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, own_code
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True, eq=False)
class Composition:
    """A learner's settings of its composition, with the public facts that it is planned by.

    Attributes:
        settings: Of the second stage and its nuisances.
        schema: Of the records.
        budget: Of the fit; None without privacy.
        plans: Its kind of plan; None where the learner has none.
        learner: Name of the learner's class.
    """

    settings: AdaptiveSecondStage
    schema: TableSchema
    budget: PrivacyBudget | None
    plans: type[ComposedPlan] | None
    learner: str

    def check(self, mechanism: Mechanism, of_blocks: Sequence[str]) -> None:
        """Refuse what a composition does not have.

        Args:
            mechanism: Of the release.
            of_blocks: Names of given settings that only blocks have.

        Raises:
            InputError: Another mechanism, a learner without a composition, or such a setting.
        """
        if not isinstance(mechanism, Composed):
            raise InputError(
                f"mechanism = {mechanism.name}: second_stage = adaptive pays for its release while it is fitted; use "
                f"second_stage=linear with mechanism={mechanism.name}, or leave the mechanism out"
            )
        if self.plans is None:
            raise InputError(f"second_stage = adaptive: {self.learner} has no composition; use RLearner or DRLearner")
        if of_blocks:
            raise InputError(
                f"{of_blocks[0]}: second_stage = adaptive takes all records in every stage and has nuisances of its "
                "own; leave it out, or use second_stage=linear"
            )

    def plan(self, n: int) -> ComposedPlan:
        """Return the public plan for n records.

        Raises:
            InputError: No plan for this budget and these settings.
        """
        assert self.plans is not None
        return self.settings.plan(n, self.budget, self.schema.domain, self.plans)

    def check_stream(self, n: int) -> None:
        """Refuse what a stream of records does not allow.

        Args:
            n: Number of records.

        Raises:
            InputError: Networks, another solver, or a plan that needs all records at once.
        """
        nuisance, solver = self.settings.nuisance, self.settings.solver
        if not isinstance(nuisance, Additive | Auto) or type(solver) is not NoisyNewton:
            raise InputError(
                "stream: networks and other solvers need all records at once; use nuisance=auto or additive and leave "
                "the solver out, or fit(X, A, Y)"
            )
        check_streamed(self.plan(n))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the guarantee rests on beside its proof: code of the user's."""
        own = own_code("second stage", self.settings) + own_code("second stage", self.settings.solver)
        return own + tuple(found for part in self.settings.nuisance.parts for found in own_code("nuisances", part))

    @property
    def guarantee(self) -> Guarantee:
        """Of the release, by the library's own code."""
        assert self.budget is not None
        page = "composed_effect" if self.budget.delta else "composed_pure_effect"
        return Guarantee(Level.CERTIFIED, self.budget, source=f"docs/guarantees/{page}.md")

    def fit(
        self, records: CausalData, plan: ComposedPlan, session: FitSession, trainer: "Callable[..., Trainer]"
    ) -> RecordsFit:
        """Run all steps.

        Args:
            records: All records, within the domain.
            plan: Of the composition.
            session: Pays.
            trainer: Makes a Lightning Trainer, where nuisances need one.
        """
        domain = self.schema.domain
        known, levels = known_propensities(records, domain), two_levels(self.schema)
        solver, nuisance = self.settings.learnt_by(self.budget)
        return fit_composition(records, domain, plan, session, solver, levels, known, nuisance.trained_by(trainer))

    def fit_stream(self, stream: RecordStream, plan: ComposedPlan, session: FitSession) -> ComposedFit:
        """Run all steps in passes over a stream; arguments as of ``fit``."""
        return stream_composition(stream, self.schema.domain, plan, session, two_levels(self.schema))


def composed_effect(fit: ComposedFit, domain: Domain, x: Tensor) -> Tensor:
    """Return the fitted effect at encoded covariates, [m]; the curator's.

    Args:
        fit: What a composition found.
        domain: Public bounds.
        x: Encoded covariates [m, q].
    """
    u, bound = domain.scale(x), domain.outcome_range
    z = fit.standardisation(u if fit.columns is None else u[:, list(fit.columns)])
    return (fit.effect.regression.basis(z) @ fit.effect.shrunk).clamp(-bound, bound)
