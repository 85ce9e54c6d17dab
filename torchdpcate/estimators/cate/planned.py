"""The noise to expect in the released effect of a composition."""

from torchdpcate.composition.builder import rebuilt
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import NO_DELTA, effect_errors, planned_error
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.planned_noise import ASKED, PlannedNoise, shown
from torchdpcate.privacy.budget import PrivacyBudget

GAIN = 1e-6
"""The delta whose gain plans with delta = 0 name."""
OF = "the effect at a typical covariate"
"""What planned noise is the noise of."""
_SCORES = ", scores at twice that, as they are where either arm has half of the records"
_ONE, _OTHERS = "constant", "variation"


def planned_composition(plan: ComposedPlan, domain: Domain, residual_scale: float | None = None) -> PlannedNoise:
    """Return the error that the noise and the priors of a composition leave of the effect.

    Args:
        plan: The public plan.
        domain: Public bounds.
        residual_scale: What public knowledge says of S, the scale at which residuals y - m(x) are clipped, in outcome
            units: about their standard deviation. None takes a fourteenth of the outcome's range.

    Raises:
        InputError: A scale beyond what residuals may have, or for a binary outcome, which has none.
    """
    assert plan.budget is not None
    scale = stated_scale(residual_scale, plan, domain) or plan.residual_scale * domain.outcome_range
    clipped = "nothing is clipped of a binary outcome"
    if not plan.binary:
        stated = residual_scale is not None
        clipped = f"residuals of the outcome are clipped at {shown(scale) if stated else '1/14 of its range'}"
        clipped += " (residual_scale, as given)" * stated
    clipped += _SCORES * (plan.score_scale > 1)
    constant, others = effect_errors(plan)
    return PlannedNoise.of_parts(
        {_ONE: scale * constant, _OTHERS: scale * others},
        OF,
        domain.outcome_range,
        plan.n,
        plan.budget,
        assumes=(
            f"{clipped}, and effects vary as the plan's prior expects: what the plan does not ask for counts as error",
        ),
        left_out=("sampling, and the noise in the outcome regression and the propensity",),
        remarks=(
            f"{ASKED}{plan.rung} effect of {plan.kept} of {domain.dimension} covariates",
            *_with_delta(plan, domain, scale),
        ),
    )


def _with_delta(plan: ComposedPlan, domain: Domain, scale: float) -> tuple[str, ...]:
    """Return what a small delta would gain, where there is none."""
    assert plan.budget is not None
    if plan.budget.delta > 0:
        return ()
    other = rebuilt(plan, budget=PrivacyBudget(plan.budget.epsilon, GAIN))
    now, then = (shown(planned_error(found, domain.outcome_range, scale)) for found in (plan, other))
    return (
        f"privacy.delta={GAIN:g} would make the expected error {then} instead of {now}, with {other.rung} effect",
        f"no intervals with {NO_DELTA}",
    )


def stated_scale(residual_scale: float | None, plan: ComposedPlan, domain: Domain) -> float | None:
    """Return the residual scale that was stated, if any; refuse what cannot be one."""
    if residual_scale is None:
        return None
    if plan.binary:
        raise InputError(f"residual_scale = {residual_scale}: a binary outcome's is its range; leave it out")
    most = domain.outcome_range / 2
    if not 0 < residual_scale <= most:
        raise InputError(
            f"residual_scale = {residual_scale}: give a number above 0 and at most {shown(most, 4)}, half the "
            "outcome's range: the standard deviation of outcomes of records alike, from public knowledge"
        )
    return float(residual_scale)
