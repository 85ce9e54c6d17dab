"""Fits of a linear predictor by noisy steps: what is fitted, how it is set up, and how it is solved."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.steps import NoisySteps, Statistic, StepEvent, summed
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import NumericalError
from torchdpcate.fit.descent import newton
from torchdpcate.fit.minimise import ReadBatches, newton_direction

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

    @property
    def shape(self) -> tuple[int, int]:
        """Number of records n, and p."""
        return len(self.predictors), self.predictors.shape[1]

    @property
    def kind(self) -> "type[LinearFit]":
        """Its class."""
        return type(self)

    @property
    def mass(self) -> float:
        """Sum of the weights; see ``curvatures``."""
        return float(self.weights.sum())

    def read(self, numbers: "Callable[[LinearFit], tuple[Tensor, ...]]") -> ReadBatches:
        """Return what reads numbers of the regressions of all batches: of this one, in memory."""
        return lambda: iter([numbers(self)])

    def at_once(self) -> "LinearFit":
        """Return itself, for solvers that need more than sums."""
        return self

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
    def score_scale(self) -> float:
        """Size of the scores to expect: the slope, where a score is an outcome."""
        return self.slope

    def total(self, theta: Tensor) -> float:
        """Return the sum at theta [p]; see ``curvatures``."""
        return float(self.weights @ self.losses(self.predictors @ theta.to(self.predictors.device)))

    def hessian(self, theta: Tensor, least: float = 0.0) -> Tensor:
        """Return the sum's Hessian, [p, p], at theta [p]; see ``curvatures``.

        Args:
            theta: Coefficients.
            least: Of a record's curvature, over that of the parabola above its loss.
        """
        scores = self.predictors @ theta.to(self.predictors.device)
        each = self.curvatures(scores)
        if least:
            each = torch.maximum(each, least * self.majorants(scores))
        found = self.predictors.T @ ((self.weights * each)[:, None] * self.predictors)
        return (found + found.T) / 2


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
    def score_scale(self) -> float:
        return self.slope / self.level

    def means(self, scores: Tensor) -> Tensor:
        """Return the means about the centre, [n], at scores [n]."""
        return count_means(scores, self.level) - self.centre

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


def count_means(scores: Tensor, level: float) -> Tensor:
    """Return the means of counts at scores [n]; level: the mean of a score of zero."""
    return level * scores.clamp(max=_LARGEST).exp()


@dataclass(frozen=True, eq=False)
class Fits(ABC):
    """A regression of the records of any batch, as data.

    Attributes:
        slope: Bound of a record's gradient.
        norm: Clip of a record's matrix of curvatures, in Frobenius norm.
    """

    slope: float
    norm: float = field(default=1.0, kw_only=True)

    @property
    def kind(self) -> type[LinearFit]:
        """Class of a batch's regression."""
        return HuberFit

    @abstractmethod
    def __call__(self, batch: CausalData) -> LinearFit:
        """Return the regression of a batch, in which all records count alike."""

    def of(self, batch: CausalData) -> LinearFit:
        """Return the regression of a batch, in which each record counts by its weight."""
        found = self(batch)
        return found if batch.weight is None else replace(found, weights=times_weight(found.weights, batch))

    def curved(self, batch: CausalData) -> tuple[Tensor, Tensor]:
        """Return features [n, p] and weights [n] of a batch by which its curvatures are summed; all count alike."""
        fit = self(batch)
        return fit.predictors, fit.weights


@dataclass(frozen=True, eq=False)
class Gradient(Statistic):
    """Gradient of a regression's sum.

    Attributes:
        fits: The regression.
        theta: Released coefficients, [p].
    """

    fits: Fits
    theta: Tensor

    def moved(self) -> tuple[float, float, float]:
        return gradient_bound(self.fits.slope, len(self.theta))

    def __call__(self, batch: CausalData) -> Tensor:
        return self.fits.of(batch).gradient(self.theta)


def gradient_bound(slope: float, size: int) -> tuple[float, float, float]:
    """Return how far one record moves a gradient's sum; how often rounding is added to that, and of which numbers.

    Args:
        slope: Bound of a record's gradient.
        size: Number of coefficients.
    """
    return 2 * slope, math.sqrt(size), slope


