"""Steps by noisy gradients and the mean of their Newton points: post-processing of what was paid for."""

import math

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import FitPlan, Solution

_CUT = 0.6  # of the step's size where two steps point against each other


class NewtonPoints:
    r"""Scaled steps by noisy gradients G, and the mean of the points that Newton steps would lead to.

    .. math:: d_k = P^{-1} (G_k + \rho\,\theta_k), \quad \theta_{k+1} = \theta_k - a\, d_k, \qquad
        \hat\theta = \frac{1}{K}\sum_{k > \text{warm}} (\theta_k - d_k), \quad P = \text{curvature} + \rho

    In their mean the iterates' own noise and a late start cancel. The size a is cut where two steps point against each
    other, in the norm of P, by more than noise does.

    Args:
        plan: Curvature, ridge, warm steps and size.
        runs: How many independent runs there are side by side, whose vectors are rows; () for one, without rows.

    Attributes:
        theta: Present coefficients, float64 [*runs, p] on the CPU.
        size: a, as it is now, [*runs].

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> plan = FitPlan("outcome", scaling=one, ridge=0 * one, steps=5, warm=1, warm_share=0.2, size=0.25)
        >>> points = NewtonPoints(plan)
        >>> for _ in range(5):
        ...     points.step(points.theta - 3)
        >>> points.mean.item()
        3.0
    """

    def __init__(self, plan: FitPlan, runs: tuple[int, ...] = ()) -> None:
        self.size = torch.full(runs, plan.size, dtype=torch.float64)
        self.theta = torch.zeros(*runs, len(plan.scaling), dtype=torch.float64)
        self._ridge, self._warm = plan.ridge, plan.warm
        self._root = torch.linalg.cholesky(plan.preconditioner)
        self._points, self._gradients = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._total, self._last, self._taken = torch.zeros_like(self.theta), torch.zeros_like(self.theta), 0
        self._against = 0.3 + 1.5 / math.sqrt(len(plan.scaling))

    def step(self, gradient: Tensor) -> None:
        """Take a step by a noisy gradient at ``theta``, [*runs, p]."""
        pull = (gradient + self._ridge * self.theta)[..., None]
        now = torch.linalg.solve_triangular(self._root, pull, upper=False)
        step = torch.linalg.solve_triangular(self._root.T, now, upper=True)[..., 0]
        if self._taken >= self._warm:
            self._total += self.theta - step
            self._points += self.theta
            self._gradients += gradient
        now, last = now[..., 0], self._last
        if self._taken:
            along = (now * last).sum(-1)
            against = along < -self._against * now.norm(dim=-1) * last.norm(dim=-1)
            self.size = torch.where(against, self.size * _CUT, self.size)
        self.theta, self._last, self._taken = self.theta - self.size[..., None] * step, now, self._taken + 1

    @property
    def mean(self) -> Tensor:
        """Mean of the Newton points after the warm steps, [*runs, p]."""
        return self._total / self._late

    @property
    def solution(self) -> Solution:
        """That mean, with the means of the iterates and of the gradients that it is made of."""
        return Solution(self.mean, self._points / self._late, self._gradients / self._late)

    @property
    def _late(self) -> int:
        return self._taken - self._warm


def newton_law(plan: FitPlan, hessian: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    r"""Return how the mean of ``NewtonPoints`` responds to a sum's linear part, and the covariance of its noise.

    Of a sum with the gradient :math:`H \theta - b`, noise apart, the mean is :math:`R\,b`, linear in b: with
    :math:`P = L L^\top` and :math:`L^{-1} (H + \rho) L^{-\top} = U \Lambda U^\top` it is

    .. math:: R = Q\, f(\Lambda)\, Q^\top, \qquad Q = L^{-\top} U,

    f(lambda) what the recursion makes of one number, and the noise :math:`N_j` of step j enters by
    :math:`Q\, h_j(\Lambda)\, Q^\top N_j`. Steps are taken to have the plan's size throughout,
    or the largest that does not overshoot.

    Args:
        plan: How the fit was asked for.
        hessian: H, [p, p].
        noise: Standard deviation of a coordinate's noise, if all of the step were one event.

    Returns:
        R, [p, p], and the covariance of the noise, [p, p].
    """
    late, warm = plan.steps - plan.warm, plan.warm
    root = torch.linalg.cholesky(plan.preconditioner)
    inner = torch.linalg.solve_triangular(root, hessian + plan.ridge.diag(), upper=False)
    inner = torch.linalg.solve_triangular(root, inner.T, upper=False)
    value, vector = torch.linalg.eigh((inner + inner.T) / 2)
    q = torch.linalg.solve_triangular(root.T, vector, upper=True)
    kept = 1 - min(plan.size, 1 / float(value[-1])) * value  # of an error, from one iterate to the next
    step = torch.arange(plan.steps, dtype=torch.float64)[:, None]
    # of one number, theta_k = (1 - kept^k) / value, and a noise of step j adds a kept^(k - 1 - j) to a later theta_k
    response = 1 + (1 - value) * ((1 - kept ** step[warm:]) / value).mean(0)
    first = (step + 1).clamp_min(warm)
    later = (kept ** (first - 1 - step) - kept ** (plan.steps - 1 - step)) / value
    factors = ((step >= warm) + (1 - value) * later) / late
    squares = torch.full((plan.steps,), late / (1 - plan.warm_share if warm else 1.0), dtype=torch.float64)
    if warm:
        squares[:warm] = warm / plan.warm_share
    inside = (factors.T @ (squares[:, None] * factors)) * (q.T @ q)
    return (q * response) @ q.T, noise**2 * q @ inside @ q.T
