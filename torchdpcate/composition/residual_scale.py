"""The clip of residuals: a released quantile of their sizes, also where most outcomes are one number."""

from collections.abc import Callable
from typing import NamedTuple

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.summaries import LEAST_SCALE

OUTCOME, RESIDUAL = "outcome scale", "residual scale"
"""Steps that release one quantile each."""
_FEW = 0.95  # quantile that is asked for then
_NEITHER = 1 / 8  # of the interval, where that one is nothing too: about the residual scale of plans

Quantile = Callable[[float, str], float]
"""From a level and a step to the quantile of sizes, in [0, y_range / 2], that the step releases."""


class OutcomeScale(NamedTuple):
    """Clip of the outcome's regression.

    Attributes:
        clip: In outcome units.
        few: Whether most records have one outcome; the clip is that of all later steps then, and ``RESIDUAL`` is spent.
    """

    clip: float
    few: bool = False


def outcome_scale(quantile: Quantile, plan: ComposedPlan, y_range: float) -> OutcomeScale:
    """Return the clip of outcomes about their released centre.

    Where so many outcomes are one number (no cost, no visit, a 0 of 0 and 1) that the planned quantile is nothing,
    clipping there would leave all others without a say, and the effect nearly zero. The step of the residual's scale
    then asks for a higher quantile of the outcome's sizes: which level it asks for depends on what was released before,
    what it costs does not.

    Args:
        quantile: Of the outcome's sizes |y - centre|.
        plan: The public plan.
        y_range: Of the outcome.
    """
    found = quantile(plan.huber_quantile, OUTCOME)
    if found >= y_range * LEAST_SCALE:
        return OutcomeScale(found)
    found = quantile(_FEW, RESIDUAL) if RESIDUAL in plan.shares.shares else 0.0
    if found < y_range * LEAST_SCALE:
        found = y_range / 2 * (_NEITHER + 0.5 ** (plan.constants.quantile_levels + 1))  # on the quantile's grid
    return OutcomeScale(found, few=True)


def residual_scale(quantile: Quantile, plan: ComposedPlan, y_range: float, outcome: OutcomeScale) -> float:
    """Return the clip S of residuals y - m.

    Args:
        quantile: Of the residuals' sizes.
        plan: The public plan.
        y_range: Of the outcome.
        outcome: The outcome's clip, which stands where it is that of all steps, or where the plan has no other.
    """
    if outcome.few or RESIDUAL not in plan.shares.shares:
        return outcome.clip
    return max(quantile(plan.huber_quantile, RESIDUAL), y_range * LEAST_SCALE)
