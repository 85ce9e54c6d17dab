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

    Attributes:
        theta: Present coefficients, float64 [p] on the CPU.
        size: a, as it is now.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> plan = FitPlan("outcome", scaling=one, ridge=0 * one, steps=5, warm=1, warm_share=0.2, size=0.25)
        >>> points = NewtonPoints(plan)
        >>> for _ in range(5):
        ...     points.step(points.theta - 3)
        >>> points.mean.item()
        3.0
    """

    def __init__(self, plan: FitPlan) -> None:
        self.size = plan.size
        self.theta = torch.zeros(len(plan.scaling), dtype=torch.float64)
        self._ridge, self._warm = plan.ridge, plan.warm
        self._root = torch.linalg.cholesky(plan.preconditioner)
        self._points, self._gradients = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._total, self._last, self._taken = torch.zeros_like(self.theta), torch.zeros_like(self.theta), 0
        self._against = 0.3 + 1.5 / math.sqrt(len(self.theta))

    def step(self, gradient: Tensor) -> None:
        """Take a step by a noisy gradient at ``theta``, [p]."""
        pull = (gradient + self._ridge * self.theta)[:, None]
        now = torch.linalg.solve_triangular(self._root, pull, upper=False)
        step = torch.linalg.solve_triangular(self._root.T, now, upper=True)[:, 0]
        if self._taken >= self._warm:
            self._total += self.theta - step
            self._points += self.theta
            self._gradients += gradient
        now, last = now[:, 0], self._last
        if self._taken and float(now @ last) < -self._against * float(now.norm() * last.norm()):
            self.size *= _CUT
        self.theta, self._last, self._taken = self.theta - self.size * step, now, self._taken + 1

    @property
    def mean(self) -> Tensor:
        """Mean of the Newton points after the warm steps, [p]."""
        return self._total / self._late

    @property
    def solution(self) -> Solution:
        """That mean, with the means of the iterates and of the gradients that it is made of."""
        return Solution(self.mean, self._points / self._late, self._gradients / self._late)

    @property
    def _late(self) -> int:
        return self._taken - self._warm