@dataclass(frozen=True, eq=False)
class FitPlan:
    """How a fit is set up, all of it public.

    Attributes:
        step: The step that pays.
        scaling: Planned curvature of each coefficient, [p].
        ridge: Of each coefficient, [p].
        steps: Number of steps.
        burn_in: Steps among them that only move to the solution.
        burn_in_share: Share of the step's mu^2 that they get.
        size: Of a step, over the inverse of the curvature.
        curvature: Planned curvature, [p, p], whose diagonal ``scaling`` is; None for that diagonal.
        momentum: Part of the last move that a step repeats.
        start: Coefficients that steps start from, public, [p]; None: zeros.
    """

    step: str
    scaling: Tensor
    ridge: Tensor
    steps: int
    burn_in: int
    burn_in_share: float
    size: float
    curvature: Tensor | None = None
    momentum: float = 0.0
    start: Tensor | None = None

    @property
    def preconditioner(self) -> Tensor:
        """P, the planned curvature with the ridge, [p, p]."""
        return (self.scaling.diag() if self.curvature is None else self.curvature) + self.ridge.diag()

    def pay(self, steps: NoisySteps) -> list[tuple[StepEvent, int]]:
        """Charge all steps, and return the event of a burn-in one and of a later one, each with how many there are."""
        late = self.steps - self.burn_in
        if not self.burn_in:
            return [(steps.pay(self.step, count=late), late)]
        burn_in = steps.pay(self.step, self.burn_in_share, self.burn_in)
        return [(burn_in, self.burn_in), (steps.pay(self.step, 1 - self.burn_in_share, late), late)]


class Solution(NamedTuple):
    """What a fit released.

    Attributes:
        coefficients: Float64 [p].
        point: Mean of the iterates after the burn-in steps, [p].
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
            plan: How it is set up.
            steps: Pays, and draws noise.

        Raises:
            BudgetError: The budget does not cover the steps.
        """


_CUT = 0.6  # of the step's size where two steps point against each other


class NewtonPoints:
    r"""Scaled steps by noisy gradients G, and the mean of the points that Newton steps would lead to.

    .. math:: d_k = P^{-1} (G_k + \rho\,\theta_k), \quad
        \theta_{k+1} = \theta_k - a\, d_k + b\, (\theta_k - \theta_{k-1}), \qquad
        \hat\theta = \frac{1}{K}\sum_{k > \text{burn_in}} (\theta_k - d_k), \quad P = \text{curvature} + \rho

    In their mean the iterates' own noise and a late start cancel. Along a direction whose curvature is l times the
    planned one an error falls by 1 - a l a step without the momentum b (Polyak 1964), and by the square root of b with
    it where l is at least :math:`(1 - \sqrt b)^2 / a`; steps are stable to l of 2 (1 + b) / a. The size a is cut where
    two steps point against each other, in the norm of P, by more than noise does.

    Args:
        plan: Curvature, ridge, burn-in steps, size and momentum.
        runs: How many independent runs there are side by side, whose vectors are rows; () for one, without rows.

    Attributes:
        theta: Present coefficients, float64 [*runs, p] on the CPU.
        size: a, as it is now, [*runs].

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> plan = FitPlan("outcome", scaling=one, ridge=0 * one, steps=5, burn_in=1, burn_in_share=0.2, size=0.25)
        >>> points = NewtonPoints(plan)
        >>> for _ in range(5):
        ...     points.step(points.theta - 3)
        >>> points.mean.item()
        3.0
    """

    def __init__(self, plan: FitPlan, runs: tuple[int, ...] = ()) -> None:
        self.size = torch.full(runs, plan.size, dtype=torch.float64)
        start = torch.zeros_like(plan.scaling) if plan.start is None else plan.start
        self.theta = start.double().repeat(*runs, 1) if runs else start.double()
        self._ridge, self._burn_in, self._momentum = plan.ridge, plan.burn_in, plan.momentum
        self._root = torch.linalg.cholesky(plan.preconditioner)
        self._points, self._gradients = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._total, self._last, self._taken = torch.zeros_like(self.theta), torch.zeros_like(self.theta), 0
        self._moved = torch.zeros_like(self.theta)
        self._against = 0.3 + 1.5 / math.sqrt(len(plan.scaling))

    def step(self, gradient: Tensor) -> None:
        """Take a step by a noisy gradient at ``theta``, [*runs, p]."""
        pull = (gradient + self._ridge * self.theta)[..., None]
        now = torch.linalg.solve_triangular(self._root, pull, upper=False)
        step = torch.linalg.solve_triangular(self._root.T, now, upper=True)[..., 0]
        if self._taken >= self._burn_in:
            self._total += self.theta - step
            self._points += self.theta
            self._gradients += gradient
        now, last = now[..., 0], self._last
        if self._taken:
            against = (now * last).sum(-1) < -self._against * now.norm(dim=-1) * last.norm(dim=-1)
            self.size = torch.where(against, self.size * _CUT, self.size)
        self._moved = self._momentum * self._moved - self.size[..., None] * step
        self.theta, self._last, self._taken = self.theta + self._moved, now, self._taken + 1

    @property
    def mean(self) -> Tensor:
        """Mean of the Newton points after the burn-in steps, [*runs, p]."""
        return self._total / self._late

    @property
    def solution(self) -> Solution:
        """That mean, with the means of the iterates and of the gradients that it is made of."""
        return Solution(self.mean, self._points / self._late, self._gradients / self._late)

    @property
    def _late(self) -> int:
        return self._taken - self._burn_in


