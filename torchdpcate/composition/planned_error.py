"""The noise and the error to expect of a composition, from its public plan."""

import math

import torch

from torchdpcate.composition.asked import held_shares
from torchdpcate.composition.expectations import LOGIT_CONSTANT, LOGIT_PRIOR, NUISANCES, WANDERING, logit_curvature
from torchdpcate.composition.plan import ComposedPlan


def effect_errors(plan: ComposedPlan) -> tuple[float, float]:
    r"""Return the root mean squared errors of the effect's constant, and of how it varies, in residual scales S.

    They are what noise and prior leave:

    .. math:: \sqrt{v_0}, \quad \Big(g - \sum_j \big(f_j g_j (2 w_j - w_j^2) - v_j w_j^2\big)\Big)^{1/2}, \quad
        w_j = \frac{p_j}{p_j + v_j}

    with the prior variance g of all that varies, whether it is asked for or not, its parts g_j, of which the kept
    covariates hold the shares f_j, and the prior variances p_j by which the plan shrinks. An effect that is one
    number in any case does not vary.

    Args:
        plan: Of the composition.
    """
    effect, variance = plan.effect(), plan.priors.head_variance
    noise = effect.noise / effect.basis.energies
    if plan.constant_only:
        return math.sqrt(float(noise[0])), 0.0
    weight = effect.prior / (effect.prior + noise[1:])
    features = effect.basis.features
    held = held_shares(features, plan.kept, plan.covariates) * effect.prior * variance / plan.shrinking_variance
    explained = held * (2 * weight - weight**2) - noise[1:] * weight**2
    return math.sqrt(float(noise[0])), math.sqrt(max(variance - float(explained.sum()), 0.0))


def effect_error(plan: ComposedPlan) -> float:
    """Return the root mean squared error of the effect that noise and prior leave, in residual scales S.

    Args:
        plan: Of the composition.
    """
    return math.hypot(*effect_errors(plan))


def effect_noise(plan: ComposedPlan) -> float:
    r"""Return the standard deviation of the effect's noise before it is shrunk, in residual scales S.

    .. math:: 1.3\, \sigma \Big(\sum_j 1/e_j\Big)^{1/2}

    over records like those that were fitted; the factor is for the nuisances' noise, and for propensities away from
    one half (``experiments/defaults/noise.py``).

    Args:
        plan: Of the composition.
    """
    regression = plan.effect()
    return NUISANCES * math.sqrt(float((regression.noise / regression.basis.energies).sum()))


def planned_noise(plan: ComposedPlan, outcome_range: float, scale: float | None = None) -> float:
    """Return the noise to expect of the effect before it is shrunk, in outcome units.

    Args:
        plan: Of the composition.
        outcome_range: Of the domain.
        scale: The effect's scale as released, in outcome units, if it is known; None takes a fourteenth of the range
            for that of residuals, which may be off by a factor of three.
    """
    return effect_noise(plan) * _residual_scale(plan, outcome_range, scale)


def planned_error(plan: ComposedPlan, outcome_range: float, scale: float | None = None) -> float:
    """Return the error to expect of the effect, in outcome units; it falls as n and the budget grow.

    The effect's own noise after shrinkage, and what the plan does not ask for, by its priors.

    Args:
        plan: Of the composition.
        outcome_range: Of the domain.
        scale: As of ``planned_noise``.
    """
    return effect_error(plan) * _residual_scale(plan, outcome_range, scale)


def propensity_noise(plan: ComposedPlan) -> float:
    r"""Return the root mean squared noise and sampling error to expect of the estimated propensity.

    .. math:: 0.2\, \Big(\sum_j \frac{v_j}{(1 + v_j / g_j)^2}\Big)^{1/2}, \quad
        v_j = \frac{1.1\,\sigma^2}{e_j} + \frac{5}{n}

    over the features of its regression, g_j their prior variances by its ridge.

    Args:
        plan: Of a composition that estimates the propensity.
    """
    regression, sampling = plan.propensity(), 1 / (logit_curvature(plan.treated) * plan.n)
    variance = WANDERING * regression.noise / regression.basis.energies + sampling
    if plan.budget is None:  # where sampling is what features are held against, and counted
        variance = variance.new_full(variance.shape, sampling)
    prior = torch.cat([variance.new_tensor([LOGIT_CONSTANT]), LOGIT_PRIOR * regression.prior])
    return logit_curvature(plan.treated) * math.sqrt(float((variance / (1 + variance / prior).square()).sum()))


def _residual_scale(plan: ComposedPlan, outcome_range: float, scale: float | None) -> float:
    """Return the residual scale S in outcome units: planned, or by the effect's released one."""
    return outcome_range * plan.residual_scale if scale is None else scale / plan.score_scale
