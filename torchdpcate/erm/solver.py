"""Minimisers of weighted, perturbed, strongly convex sums: damped Newton steps, many runs at once, certified stops."""

from typing import Any

import torch
from torch import Tensor

from torchdpcate.erm.descent import newton
from torchdpcate.erm.domains import ConvexDomain
from torchdpcate.erm.losses import Loss
from torchdpcate.errors import InputError

MOST_NUMBERS = 500_000
"""Features, times the runs of one batch, that a processor's cache holds."""


def default_tolerance(slope: float, most: float) -> float:
    """A public stop for ``minimise``: 1e-9 of the largest gradient of one record, slope times most.

    A sum of n such gradients is exact to about 1e-16 n of it in float64, so that millions of records meet it. Noise
    that hides the stop is some millionths of the other noise.

    Example:
        >>> default_tolerance(1.0, 2.0)
        2e-09
    """
    return 1e-9 * slope * most


def minimise(
    psi: Tensor,
    target: Tensor,
    weights: Tensor,
    loss: Loss,
    gamma: float | Tensor,
    linear_terms: Tensor,
    tolerance: float,
    domain: ConvexDomain | None = None,
) -> Tensor:
    r"""Minimise weighted, perturbed sums, one a row of ``linear_terms``.

    .. math:: F(\theta) = \sum_i w_i\,\ell(\psi_i^\top\theta, t_i) + \tfrac{\gamma}{2}\|\theta\|^2 + b^\top\theta

    Without a domain the end's gradient norm is at most tau = ``tolerance``, so that it lies within tau / gamma of the
    minimiser; in real arithmetic it is reached on all data, see ``newton``. On a domain the norm of the gradient
    mapping G = L (theta - P(theta - F'(theta) / L)) is, L a bound of the curvature, and the distance at most
    2 tau / gamma (Nesterov 2004, theorem 2.2.7). More features than records are fine, for gamma is positive.

    Args:
        psi: Features, [n, p], or [runs, n, p] for a data set a run.
        target: t, [n] or [runs, n].
        weights: w, not negative, [n] or [runs, n].
        loss: The loss.
        gamma: Strong convexity of the sum, one number or [runs].
        linear_terms: b, [runs, p]; zeros for no linear term.
        tolerance: tau.
        domain: Set to which theta is confined.

    Returns:
        The minimisers, float64 [runs, p].

    Raises:
        InputError: If gamma is not positive, or there are not as many linear terms as data sets.
        NumericalError: The tolerance was not reached, because it is finer than float64 resolves; nothing may be
            released.

    Example:
        >>> from torchdpcate.erm import Squared
        >>> psi, t, w = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double(), torch.ones(2).double()
        >>> minimise(psi, t, w, Squared(2.0), 2.0, torch.zeros(1, 2), 1e-9).tolist()
        [[0.5, 1.0]]
    """
    runs, p = linear_terms.shape
    ridges = positive_ridges(gamma, runs, psi.device)
    if psi.ndim == 3 and len(psi) != runs:
        raise InputError(f"linear_terms: {runs} rows for {len(psi)} data sets; give one for each")
    rows = max(1, MOST_NUMBERS // max(1, psi.shape[-2] * p))
    parts = []
    for k in range(0, runs, rows):
        batch = slice(k, k + rows)
        features = (psi[batch] if psi.ndim == 3 else psi).double()
        targets, masses = ((part[batch] if part.ndim == 2 else part).double() for part in (target, weights))
        problem = PerturbedSum(features, targets, masses, loss, ridges[batch], linear_terms[batch].to(features))
        parts.append(problem.solve(tolerance, domain))
    return torch.cat(parts) if parts else linear_terms.double()


def positive_ridges(gamma: float | Tensor, runs: int, device: torch.device) -> Tensor:
    """Return gamma of each run, float64 [runs].

    Raises:
        InputError: If one is not positive.
    """
    ridges = torch.as_tensor(gamma, dtype=torch.float64, device=device).expand(runs)
    if not bool((ridges > 0).all()):
        raise InputError(
            f"ridge = {ridges.min().item():g}: the sum is not strongly convex (nor has it one minimiser with more "
            "features than records); give a ridge above 0"
        )
    return ridges


def newton_direction(gradient: Tensor, hessian: Tensor) -> Tensor:
    """Return H^-1 g, [runs, p]; not a number where H is not positive definite."""
    factor = torch.linalg.cholesky_ex(hessian).L
    return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]


def linear_predictor(psi: Tensor, theta: Tensor) -> Tensor:
    """Return psi'theta, [runs, n], for features [n, p] or [runs, n, p] and coefficients [runs, p]."""
    return theta @ psi.T if psi.ndim == 2 else (psi @ theta[:, :, None])[:, :, 0]