@dataclass(frozen=True)
class NoisyNewton(Solver):
    r"""Full-batch gradient steps with a public diagonal scaling P, each gradient with Gaussian noise.

    .. math::
        d_k = P^{-1}\Big(\sum_i \nabla_i(\theta_k) + N_k + \rho\,\theta_k\Big), \quad
        \theta_{k+1} = \theta_k - a\, d_k + b\, (\theta_k - \theta_{k-1}), \qquad
        \hat\theta = \frac{1}{K}\sum_{k > \text{burn_in}} (\theta_k - d_k), \quad P = \text{scaling} + \rho

    Each :math:`\theta_k - d_k` is where a Newton step with P would end. In their mean the iterates' own noise and a
    late start cancel: with P = H it is the solution plus :math:`H^{-1}` times the mean of the noise, the
    influence-calibrated output noise of a record whose gradient is at most the public bound. The size a is cut where
    two released steps point against each other by more than noise does; both are paid for.

    Guarantee:
        Certified: the step's mu, as one composition of Gaussian events of sensitivity 2 slope each
        (docs/guarantees/composed_effect.md).
    """

    def solution(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Solution:
        if not steps.private:
            return exact_solution(fit, plan.ridge)
        return newton_points(fit.gradient, fit.shape, fit.slope, plan, steps)


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
        plan: How the fit is set up.
        steps: Pays, and draws noise.
        runs: How many independent runs side by side, for audits.
    """
    n, p = shape
    moved, times, bound = gradient_bound(slope, p)
    sensitivity = moved + times * steps.rounding(n, bound)
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
    """Return the minimiser without noise, by Newton steps with backtracking; of the curator's own fits alone.

    Curvatures are at least a hundredth of those of parabolas above the losses, for none is left where hardly a residual
    is within its clip.

    Raises:
        NumericalError: There is none that 200 steps reach, as without a ridge there may be.
    """

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value = fit.total(theta[0]) + float(ridge @ theta[0].square()) / 2
        gradient = fit.gradient(theta[0]).cpu()[None] + ridge * theta
        return torch.tensor([value], dtype=torch.float64), gradient, theta

    def step(theta: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
        hessian = fit.hessian(theta[0], least=0.01).cpu()
        return newton_direction(gradient, (hessian + (ridge + 1e-9 * (1 + hessian.diagonal().mean())).diag())[None])

    tolerance = 1e-11 * fit.slope * fit.mass
    start = torch.zeros(1, fit.shape[1], dtype=torch.float64)
    try:
        return newton(evaluate, step, start, tolerance)[0][0]
    except NumericalError:  # whose words say the tolerance, which is of the records
        raise NumericalError("the fit without privacy was not found; give a larger ridge") from None


@dataclass(frozen=True, eq=False)
class Learnt:
    """What a regression of some records learnt.

    Attributes:
        scores: From features [n, 1 + p] of records, in either arm where features have one, and their standardised
            covariates [n, k] to scores [n].
        coefficients: Of the features, paid for, [1 + p]; None where they are not all.
        solution: The same before they were shrunk, as the solver released them, [1 + p].
        hidden: Weights [units, k] and biases [units] of a hidden layer, paid for; None where there is none.
    """

    scores: Callable[[Tensor, Tensor], Tensor]
    coefficients: Tensor | None = None
    solution: Tensor | None = None
    hidden: tuple[Tensor, Tensor] | None = None
