"""How each regression is set up, and what follows from its released numbers and public facts."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchdpcate.composition.constants import EXPECTED, logit_curvature
from torchdpcate.composition.linear_fit import FitPlan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.priors import EmpiricalBayes, Regression

_TYPICAL = 0.95  # of a feature's mean square times 1/|psi|, in weights
_MOST_LOGISTIC = 0.25  # curvature
_EFFECT_PRIOR = 4.0  # variance over the planned one: a weak ridge
_CLIPPED, _LOGISTIC = 0.5, 0.2  # variance of a record's pull, in squared bounds
_INTERVAL_RIDGE = 0.1  # of the effect's ridge: intervals undo it to first order alone


def outcome_plan(
    plan: ComposedPlan, regression: Regression, curvatures: Tensor, scale: float, centre: float = 0.0
) -> FitPlan:
    """Return how the outcome regression is set up, of released curvatures [1 + p, 1 + p] and scale.

    Args:
        plan: The public plan.
        regression: What is requested.
        curvatures: Released.
        scale: Released.
        centre: Released; of counts, whose logarithm has a curvature of about their level.
    """
    level = count_level(centre, scale) if plan.log_link else 1.0
    d = curvatures.diagonal()
    noise, curvature = plan.gradient_noise("outcome", scale, len(d)), plan.inside * plan.mass
    prior = weak_prior(regression, "outcome", scale)
    ridge = (noise**2 + _CLIPPED * plan.mass * d * scale**2) / (curvature * d * prior)
    return _requested(plan, "outcome", level * curvature * curvatures, level * ridge)


def logistic_plan(
    plan: ComposedPlan, step: str, regression: Regression, curvatures: Tensor
) -> tuple[FitPlan, Callable[[Tensor], Tensor]]:
    """Return how a logistic regression is set up, of curvatures [1 + p, 1 + p], and how it is shrunk.

    Where few are treated by a public share, its curvature is smaller, and it starts from the constant of that share.
    """
    noise = plan.gradient_noise(step, plan.slope(step), len(curvatures))
    treated = None if step == "outcome" or plan.arms > 2 else plan.treated
    held = logit_curvature(treated)
    curvature = (held + 0.01) * plan.mass * curvatures
    sampling = held * plan.mass * curvatures
    prior = weak_prior(regression, "logit", 1.0)
    ridge = (noise**2 + sampling.diagonal()) / (curvature.diagonal() * prior)
    requested = _requested(plan, step, curvature, ridge, _MOST_LOGISTIC)
    if treated is not None:
        start = torch.zeros_like(ridge)
        start[0] = math.log(treated / (1 - treated)) / math.sqrt(float(regression.basis.feature_weights[0]))
        requested = replace(requested, start=start)
    variances = _variances(curvature, noise**2, sampling)

    def shrink(theta: Tensor) -> Tensor:
        estimates = without_ridge(theta, requested)
        return shrunk(regression, theta, estimates, variances, EXPECTED.logit_size, plan.constants.spike)

    return requested, shrink


def effect_plan(
    plan: ComposedPlan, regression: Regression, curvatures: Tensor, scale: float, step: str = "effect"
) -> FitPlan:
    """Return how the effect is set up, of released curvatures [1 + p, 1 + p] and residual scale.

    Args:
        plan: The public plan.
        regression: What is requested.
        curvatures: Released, or planned ones.
        scale: S.
        step: That pays.
    """
    noise, curvature, sampling = _effect_noise(plan, curvatures, scale, step)
    prior = weak_prior(regression, "effect", scale)
    prior = prior.repeat(len(curvatures) // len(prior))
    ridge = (noise**2 + sampling.diagonal()) / (curvature.diagonal() * prior)
    if plan.intervals:
        ridge = ridge * _INTERVAL_RIDGE
    return _requested(plan, step, curvature, ridge)


def _requested(plan: ComposedPlan, step: str, curvature: Tensor, ridge: Tensor, most: float = 1.0) -> FitPlan:
    ridge = ridge.clamp_min(plan.least_ridge(step, most))
    steps = plan.steps, plan.burn_in, plan.constants.burn_in, plan.step_size
    return FitPlan(step, curvature.diagonal(), ridge, *steps, curvature, plan.momentum)


def count_level(centre: float, scale: float) -> float:
    """Return the mean of counts that a score of zero stands for, of released numbers: the centre, if it is not small.

    Example:
        >>> count_level(7.0, 3.0), count_level(0.0, 1.0)
        (7.0, 0.5)
    """
    return max(centre, scale / 2)


def effect_coefficients(
    plan: ComposedPlan, regression: Regression, estimates: Tensor, variances: Tensor, scale: float
) -> Tensor:
    """Return the effect's coefficients, [1 + p]: shrunk estimates, or the estimates where the plan shrinks nothing.

    Those of more than two arms are K - 1 times as many, each function's after the other's.

    Args:
        plan: The public plan.
        regression: Which features they belong to.
        estimates: t, [1 + p].
        variances: v, [1 + p].
        scale: S, released: the clip of the effect's residuals.
    """
    if not plan.shrinks:
        return estimates.clone()
    size = scale * plan.effect_size
    size_of_each = len(regression.basis.feature_weights)
    noise = plan.constants.shrinking_noise * variances
    each = zip(estimates.split(size_of_each), noise.split(size_of_each), strict=True)
    return torch.cat([shrunk(regression, t, t, v, size, plan.constants.spike) for t, v in each])


def planned_curvatures(regression: Regression) -> Tensor:
    """Return the mean curvatures that a plan expects of a nuisance's features, [1 + p]."""
    return _TYPICAL * regression.basis.feature_weights


