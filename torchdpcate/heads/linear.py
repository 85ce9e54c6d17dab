"""Linear heads: ridge fits, and worst pairs."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.descent import newton
from torchdpcate.fit.losses import Huber


def _cholesky_solve(matrix: Tensor, ridge: float, rhs: Tensor) -> Tensor:
    """``(matrix + ridge I)^{-1} rhs`` for matrices [runs or 1, m, m], which are overwritten, and rhs [runs, m]."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(ridge)
    factor = torch.linalg.cholesky_ex(matrix).L
    if len(factor) == 1:
        return torch.cholesky_solve(rhs.T, factor[0]).T
    return torch.cholesky_solve(rhs[:, :, None], factor)[:, :, 0]


@dataclass(frozen=True, eq=False)
class Minimiser:
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
        psi: Features psi(x), float64 [n, p], rows of norm at most one.
        s: Targets, float64 [n].
        w: Weights, float64 [n].
        ridge: lambda > 0, public.
        weight_bound: Public bound B of ||v||.
        target_bound: Public bound S of |s|.
        threshold: Public or private Huber threshold tau; infinity means the squared loss.
    """

    psi: Tensor
    s: Tensor
    w: Tensor
    ridge: float
    weight_bound: float
    target_bound: float
    threshold: float = math.inf

    def __post_init__(self) -> None:
        """Refuse a ridge or a threshold under which the head has no bounded sensitivity."""
        check_ridge(self.ridge, self.threshold)

    @property
    def n(self) -> int:
        """Number of records of the second-stage block (public)."""
        return self.s.shape[0]

    @property
    def squared(self) -> bool:
        """Whether the loss is squared."""
        return math.isinf(self.threshold)

    @property
    def v(self) -> Tensor:
        """Weighted features, [n, p]."""
        return self.w[:, None] * self.psi

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
        A = self._gram(self.w[None].square() / self.n)[0]
        A.diagonal().add_(self.ridge)
        return A

    def solve_curvature(self, rhs: Tensor) -> Tensor:
        """Return A^{-1} of each row of rhs [k, p]; A itself is formed only where p is the least of n and p."""
        return self.solve(self.w[None].square() / self.n, rhs)

    def solve(self, weights: Tensor, rhs: Tensor) -> Tensor:
        r"""Return (ridge I + Psi' diag(weights) Psi)^{-1} rhs, [runs, p].

        By a Cholesky factor of this matrix, or where p > n of the n by n one of Woodbury's identity. A factor that
        failed shows in the residual, which is the caller's to check.

        Args:
            weights: Of the records, not negative, [runs, n], or [1, n] for all runs.
            rhs: Right-hand sides, [runs, p].
        """
        if self.psi.shape[1] <= self.n:
            return _cholesky_solve(self._gram(weights), self.ridge, rhs)
        root = weights.sqrt()
        kernel = root[:, :, None] * self._kernel * root[:, None, :]
        inner = _cholesky_solve(kernel, self.ridge, root * (rhs @ self.psi.T))
        return (rhs - (root * inner) @ self.psi) / self.ridge

    @cached_property
    def _kernel(self) -> Tensor:
        """Psi Psi', [n, n]; cached, because every step of a fit needs it."""
        return self.psi @ self.psi.T

    def _gram(self, weights: Tensor) -> Tensor:
        return (self.psi.T * weights[:, None]) @ self.psi


def check_ridge(ridge: float, threshold: float) -> None:
    """Refuse a ridge or a Huber threshold under which a head has no bounded sensitivity."""
    if not (ridge > 0 and math.isfinite(ridge)):
        raise InputError(f"second_stage.ridge = {ridge}: the sensitivity is bounded only with a positive ridge")
    if not threshold > 0:
        raise InputError(f"second_stage.threshold = {threshold}: give a positive Huber threshold")


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

    The largest over t. Source: docs/guarantees/two_blocks.md; the pair that attains it as n grows is
    ``worst_pair``.

    Example:
        >>> round(squared_sensitivity(0.9, 1.0, 0.01, 1350), 9)
        0.397714482
    """
    beta = weight_bound / math.sqrt(ridge)
    cos = beta / (math.sqrt(1 + 2 * beta**2) + 1)
    return 2 * weight_bound * target_bound / (ridge * n) * math.sqrt(1 - cos**2) * (1 + beta / 2 * cos)


def exact_sensitivity(weight_bound: float, target_bound: float, ridge: float, n: int, threshold: float) -> float:
    """Return how far one replaced record moves the exact minimiser; an infinite threshold is the squared loss."""
    if math.isinf(threshold):
        return squared_sensitivity(weight_bound, target_bound, ridge, n)
    return huber_sensitivity(weight_bound, threshold, ridge, n)


def sensitivity(problem: LinearProblem) -> float:
    """Return how far one replaced record moves the returned fit, its inexactness included.

    The exact minimiser moves by ``exact_sensitivity``; a fit whose gradient norm is at most tol lies within
    tol / (2 ridge) of it on either data set.
    """
    bounds = problem.weight_bound, problem.target_bound, problem.ridge, problem.n, problem.threshold
    return exact_sensitivity(*bounds) + problem.tolerance / problem.ridge


def solve(problem: LinearProblem) -> Minimiser:
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
    theta, norm = _newton(problem, problem.w.new_zeros(1, problem.psi.shape[1]))
    return Minimiser(theta[0], norm[0].item())


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
    rows = max(1, _MOST_NUMBERS // problem.psi.numel())
    return torch.cat([_newton(problem, part)[0] for part in linear_terms.split(rows)])


_MOST_NUMBERS = 20_000_000  # in one batch of weighted features


def _newton(problem: LinearProblem, linear_terms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimisers [runs, p] of the perturbed objectives and their gradient norms [runs]."""
    share, loss = problem.w.square() / problem.n, Huber(problem.threshold)

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [runs], gradients [runs, p], curvature of each record's loss [runs, n]."""
        slopes = loss(problem.w * (theta @ problem.psi.T), problem.s)
        value = slopes.value.mean(1) + problem.ridge * theta.square().sum(1) + (linear_terms * theta).sum(1)
        pull = (slopes.first * problem.w) @ problem.psi / problem.n
        return value, pull + 2 * problem.ridge * theta + linear_terms, slopes.second

    def step(theta: Tensor, gradient: Tensor, second: Tensor) -> Tensor:
        return problem.solve(second / 2 * share, gradient / 2)

    def bounds() -> tuple[Tensor, Tensor]:
        # a record's loss curves by 2 ||v||^2 at most: public, so that the steps have a public bound on all records
        least = torch.full_like(linear_terms[:, 0], 2 * problem.ridge)
        return least, least + 2 * problem.weight_bound**2

    start, remedy = torch.zeros_like(linear_terms), "raise second_stage.ridge"
    return newton(evaluate, step, start, problem.tolerance, what="the linear head", remedy=remedy, bounds=bounds)


_ANGLES, _LENGTHS = 4_001, 201  # of the grid


@dataclass(frozen=True, eq=False)
class WorstPair:
    """Two regressions that differ in record 0 alone.

    Attributes:
        first: The regression on D.
        second: The regression on its neighbour D'.
    """

    first: LinearProblem
    second: LinearProblem

    @property
    def change(self) -> float:
        """Distance of the two minimisers, coefficients as they are solved for."""
        return (solve(self.first).theta - solve(self.second).theta).norm().item()

    @property
    def share(self) -> float:
        """Share of the proved sensitivity that the pair reaches; never above one."""
        return self.change / sensitivity(self.first)


def worst_pair(
    weight_bound: float, target_bound: float, ridge: float, n: int, threshold: float = math.inf
) -> WorstPair:
    r"""Return the mirrored pair: a record jumps across the line on which all others lie, in two dimensions.

    The other n - 1 records are alike: v = (u, 0), s = S with u near sqrt(ridge), which makes theta as long as it
    gets, about S / (2 sqrt(ridge)), and leaves the second direction to the ridge alone. Record 0 has s = -S and
    v = B (cos t, sin t) on D, v = B (cos t, -sin t) on D'. By symmetry the minimisers are mirrored too, 2 y apart.
    With q = (n-1)/n u S, a = ridge + (n-1)/n u^2 and k = B^2 / n the squared loss has

    .. math:: y = \sin t\,\frac{a S B / n + k q \cos t}{a\lambda + a k \sin^2 t + \lambda k \cos^2 t}

    and the Huber loss y or B tau sin(t) / (ridge n), whichever is less. t and u are the best of a fine grid.

    Source: found by searches over data sets (``experiments.audit.worst_problem``). No search went beyond it
    for the squared loss and for tau <= S, and by less than one per cent for larger tau. For the squared loss as n
    grows, cos t = (sqrt(1 + 2 beta^2) - 1) / (2 beta) with beta = B / sqrt(ridge), and the change tends to
    the proved sensitivity.

    Args:
        weight_bound: Public bound B of ||v||.
        target_bound: Public bound S of |s|.
        ridge: lambda, positive.
        n: Records, at least 2.
        threshold: Huber threshold; infinity means the squared loss.

    Raises:
        InputError: Fewer than two records, or a bad ridge or threshold.

    Example:
        >>> round(worst_pair(0.9, 1.0, 0.01, 1350).share, 3), round(worst_pair(0.9, 1.0, 0.01, 1350, 0.5).share, 6)
        (0.955, 1.0)
    """
    if n < 2:
        raise InputError(f"n = {n}: neighbours that are not all there is need at least 2 records")
    rest = (n - 1) / n
    angle = torch.linspace(0, math.pi / 2, _ANGLES, dtype=torch.float64)[1:, None]
    u = (math.sqrt(ridge) * torch.logspace(-0.5, 0.5, _LENGTHS, dtype=torch.float64)).clamp(max=weight_bound)
    cos, sin, q, a, k = angle.cos(), angle.sin(), rest * u * target_bound, ridge + rest * u**2, weight_bound**2 / n
    top = a * target_bound * weight_bound / n + k * q * cos
    y = sin * top / (a * ridge + a * k * sin**2 + ridge * k * cos**2)
    best, length = divmod(int(torch.minimum(y, weight_bound * threshold / (ridge * n) * sin).argmax()), _LENGTHS)
    psi = torch.zeros(n, 2, dtype=torch.float64)
    psi[:, 0] = 1.0
    s, w = torch.full((n,), target_bound, dtype=torch.float64), torch.full((n,), float(u[length]), dtype=torch.float64)
    s[0], w[0] = -target_bound, weight_bound
    pair = []
    for side in (1.0, -1.0):
        psi[0] = torch.cat([cos[best], side * sin[best]])
        pair.append(LinearProblem(psi.clone(), s, w, ridge, weight_bound, target_bound, threshold))
    return WorstPair(*pair)
