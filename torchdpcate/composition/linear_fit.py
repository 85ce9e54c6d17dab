"""Fits of a linear predictor by noisy steps: what is fitted, and how it is asked for."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.steps import NoisySteps


@dataclass(frozen=True, eq=False)
class LinearFit(ABC):
    r"""A sum over records :math:`\sum_i w_i\, \ell_i(g_i^\top\theta)` with a gradient of at most ``slope`` a record.

    Attributes:
        rows: Weighted rows :math:`w_i g_i`, [n, p]; each loss's derivative times its row has norm at most ``slope``.
        predictors: g, [n, p].
        targets: t, [n].
        slope: Bound of a record's gradient.
    """

    rows: Tensor
    predictors: Tensor
    targets: Tensor
    slope: float

    @abstractmethod
    def pulls(self, scores: Tensor) -> Tensor:
        """Return the losses' derivatives, [n], at scores g'theta [n]."""

    @abstractmethod
    def curvatures(self, scores: Tensor) -> Tensor:
        """Return the losses' second derivatives, [n]; of the curator's fits without privacy alone."""

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the sum's gradient, [p], at theta [p]."""
        return self.rows.T @ self.pulls(self.predictors @ theta.to(self.predictors.device))

    def hessian(self, theta: Tensor) -> Tensor:
        """Return the sum's Hessian, [p, p]; see ``curvatures``."""
        scores = self.predictors @ theta.to(self.predictors.device)
        return self.rows.T @ (self.curvatures(scores)[:, None] * self.predictors)


class HuberFit(LinearFit):
    r"""Huber losses of residuals t - g'theta, clipped at ``slope``; rows have norm at most one."""

    def pulls(self, scores: Tensor) -> Tensor:
        """Return -clip(t - scores)."""
        return (scores - self.targets).clamp(-self.slope, self.slope)

    def curvatures(self, scores: Tensor) -> Tensor:
        """Return one inside the clip, zero outside."""
        return ((scores - self.targets).abs() < self.slope).double()


class LogisticFit(LinearFit):
    """Logistic losses of targets in [0, 1]; rows have norm at most one, and ``slope`` is one."""

    def pulls(self, scores: Tensor) -> Tensor:
        """Return sigmoid(scores) - t."""
        return torch.sigmoid(scores) - self.targets

    def curvatures(self, scores: Tensor) -> Tensor:
        """Return s (1 - s)."""
        s = torch.sigmoid(scores)
        return s * (1 - s)


@dataclass(frozen=True, eq=False)
class FitPlan:
    """How a fit is asked for, all of it public.

    Attributes:
        step: The step that pays.
        scaling: Planned curvature of each coefficient, [p].
        ridge: Of each coefficient, [p].
        steps: Number of steps.
        warm: Steps among them that only move to the solution.
        warm_share: Share of the step's mu^2 that they get.
        size: Of a step, over the inverse of the curvature.
    """

    step: str
    scaling: Tensor
    ridge: Tensor
    steps: int
    warm: int
    warm_share: float
    size: float


class Solver(ABC):
    """How a fit is solved."""

    @abstractmethod
    def solve(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Tensor:
        """Return the coefficients, float64 [p], paid for.

        Args:
            fit: What is fitted, the curator's.
            plan: How it is asked for.
            steps: Pays, and draws noise.

        Raises:
            BudgetError: The budget does not cover the steps.
        """