def effect_variances(plan: ComposedPlan, curvatures: Tensor, scale: float) -> Tensor:
    """Return v, the variances of the effect's estimates by noise and sampling, [1 + p]: all from released numbers.

    Args:
        plan: The public plan.
        curvatures: Released, [1 + p, 1 + p].
        scale: S, released.
    """
    noise, curvature, sampling = _effect_noise(plan, curvatures, scale)
    return _variances(curvature, plan.noise_inflation * noise**2, sampling)


def without_ridge(theta: Tensor, requested: FitPlan) -> Tensor:
    """Return coefficients [p] as they would be, to first order, without the ridge that they were requested with."""
    curvature = requested.scaling.diag() if requested.curvature is None else requested.curvature
    return theta + torch.linalg.solve(curvature, requested.ridge * theta)


def _variances(curvature: Tensor, noise: float, sampling: Tensor) -> Tensor:
    """Return the diagonal of A^-1 (noise I + sampling) A^-1, [p], for a curvature A and a variance of sums [p, p]."""
    return _covariance(curvature, noise, sampling).diagonal()


def _covariance(curvature: Tensor, noise: float, sampling: Tensor) -> Tensor:
    """Return A^-1 (noise I + sampling) A^-1, [p, p]."""
    inverse = torch.linalg.inv(curvature)
    return inverse @ (noise * torch.eye(len(curvature), dtype=torch.float64) + sampling) @ inverse


def _effect_noise(
    plan: ComposedPlan, curvatures: Tensor, scale: float, step: str = "effect"
) -> tuple[float, Tensor, Tensor]:
    """Return the noise of the effect's gradient as one event, its curvatures and the variances of its sampling."""
    noise = plan.gradient_noise(step, scale, len(curvatures))
    return noise, plan.inside * plan.mass * curvatures, plan.sampling * plan.mass * curvatures * scale**2


def shrunk(
    regression: Regression, theta: Tensor, estimates: Tensor, variances: Tensor, scale: float, spike: float
) -> Tensor:
    """Return coefficients whose parts are shrunk by empirical Bayes; the constant as it is.

    Args:
        regression: Which features they belong to.
        theta: Coefficients, of which the constant is retained.
        estimates: t, [1 + p].
        variances: v, [1 + p].
        scale: Of a part's function.
        spike: Prior probability that a part is zero.
    """
    found, feature_weights = theta.clone(), regression.basis.feature_weights
    if not bool((variances > 0).all()):
        return found
    for part in regression.basis.parts.values():
        sizes = scale / (len(part) * feature_weights[part]).sqrt()
        found[part] = EmpiricalBayes(spike).mean(estimates[part], variances[part], sizes)
    return found


def weak_prior(regression: Regression, what: str, scale: float) -> Tensor:
    """Return prior variances of coefficients that weak ridges stand for, [1 + p].

    Args:
        regression: Which features they belong to.
        what: ``outcome``, ``effect``, or ``logit`` of a probability.
        scale: Of the regression.
    """
    feature_weights = regression.basis.feature_weights
    if what == "logit":
        times, constant = EXPECTED.logit_prior, EXPECTED.logit_constant / float(feature_weights[0])
    else:
        times, constant = {"outcome": EXPECTED.outcome_prior, "effect": _EFFECT_PRIOR}[what] * scale**2, math.inf
    first = torch.tensor([constant], dtype=torch.float64)
    return torch.cat([first, times * regression.prior / feature_weights[1:]])


def logistic_variances(plan: ComposedPlan, step: str, curvatures: Tensor, per_person: int = 1) -> Tensor:
    """Return the covariance of a logit's estimates by noise and sampling, [1 + p, 1 + p], from released numbers.

    Args:
        plan: The public plan.
        step: ``propensity``, or ``outcome`` where it is binary.
        curvatures: Released, [1 + p, 1 + p].
        per_person: Records of each person, as many times as much sampling variance.
    """
    noise = 2 * plan.slope(step) / plan.shares.of(step)
    curvature = (_LOGISTIC + 0.01) * plan.mass * curvatures
    return _covariance(curvature, EXPECTED.noise_inflation * noise**2, per_person * _LOGISTIC * plan.mass * curvatures)


def outcome_variances(plan: ComposedPlan, curvatures: Tensor, scale: float, per_person: int = 1) -> Tensor:
    """Return that of the outcome regression's; see ``logistic_variances``; scale: at which residuals were clipped."""
    noise = 2 * scale / plan.shares.of("outcome")
    sampling = per_person * _CLIPPED * plan.mass * curvatures * scale**2
    return _covariance(plan.inside * plan.mass * curvatures, EXPECTED.noise_inflation * noise**2, sampling)
