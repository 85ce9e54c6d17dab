"""What a user chooses of a composition."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.interval_gate import require_gate
from torchdpcate.composition.lightning_fit import LightningFit
from torchdpcate.composition.linear_fit import Solver
from torchdpcate.composition.noisy_newton import NoisyNewton
from torchdpcate.composition.nuisances import Additive, Auto, ComposedNuisance
from torchdpcate.composition.perturbed_objective import PerturbedObjective
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.pure_plan import kind_of_plan
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget


@dataclass(frozen=True)
class AdaptiveSecondStage:
    """The richest effect that n and the budget can carry, by one composition on all records.

    Nuisances and effect are steps of one public plan, which says how rich the effect is: one number, linear, or with
    squares, products and waves; see ``ComposedPlan``.

    Args:
        constant_only: Whether the effect is one number in any case.
        constants: Constants of the plan.
        solver: How its effect is solved.
        nuisance: How its outcome regression and propensity are learnt.
        intervals: Whether to ask for the numbers that intervals rest on, about a fifth of mu^2: true, false, or
            ``auto``, which asks where the domain knows the propensity. With an estimated one, true is refused where
            its planned noise is too large for intervals to hold.

    Raises:
        InputError: ``intervals`` is none of these.

    Example:
        >>> from torchdpcate import Domain
        >>> domain = Domain([0.0] * 3, [1.0] * 3, 0.0, 10.0)
        >>> AdaptiveSecondStage().plan(300, PrivacyBudget(0.5, 1e-6), domain).rung
        'constant'
    """

    choice: ClassVar[str] = "adaptive"

    constant_only: bool = False
    constants: PlanConstants = field(default_factory=PlanConstants)
    solver: Solver = field(default_factory=NoisyNewton)
    nuisance: ComposedNuisance = field(default_factory=Auto)
    intervals: bool | str = "auto"

    def __post_init__(self) -> None:
        if self.intervals not in (True, False, "auto"):
            raise InputError(f"intervals = {self.intervals!r}: give true, false or auto")

    def plan(
        self, n: int, budget: PrivacyBudget | None, domain: Domain, kind: type[ComposedPlan] = ComposedPlan
    ) -> ComposedPlan:
        """Return the public plan for n records of a domain.

        Args:
            n: Number of records.
            budget: Of all that the composition spends; None without privacy.
            domain: Public bounds.
            kind: The learner's kind of plan.

        Raises:
            InputError: Intervals where they would not hold, or settings that delta = 0 does not have.
        """
        known, constants = domain.known_propensity is not None, self.constants
        if budget is not None and budget.delta == 0:
            solver, _ = self.learnt_by(budget)
            if isinstance(constants, RuleConstants) and type(solver) is not PerturbedObjective:
                constants = replace(constants, sums_below=0.0)  # the effect is what the user's solver finds
        kind = kind_of_plan(budget, kind)
        plan = kind.of(
            n,
            budget,
            domain,
            constant_only=self.constant_only,
            constants=constants,
            intervals=known and kind.has_intervals if self.intervals == "auto" else bool(self.intervals),
        )
        require_gate(plan, self.nuisance.by_features is not None)
        return plan

    def learnt_by(self, budget: PrivacyBudget | None) -> tuple[Solver, ComposedNuisance]:
        """Return how the effect is solved and the nuisances are learnt: with delta = 0 by one pure event each.

        Args:
            budget: As of ``plan``.

        Raises:
            InputError: A network, or a solver of Gaussian steps, with delta = 0.
        """
        if budget is None or budget.delta > 0:
            return self.solver, self.nuisance
        if not isinstance(self.nuisance, Additive | Auto):
            raise InputError(
                f"delta = 0: nuisance {type(self.nuisance).__name__} is trained by DP-SGD, which is only (epsilon, "
                "delta)-private; use nuisance=auto, or give privacy.delta above 0, for instance 1e-6"
            )
        if isinstance(self.solver, LightningFit):
            raise InputError("delta = 0: solver = LightningFit takes Gaussian steps; leave the solver out")
        solver = PerturbedObjective() if type(self.solver) is NoisyNewton else self.solver
        return solver, Additive(PerturbedObjective())


def known_propensities(records: CausalData, domain: Domain, arms: int = 2) -> Tensor | None:
    """Return the known propensities of records, [n], or of K > 2 arms each, [n, K]; None where none are known."""
    known = domain.known_propensity
    if known is None:
        return None
    return known.of(records) if arms == 2 else known.arms_of(records)


def two_levels(schema: TableSchema) -> tuple[bool, ...]:
    """Return whether each encoded covariate has two levels by its schema, [q]."""
    return schema.two_levels
