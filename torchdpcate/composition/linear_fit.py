"""Private fits of a linear predictor by full-batch noisy steps, each record's pull bounded by its weight."""

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from torchdpcate.erm.losses import Loss, Slopes
from torchdpcate.privacy.session import FitSession

STEP_SIZE = 0.25
"""Step, over the inverse of the scaling."""
CUT = 0.6
"""What a step is cut to where two steps point against each other."""
WARM = 0.2
"""Share of the steps that only move to the solution."""


@dataclass(frozen=True, eq=False)
class Aimed:
    """A loss of records with their targets.

    Attributes:
        loss: l(u, t).
        target: t, [n].

    Example:
        >>> from torchdpcate.erm.losses import Logistic
        >>> Aimed(Logistic(), torch.ones(2))(torch.zeros(2)).first.tolist()
        [-0.5, -0.5]
    """

    loss: Loss
    target: Tensor

    @property
    def slope(self) -> float:
        """Most of |dl/du|."""
        return self.loss.slope

    def __call__(self, u: Tensor) -> Slopes:
        """Return the loss and its derivatives at predictors u [n]."""
        return self.loss(u, self.target)


class LinearFit(Protocol):
    r"""A private fit of theta in sum_i w_i l(psi_i'theta, t_i) + theta' diag(ridge) theta / 2 by noisy steps."""

    def fit(
        self,
        psi: Tensor,
        loss: Aimed,
        weights: Tensor,
        ridge: Tensor,
        scaling: Tensor,
        steps: int,
        session: FitSession,
        mu: float,
    ) -> Tensor:
        """Return the mean of the Newton points, [p]; pay before noise is drawn.

        Args:
            psi: Features, [n, p], float64.
            loss: Loss of the linear predictor, with its targets.
            weights: [n], such that weights |psi| is at most 1: a record's gradient is at most ``loss.slope``.
            ridge: [p], public.
            scaling: [p], public: diagonal of the preconditioner P, curvature plus ridge.
            steps: Gradients that are taken, public.
            session: Pays ``steps`` Gaussian events of mu / sqrt(steps) each, and is where noise comes from.
            mu: Of all steps together.
        """
        ...


@dataclass
class NewtonPoints:
    r"""Scaled steps by noisy gradients, and the mean of their Newton points: post-processing of what was paid for.

    .. math:: \theta_{t+1} = \theta_t - a P^{-1} (G_t + R \theta_t), \qquad
        \hat\theta = \frac{1}{T - W} \sum_{t \ge W} \theta_t - P^{-1} (G_t + R \theta_t)

    with noisy gradients :math:`G_t`, R = diag(ridge) and P = diag(scaling). For a quadratic loss of curvature P - R the
    Newton points have the solution as their mean wherever the steps are, so that the start and the iterates' own noise
    cancel. The step size a is cut where two released steps point against each other, in the norm of P, by more than
    noise does.

    Args:
        ridge: R, [p].
        scaling: P, [p].
        steps: T.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> points = NewtonPoints(ridge=0 * one, scaling=one, steps=5)
        >>> theta = 0 * one
        >>> for _ in range(5):
        ...     theta = points.step(theta, theta - 3)
        >>> points.mean.item()
        3.0
    """

    ridge: Tensor
    scaling: Tensor
    steps: int
    size: float = field(default=STEP_SIZE, init=False)

    def __post_init__(self) -> None:
        """Begin before the first step."""
        self.warm = round(WARM * self.steps)
        self.taken = 0
        self._total = torch.zeros_like(self.scaling)
        self._last = torch.zeros_like(self.scaling)
        self._against = 0.3 + 1.5 / math.sqrt(len(self.scaling))

    def step(self, theta: Tensor, gradient: Tensor) -> Tensor:
        """Return the coefficients after a step by a noisy gradient, [p] both."""
        step = (gradient + self.ridge * theta) / self.scaling
        if self.taken >= self.warm:
            self._total += theta - step
        now = step * self.scaling.sqrt()
        if self.taken and bool(now @ self._last < -self._against * now.norm() * self._last.norm()):
            self.size *= CUT
        self.taken, self._last = self.taken + 1, now
        return theta - self.size * step

    @property
    def mean(self) -> Tensor:
        """Mean of the Newton points after the warm steps, [p]."""
        return self._total / (self.taken - self.warm)
