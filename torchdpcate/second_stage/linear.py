"""The linear second stage: strongly convex, so that one record moves it by a known bound."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.erm.descent import newton
from torchdpcate.erm.losses import Huber
from torchdpcate.errors import InputError
from torchdpcate.second_stage.design import DenseDesign, Design


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A minimiser and how exactly it was found. The curator's: neither field is private.

    Attributes:
        theta: Coefficients, float64 [p].
        gradient_norm: Euclidean norm of the gradient of the mean objective at ``theta``.
    """

    theta: Tensor
    gradient_norm: float


@dataclass(frozen=True, eq=False)
class LinearProblem:
    r"""Weighted ridge regression of s on v = w psi(x), squared or Huber.

    .. math:: F(\theta) = \tfrac1n \sum_i \ell(s_i - v_i^\top\theta) + \lambda\|\theta\|^2

    with l(r) = r^2, or the Huber loss H_tau(r) = r^2 if |r| <= tau, else 2 tau |r| - tau^2. No one half
    anywhere.

    Attributes:
        psi: Features psi(x), float64 [n, p], rows of norm at most one; a ``Design`` where they would fill the memory.
        s: Targets, float64 [n].
        w: Weights, float64 [n].
        ridge: lambda > 0, public.
        weight_bound: Public bound B of ||v||.
        target_bound: Public bound S of |s|.
        threshold: Public or private Huber threshold tau; infinity means the squared loss.
    """

    psi: Tensor | Design
    s: Tensor
    w: Tensor
    ridge: float
    weight_bound: float
    target_bound: float
    threshold: float = math.inf

    def __post_init__(self) -> None:
        """Refuse a ridge or a threshold under which the head has no bounded sensitivity."""
        if not (self.ridge > 0 and math.isfinite(self.ridge)):
            raise InputError(
                f"second_stage.ridge = {self.ridge}: the sensitivity is bounded only with a positive ridge"
            )
        if not self.threshold > 0:
            raise InputError(f"second_stage.threshold = {self.threshold}: give a positive Huber threshold")

    @property
    def n(self) -> int:
        """Number of records of the second-stage block (public)."""
        return self.s.shape[0]

    @property
    def squared(self) -> bool:
        """Whether the loss is squared."""
        return math.isinf(self.threshold)

    @cached_property
    def design(self) -> Design:
        """The features, without weights."""
        return self.psi if isinstance(self.psi, Design) else DenseDesign(self.psi)

    @property
    def v(self) -> Tensor:
        """Weighted features, [n, p]; all of them in memory."""
        return self.w[:, None] * self.psi[:]

    @property
    def tolerance(self) -> float:
        """Public bound that every fit's gradient norm keeps: 1e-10 B min(tau, S)."""
        return 1e-10 * self.weight_bound * min(self.threshold, self.target_bound)

    @property
    def condition(self) -> float:
        """Eta = B^2 / (n ridge), the most one record can multiply the curvature by, less one."""
        return self.weight_bound**2 / (self.n * self.ridge)

    @property
    def curvature(self) -> Tensor:
        """A = ridge I + mean v v', [p, p]: half the Hessian of the squared loss."""
        A = self.design.gram(self.w[None].square() / self.n)[0]
        A.diagonal().add_(self.ridge)
        return A

    def solve_curvature(self, rhs: Tensor) -> Tensor:
        """Return A^{-1} of each row of rhs [k, p]; A itself is formed only where p is the least of n and p."""
        return self.design.solve(self.w[None].square() / self.n, self.ridge, rhs, tolerance=1e-12)


def huber_sensitivity(weight_bound: float, threshold: float, ridge: float, n: int) -> float:
    r"""Return the replace-one sensitivity of the Huber head, 2 B tau / (ridge n), in coefficient units.

    F is 2 ridge-strongly convex and a record's gradient is at most 2 tau B, whatever its outcome. The
    bound is attained. Source: theory note ``dp_cate``, section 3.3.

    Example:
        >>> round(huber_sensitivity(0.9, 1.0, 0.01, 1350), 9)
        0.133333333
    """
    return 2 * weight_bound * threshold / (ridge * n)


