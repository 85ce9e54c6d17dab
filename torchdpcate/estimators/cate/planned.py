"""The noise to expect in a released effect, of either kind of learner."""

import math

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.water_filling import expected_error
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.cate.planned_head import ASSUMED, PlannedHead
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level

ASKED = "the plan asks for: "
"""How a plan says what it asks for."""
_OF = "the effect at a typical covariate"
_NUISANCES = "the noise in private nuisances, which is often the larger"
_SCORES = ", scores at twice that, as they are where either arm has half of the records"
_ONE, _OTHERS = "constant", "variation"


def planned_composition(plan: ComposedPlan, domain: Domain) -> PlannedNoise:
    """Return the error that the noise and the priors of a composition leave of the effect.

    Args:
        plan: The public plan.
        domain: Public bounds.
    """
    assert plan.budget is not None
    scale = plan.residual_scale * domain.outcome_range
    effect = plan.effect()
    constant, _ = expected_error(effect.prior, effect.noise)
    others = math.sqrt(max(effect.error - constant, 0.0))
    return PlannedNoise.of_parts(
        {_ONE: scale * math.sqrt(constant), _OTHERS: scale * others},
        _OF,
        domain.outcome_range,
        plan.n,
        plan.budget,
        assumes=(
            f"residuals of the outcome are clipped at 1/{1 / plan.residual_scale:.0f} of its range"
            f"{_SCORES if plan.score_scale > 1 else ''}, and effects vary as the plan's prior expects: what the plan "
            "does not ask for counts as error",
        ),
        left_out=("sampling, and the noise in the outcome regression and the propensity",),
        remarks=(f"{ASKED}{plan.rung} effect of {plan.kept} of {domain.dimension} covariates",),
    )


def planned_head_noise(
    mechanism: Mechanism,
    head: PlannedHead | None,
    release: PrivacyBudget,
    domain: Domain,
    n: int,
    budget: PrivacyBudget,
    level: Level,
) -> PlannedNoise:
    """Return the noise of a second stage on a block of its own.

    Args:
        mechanism: That of the release.
        head: The second stage as plans expect it; None where it is no ridge regression.
        release: What the release may spend.
        domain: Public bounds.
        n: Number of records, of all blocks.
        budget: Of each block.
        level: Of the release.
    """
    value = math.nan if head is None else mechanism.planned(head, release)
    remarks: tuple[str, ...] = ()
    if head is not None and head.kept is not None and not mechanism.free:
        remarks = (f"the ridge of {head.ridge:.3g} leaves about {head.kept:.0%} of a correction as it is",)
    return PlannedNoise(
        value,
        _OF,
        domain.outcome_range,
        n,
        budget,
        {} if math.isnan(value) else {"second stage": value},
        level,
        assumes=() if math.isnan(value) else ASSUMED,
        left_out=(_NUISANCES, "sampling, and what the ridge shrinks"),
        remarks=remarks,
    )
