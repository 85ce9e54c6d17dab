"""Whether a plan's budget is enough for the noise of each of its steps, by public facts, before any is drawn."""

import math

from torchdpcate.composition.arms_plan import ArmsPlan
from torchdpcate.composition.division import (
    AVERAGE,
    CORRECTION,
    COUNTS,
    HALVINGS,
    MATRIX,
    MODIFIERS,
    PAIRS,
    PROGNOSTIC,
    SCREENING,
    WINDOWS,
)
from torchdpcate.composition.doubly_robust import DoublyRobustPlan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.residual_scale import OUTCOME, RESIDUAL
from torchdpcate.composition.screening import CENTRE
from torchdpcate.composition.steps import gradient_rounding, mechanism_of
from torchdpcate.erm.private_fit import SOLVER_SHARE
from torchdpcate.errors import InputError
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.mechanisms import KNormMechanism

_QUANTILES = ("centre", OUTCOME, RESIDUAL)
_FEW = {COUNTS: 3, CORRECTION: 2, AVERAGE: 1}  # numbers that these steps release
_CURVATURES = " curvatures"


def require_noise(plan: ComposedPlan) -> None:
    """Refuse a budget of which a step's noise would be so large that its grid would matter.

    Each step would refuse it by itself, when those before it are paid for. Sizes are those of covariates without two
    levels, the most that a step can have.

    Args:
        plan: The public plan; nothing is refused without privacy.

    Raises:
        InputError: Names the step.
    """
    if not math.isfinite(plan.shares.total):
        return
    for step in plan.shares.shares:
        try:
            _require(plan, step)
        except InputError as error:
            raise InputError(f"privacy.epsilon: too small for step {step!r} on n = {plan.n}: {error}") from error


def _require(plan: ComposedPlan, step: str) -> None:
    whole = plan.shares.event(step)
    pure = isinstance(whole, PureEvent)
    if step in _QUANTILES and not pure:
        mechanism_of(plan.shares.event(step, count=plan.constants.quantile_levels), 1.0, 1).released_scale(1)
    elif step == WINDOWS:
        size = 2 * (plan.covariates if plan.numbers is None else plan.numbers)
        mechanism_of(plan.shares.event(step, count=HALVINGS), 1.0, size).released_scale(size)
    elif step in (PROGNOSTIC, MODIFIERS, PAIRS):
        mechanism_of(plan.shares.event(step, CENTRE), 1.0, 1).released_scale(1)
    elif step in _QUANTILES or step == SCREENING:
        return  # choices, whose noise is on no grid
    elif step == "moments" or step in _FEW or step == MATRIX or step.endswith(_CURVATURES):
        size = _released(plan, step)
        mechanism_of(whole, 1.0, size).released_scale(size)
    elif isinstance(whole, PureEvent):
        p, sums = _features(plan, step), plan.by_sums and step == "effect"
        epsilon = whole.epsilon * (1 if sums else SOLVER_SHARE)
        KNormMechanism(epsilon, 1.0, math.inf if sums else 2.0).released_scale(p)
    else:
        gradient_rounding(plan.shares.event(step, 0.5, plan.steps), _features(plan, step))


def _released(plan: ComposedPlan, step: str) -> int:
    """Return how many numbers a step's one event releases."""
    if step == "moments":
        return 2 * (plan.covariates if plan.windows else plan.kept)
    if step in _FEW:
        return _FEW[step]
    p = _features(plan, "effect" if step == MATRIX else step.removesuffix(_CURVATURES))
    return p * (p + 1) // 2


def _features(plan: ComposedPlan, regression: str) -> int:
    """Return how many coefficients a regression has."""
    if regression == "effect":
        return plan.effect().basis.dimension * (plan.arms - 1 if isinstance(plan, ArmsPlan) else 1)
    if regression == "outcome":
        return len((plan.arms() if isinstance(plan, DoublyRobustPlan) else plan.outcome()).basis.energies)
    return plan.propensity().basis.dimension
