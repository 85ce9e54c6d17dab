"""Fits of a linear predictor by noisy steps: what is fitted, and how it is asked for."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.batch_sums import summed
from torchdpcate.composition.shares import StepEvent
from torchdpcate.composition.steps import NoisySteps

_LARGEST = 50.0  # score of a logarithm


@dataclass(frozen=True, eq=False)
class LinearFit(ABC):
    r"""A sum over records :math:`\sum_i w_i\, \ell_i(g_i^\top\theta)` with a gradient of at most ``slope`` a record.

    Attributes:
        predictors: g, [n, p].
        weights: w, [n], with :math:`w_i \|g_i\| \le 1`.
        targets: t, [n].
        slope: Bound of a record's gradient.
    """

    predictors: Tensor
    weights: Tensor
    targets: Tensor
    slope: float

    def means(self, scores: Tensor) -> Tensor:
        """Return the targets' means, [n], at scores g'theta [n]: the scores themselves, where nothing else is said."""
        return scores

    @abstractmethod
    def losses(self, scores: Tensor) -> Tensor:
        """Return the losses, [n], at scores g'theta [n]; autograd differentiates them to ``pulls``."""

    @abstractmethod
    def pulls(self, scores: Tensor) -> Tensor:
        """Return the losses' derivatives, [n], at scores g'theta [n]."""

    @abstractmethod
    def curvatures(self, scores: Tensor) -> Tensor:
        """Return the losses' second derivatives, [n]; of the curator's fits without privacy alone."""

    def majorants(self, scores: Tensor) -> Tensor:
        """Return curvatures of parabolas that touch the losses at scores, and lie above them, [n]; see ``curvatures``.

        Where a loss has none that is known, its curvatures.
        """
        return self.curvatures(scores)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the sum's gradient, [p], at theta [p]."""
        scores = self.predictors @ theta.to(self.predictors.device)
        return summed(lambda g, pulls: g.T @ pulls, self.predictors, self.weights * self.pulls(scores))

    @property
    def reach(self) -> float:
        """Size of the scores to expect: the slope, where a score is an outcome."""
        return self.slope

    def majorant(self, theta: Tensor) -> Tensor:
        """Return the second derivatives of parabolas above the sum, [p, p]; see ``majorants``."""
        return self._weighted(self.weights * self.majorants(self.predictors @ theta.to(self.predictors.device)))

    def total(self, theta: Tensor) -> float:
        """Return the sum at theta [p]; see ``curvatures``."""
        return float(self.weights @ self.losses(self.predictors @ theta.to(self.predictors.device)))

    def hessian(self, theta: Tensor, before: "Curvature | None" = None) -> "Curvature":
        """Return the sum's Hessian at theta [p]; see ``curvatures``.

        Args:
            theta: Where.
            before: At another theta: only records whose curvature differs are then looked at, if they are few.
        """
        each = self.weights * self.curvatures(self.predictors @ theta.to(self.predictors.device))
        if before is None:
            return Curvature(each, self._weighted(each))
        changed = torch.nonzero(each != before.each).flatten()
        if len(changed) > len(each) / 4:
            return Curvature(each, self._weighted(each))
        difference = self._weighted((each - before.each)[changed], changed)
        return Curvature(each, before.matrix + difference)

    def _weighted(self, each: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the sum of each g g' over records, or over some rows of them, symmetric [p, p]."""
        g = self.predictors if rows is None else self.predictors[rows]
        found = g.T @ (each[:, None] * g)
        return (found + found.T) / 2


class Curvature(NamedTuple):
    """A Hessian, and the records' part in it.

    Attributes:
        each: Second derivatives times weights, [n].
        matrix: The Hessian, [p, p].
    """

    each: Tensor
    matrix: Tensor


class HuberFit(LinearFit):
    r"""Huber losses of residuals t - g'theta, clipped at ``slope``."""

    def losses(self, scores: Tensor) -> Tensor:
        """Return r^2 / 2 up to the clip, and from there on a straight line."""
        r = scores - self.targets
        clipped = r.clamp(-self.slope, self.slope)
        return clipped * (r - clipped / 2)

    def pulls(self, scores: Tensor) -> Tensor:
        """Return -clip(t - scores)."""
        return (scores - self.targets).clamp(-self.slope, self.slope)

    def curvatures(self, scores: Tensor) -> Tensor:
        """Return one inside the clip, zero outside."""
        return ((scores - self.targets).abs() < self.slope).double()

    def majorants(self, scores: Tensor) -> Tensor:
        """Return slope / max(slope, residual)."""
        return self.slope / (scores - self.targets).abs().clamp_min(self.slope)


class LogisticFit(LinearFit):
    r"""Logistic losses of targets t in [0, 1] and of probabilities that lie within [1 - ``slope``, ``slope``].

    .. math:: \ell'_i(s) = \mathrm{clip}(\sigma(s), 1 - \zeta, \zeta) - t_i, \qquad \tfrac12 < \zeta \le 1

    It grows with s, so the losses are convex, and its mean is zero at the truth, as without the clip, if that lies
    within. With slope 1 nothing is clipped.

    Example:
        >>> one = torch.ones(3, dtype=torch.float64)
        >>> fit = LogisticFit(one[:, None], one, torch.tensor([0.0, 1.0, 1.0]).double(), 0.9)
        >>> fit.pulls(torch.tensor([9.0, 9.0, 0.0]).double()).round(decimals=9).tolist()
        [0.9, -0.1, -0.5]
    """

    def means(self, scores: Tensor) -> Tensor:
        """Return sigmoid(scores), not clipped."""
        return torch.sigmoid(scores)

    def losses(self, scores: Tensor) -> Tensor:
        """Return log(1 + exp(s)) - t s where the probability is not clipped, straight lines beyond."""
        edge = math.log(self.slope / (1 - self.slope)) if self.slope < 1 else math.inf
        s = scores.clamp(-edge, edge)
        inside = torch.nn.functional.binary_cross_entropy_with_logits(s, self.targets, reduction="none")
        return inside + self.pulls(scores) * (scores - s)

    def pulls(self, scores: Tensor) -> Tensor:
        """Return clip(sigmoid(scores)) - t."""
        return torch.sigmoid(scores).clamp(1 - self.slope, self.slope) - self.targets

    def curvatures(self, scores: Tensor) -> Tensor:
        """Return p (1 - p) of probabilities that are not clipped, zero of others."""
        p = torch.sigmoid(scores)
        return p * (1 - p) * ((p > 1 - self.slope) & (p < self.slope))

    def majorants(self, scores: Tensor) -> Tensor:
        """Return (p - 1/2) / s of the clipped probability p: l + (t - 1/2) s is even, and concave in s^2."""
        p = torch.sigmoid(scores).clamp(1 - self.slope, self.slope)
        return torch.where(scores.abs() < 1e-6, 0.25, (p - 0.5) / scores)


@dataclass(frozen=True, eq=False)
class CountFit(LinearFit):
    r"""Huberised Poisson losses of counts: targets t and means :math:`\ell\, e^s` about a centre, clipped at ``slope``.

    .. math:: \ell'_i(s) = \mathrm{clip}(\ell\, e^s - c - t_i, -S, S)

    It grows with s, so the losses are convex; without the clip they are Poisson's.

    Attributes:
        centre: c, what was taken off the counts.
        level: The mean of a score of zero, positive.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> fit = CountFit(one[:, None], one, 3 * one, 2.0, centre=1.0, level=2.0)
        >>> fit.pulls(torch.tensor([0.0, 0.5, 9.0]).double()).round(decimals=4).tolist()
        [-2.0, -0.7026, 2.0]
    """

    centre: float = 0.0
    level: float = 1.0

    @property
    def reach(self) -> float:
        """See ``LinearFit``."""
        return self.slope / self.level

    def means(self, scores: Tensor) -> Tensor:
        """Return the means about the centre, [n], at scores [n]."""
        return self.level * scores.clamp(max=_LARGEST).exp() - self.centre

    def losses(self, scores: Tensor) -> Tensor:
        """Return mean - y score within the clip, straight lines beyond it."""
        counts = self.targets + self.centre
        ends = ((counts + sign * self.slope).clamp_min(0) / self.level for sign in (-1, 1))
        low, high = (end.log() for end in ends)
        s = scores.clamp_min(low).clamp_max(high)
        pulls = self.pulls(scores)
        return self.level * s.clamp(max=_LARGEST).exp() - counts * s + pulls * (scores - s)

    def pulls(self, scores: Tensor) -> Tensor:
        """Return clip(mean - target)."""
        return (self.means(scores) - self.targets).clamp(-self.slope, self.slope)

    def curvatures(self, scores: Tensor) -> Tensor:
        """Return the mean inside the clip, zero outside."""
        means = self.means(scores)
        return (means + self.centre) * ((means - self.targets).abs() < self.slope)

    def majorants(self, scores: Tensor) -> Tensor:
        """Return the mean, or the pull if that is more: no majorant, but scores then move by at most one."""
        return torch.maximum(self.curvatures(scores), self.pulls(scores).abs())


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
        curvature: Planned curvature, [p, p], whose diagonal ``scaling`` is; None for that diagonal.
    """

    step: str
    scaling: Tensor
    ridge: Tensor
    steps: int
    warm: int
    warm_share: float
    size: float
    curvature: Tensor | None = None

    @property
    def preconditioner(self) -> Tensor:
        """P, the planned curvature with the ridge, [p, p]."""
        return (self.scaling.diag() if self.curvature is None else self.curvature) + self.ridge.diag()

    def pay(self, steps: NoisySteps) -> list[tuple[StepEvent, int]]:
        """Charge all steps, and return the event of a warm one and of a later one, each with how many there are."""
        late = self.steps - self.warm
        if not self.warm:
            return [(steps.pay(self.step, count=late), late)]
        warm = steps.pay(self.step, self.warm_share, self.warm)
        return [(warm, self.warm), (steps.pay(self.step, 1 - self.warm_share, late), late)]


class Solution(NamedTuple):
    """What a fit released.

    Attributes:
        coefficients: Float64 [p].
        point: Mean of the iterates after the warm steps, [p].
        gradient: Mean of their noisy gradients, without ridge, [p].
    """

    coefficients: Tensor
    point: Tensor
    gradient: Tensor


class Solver(ABC):
    """How a fit is solved."""

    def solve(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Tensor:
        """Return the coefficients, float64 [p], paid for; arguments and errors are ``solution``'s."""
        return self.solution(fit, plan, steps).coefficients

    @abstractmethod
    def solution(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Solution:
        """Return the coefficients and what they were made of, paid for.

        Args:
            fit: What is fitted, the curator's.
            plan: How it is asked for.
            steps: Pays, and draws noise.

        Raises:
            BudgetError: The budget does not cover the steps.
        """
