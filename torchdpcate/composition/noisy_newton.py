"""Noisy Newton points: full-batch gradients with noise, and the mean of the solutions that each points to."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import Curvature, FitPlan, LinearFit, Solution, Solver
from torchdpcate.composition.newton_points import NewtonPoints
from torchdpcate.composition.steps import NoisySteps

_EXACT = 25  # steps without privacy


@dataclass(frozen=True)
class NoisyNewton(Solver):
    r"""Full-batch gradient steps with a public diagonal scaling P, each gradient with Gaussian noise.

    .. math::
        d_k = P^{-1}\Big(\sum_i \nabla_i(\theta_k) + N_k + \rho\,\theta_k\Big), \quad
        \theta_{k+1} = \theta_k - a\, d_k, \qquad
        \hat\theta = \frac{1}{K}\sum_{k > \text{warm}} (\theta_k - d_k), \quad P = \text{scaling} + \rho

    Each :math:`\theta_k - d_k` is where a Newton step with P would end. In their mean the iterates' own noise and a
    late start cancel: with P = H it is the solution plus :math:`H^{-1}` times the mean of the noise, the
    influence-calibrated output noise of a record whose gradient is at most the public bound. The size a is cut where
    two released steps point against each other by more than noise does; both are paid for.

    Guarantee:
        Certified: the step's mu, as one composition of Gaussian events of sensitivity 2 slope each
        (docs/guarantees/composed_effect.md).
    """

    def solution(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Solution:
        """See ``Solver``."""
        if not steps.private:
            return exact_solution(fit, plan.ridge)
        return newton_points(fit.gradient, fit.predictors.shape, fit.slope, plan, steps)


def newton_points(
    gradient: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    slope: float,
    plan: FitPlan,
    steps: NoisySteps,
    runs: tuple[int, ...] = (),
) -> Solution:
    """Return what ``NoisyNewton`` does, of a sum's gradient.

    Args:
        gradient: Of the sum, [*runs, p], at coefficients [*runs, p].
        shape: Number of records n, and p.
        slope: Bound of a record's gradient.
        plan: How the fit is asked for.
        steps: Pays, and draws noise.
        runs: How many independent runs side by side, for audits.
    """
    n, p = shape
    sensitivity = 2 * slope + math.sqrt(p) * steps.rounding(n, slope)
    points = NewtonPoints(plan, runs)
    for event, count in plan.pay(steps):
        for _ in range(count):
            points.step(steps.noisy_gradient(gradient(points.theta), sensitivity, event))
    return points.solution


def exact_solution(fit: LinearFit, ridge: Tensor) -> Solution:
    """Return the minimiser without noise and its gradient; of the curator's own fits alone."""
    theta = solved(fit, ridge)
    return Solution(theta, theta, fit.gradient(theta).cpu())


def solved(fit: LinearFit, ridge: Tensor) -> Tensor:
    """Return the minimiser without noise, by damped Newton steps; of the curator's own fits alone.

    Where these lead away, as where hardly a residual is within its clip, by parabolas above the losses.
    """
    theta = _newton(fit, ridge)
    zero = torch.zeros_like(theta)
    found = fit.total(theta) + float(ridge @ theta.square()) / 2
    return theta if found <= fit.total(zero) else _newton(fit, ridge, above=True)


def _newton(fit: LinearFit, ridge: Tensor, above: bool = False) -> Tensor:
    theta = torch.zeros(fit.predictors.shape[1], dtype=torch.float64)
    curvature: Curvature | None = None
    for k in range(8 * _EXACT if above else _EXACT):
        gradient = fit.gradient(theta).cpu() + ridge * theta
        if above:
            hessian = fit.majorant(theta).cpu()
        else:
            curvature = fit.hessian(theta, curvature)
            hessian = curvature.matrix.cpu()
        hessian = hessian + (ridge + 1e-9 * (1 + hessian.diagonal().mean())).diag()
        step = torch.linalg.solve(hessian, gradient)
        theta = theta - step * (1.0 if k > 5 or above else 0.5)
        if float(step.norm()) < 1e-9 * (1 + float(theta.norm())):
            break
    return theta