class PerturbedSum:
    """F of one batch of runs: features [n, p] or [runs, n, p], the rest alike, gamma [runs], linear terms [runs, p]."""

    def __init__(
        self, psi: Tensor, target: Tensor, weights: Tensor, loss: Loss, gamma: Tensor, linear_terms: Tensor
    ) -> None:
        self.psi, self.target, self.weights, self.loss = psi, target, weights, loss
        self.gamma, self.linear_terms = gamma, linear_terms

    def solve(self, tolerance: float, domain: ConvexDomain | None) -> Tensor:
        """Minimisers [runs, p]; see ``minimise``."""
        start = torch.zeros_like(self.linear_terms)
        if domain is None:
            return newton(self.evaluate, self._newton_step, start, tolerance, bounds=self._curvatures)[0]
        most = self._most_curvature()

        def measure(theta: Tensor, gradient: Tensor) -> Tensor:
            return _mapping(theta, gradient, most, domain).norm(dim=1)

        def step(theta: Tensor, gradient: Tensor, second: Tensor) -> Tensor:
            enough = 1e-3 * measure(theta, gradient).clamp_min(tolerance)
            return theta - _constrained_quadratic(theta, gradient, self.hessian(second), domain, enough)

        ends: dict[str, Any] = {"bounds": lambda: (self.gamma, most), "project": domain.project}
        return newton(self.evaluate, step, start, tolerance, measure=measure, **ends)[0]

    def evaluate(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [runs], gradients [runs, p] and each record's weighted curvature [runs, n]."""
        u = linear_predictor(self.psi, theta)
        slopes = self.loss(u, self.target)
        pulls = self.weights * slopes.first
        pull = pulls @ self.psi if self.psi.ndim == 2 else (pulls[:, None] @ self.psi)[:, 0]
        value = (self.weights * slopes.value).sum(1) + (
            theta * (self.gamma[:, None] / 2 * theta + self.linear_terms)
        ).sum(1)
        return value, pull + self.gamma[:, None] * theta + self.linear_terms, self.weights * slopes.second

    def _newton_step(self, theta: Tensor, gradient: Tensor, second: Tensor) -> Tensor:
        return newton_direction(gradient, self.hessian(second))

    def hessian(self, second: Tensor) -> Tensor:
        """Hessians [runs, p, p] from each record's weighted curvature [runs, n]."""
        H = (self.psi.mT * second[:, None]) @ self.psi
        H.diagonal(dim1=1, dim2=2).add_(self.gamma[:, None])
        return H

    def _curvatures(self) -> tuple[Tensor, Tensor]:
        """Least and largest eigenvalue [runs] that the Hessian can have anywhere; the trace bounds the largest."""
        norms = (self.weights * self.psi.square().sum(-1)).sum(-1)
        return self.gamma, self.loss.curvature * norms + self.gamma

    def _most_curvature(self) -> Tensor:
        """L [runs]: the largest eigenvalue that the Hessian can have anywhere, a little rounded up."""
        gram = (self.psi.mT * self.weights[..., None, :]) @ self.psi
        return self.loss.curvature * torch.linalg.eigvalsh(gram)[..., -1] * (1 + 1e-9) + self.gamma


def _mapping(theta: Tensor, gradient: Tensor, most: Tensor, domain: ConvexDomain) -> Tensor:
    """Gradient mapping [runs, p] with curvature bound ``most`` [runs]."""
    return most[:, None] * (theta - domain.project(theta - gradient / most[:, None]))


def _constrained_quadratic(
    theta: Tensor, gradient: Tensor, hessian: Tensor, domain: ConvexDomain, enough: Tensor
) -> Tensor:
    """Minimiser [runs, p] over the domain of gradient'(t - theta) + (t - theta)'H(t - theta)/2.

    By accelerated projected gradients with the momentum for its condition number (Nesterov 2004, scheme 2.2.11),
    until the gradient mapping's norm is ``enough`` [runs]. No step costs more than p^2 a run.
    """
    ends = torch.linalg.eigvalsh(hessian)
    low, high = ends[:, 0].clamp_min(1e-16 * ends[:, -1]), ends[:, -1] * (1 + 1e-9)
    ratio = (low / high).sqrt()
    momentum = ((1 - ratio) / (1 + ratio))[:, None]
    point = ahead = theta
    for _ in range(100 + int(50 / ratio.min().item())):
        slope = gradient + (hessian @ (ahead - theta)[:, :, None])[:, :, 0]
        new = domain.project(ahead - slope / high[:, None])
        if bool((high * (new - ahead).norm(dim=1) <= enough).all()):
            return new
        point, ahead = new, new + momentum * (new - point)
    return point  # the damped Newton loop looks at what it brings