def squared_sensitivity(weight_bound: float, target_bound: float, ridge: float, n: int) -> float:
    r"""Return the replace-one sensitivity of the squared head; no bound is smaller for all n.

    .. math:: \frac{2 B S}{\lambda n}\,\sin t\,(1 + \tfrac{\beta}{2}\cos t), \qquad
        \cos t = \frac{\sqrt{1 + 2\beta^2} - 1}{2\beta}, \quad \beta = B/\sqrt\lambda

    The largest over t. Source: docs/guarantees/output.md; the pair that attains it as n grows is ``worst_pair``.

    Example:
        >>> round(squared_sensitivity(0.9, 1.0, 0.01, 1350), 9)
        0.397714482
    """
    beta = weight_bound / math.sqrt(ridge)
    cos = beta / (math.sqrt(1 + 2 * beta**2) + 1)
    return 2 * weight_bound * target_bound / (ridge * n) * math.sqrt(1 - cos**2) * (1 + beta / 2 * cos)


def sensitivity(problem: LinearProblem) -> float:
    """Return how far one replaced record moves the returned fit, its inexactness included.

    The exact minimiser moves by ``huber_sensitivity`` or ``squared_sensitivity``; a fit whose gradient
    norm is at most tol lies within tol / (2 ridge) of it on either data set.
    """
    exact = (
        squared_sensitivity(problem.weight_bound, problem.target_bound, problem.ridge, problem.n)
        if problem.squared
        else huber_sensitivity(problem.weight_bound, problem.threshold, problem.ridge, problem.n)
    )
    return exact + problem.tolerance / problem.ridge


def solve(problem: LinearProblem) -> LinearFit:
    """Minimise F(theta) by Newton steps with backtracking.

    The Huber objective is piecewise quadratic, so Newton's method ends after finitely many steps.

    Args:
        problem: The regression.

    Returns:
        The fit, with a gradient norm of at most ``problem.tolerance``.

    Raises:
        NumericalError: The tolerance is finer than float64 resolves; nothing may be released.

    Example:
        >>> psi = torch.eye(2, dtype=torch.float64)
        >>> s = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> fit = solve(LinearProblem(psi, s, torch.ones_like(s), 0.5, 1.0, 2.0))
        >>> [round(t, 6) for t in fit.theta.tolist()]
        [0.5, 1.0]
    """
    theta, norm = _newton(problem, problem.w.new_zeros(1, problem.design.shape[1]))
    return LinearFit(theta[0], norm[0].item())


def solve_perturbed(problem: LinearProblem, linear_terms: Tensor) -> Tensor:
    """Minimise F(theta) + b'theta for many linear terms b at once.

    Args:
        problem: The regression.
        linear_terms: Linear terms of objective perturbation, float64 [runs, p].

    Returns:
        Minimisers [runs, p], each with a gradient norm (linear term included) of at most ``problem.tolerance``.

    Raises:
        NumericalError: The tolerance is finer than float64 resolves; nothing may be released.
    """
    rows = max(1, _MOST_NUMBERS // math.prod(problem.design.shape))
    return torch.cat([_newton(problem, part)[0] for part in linear_terms.split(rows)])


_MOST_NUMBERS = 20_000_000  # in one batch of weighted features


def _newton(problem: LinearProblem, linear_terms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimisers [runs, p] of the perturbed objectives and their gradient norms [runs]."""
    share, loss = problem.w.square() / problem.n, Huber(problem.threshold)

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [runs], gradients [runs, p], curvature of each record's loss [runs, n]."""
        slopes = loss(problem.w * problem.design.apply(theta), problem.s)
        value = slopes.value.mean(1) + problem.ridge * theta.square().sum(1) + (linear_terms * theta).sum(1)
        pull = problem.design.adjoint(slopes.first * problem.w) / problem.n
        return value, pull + 2 * problem.ridge * theta + linear_terms, slopes.second

    def step(theta: Tensor, gradient: Tensor, second: Tensor) -> Tensor:
        return problem.design.solve(second / 2 * share, problem.ridge, gradient / 2)

    def bounds() -> tuple[Tensor, Tensor]:
        # a record's loss curves by 2 ||v||^2 at most: public, so that the steps have a public bound on all records
        least = torch.full_like(linear_terms[:, 0], 2 * problem.ridge)
        return least, least + 2 * problem.weight_bound**2

    start, remedy = torch.zeros_like(linear_terms), "raise second_stage.ridge"
    return newton(evaluate, step, start, problem.tolerance, what="the linear head", remedy=remedy, bounds=bounds)
