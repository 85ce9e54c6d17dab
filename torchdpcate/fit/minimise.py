"""Minimisers of weighted, perturbed, strongly convex sums, with certified stops; sums for ridge regressions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.streams import RECORDS, PartedStream
from torchdpcate.errors import InputError
from torchdpcate.fit.descent import newton
from torchdpcate.fit.losses import Loss

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
) -> Tensor:
    r"""Minimise weighted, perturbed sums, one a row of ``linear_terms``.

    .. math:: F(\theta) = \sum_i w_i\,\ell(\psi_i^\top\theta, t_i) + \tfrac{\gamma}{2}\|\theta\|^2 + b^\top\theta

    The end's gradient norm is at most tau = ``tolerance``, so that it lies within tau / gamma of the minimiser; in real
    arithmetic it is reached on all data, see ``newton``. More features than records are fine, for gamma is positive.

    Args:
        psi: Features, [n, p], or [runs, n, p] for a data set a run.
        target: t, [n] or [runs, n].
        weights: w, not negative, [n] or [runs, n].
        loss: The loss.
        gamma: Strong convexity of the sum, one number or [runs].
        linear_terms: b, [runs, p]; zeros for no linear term.
        tolerance: tau.

    Returns:
        The minimisers, float64 [runs, p].

    Raises:
        InputError: If gamma is not positive, or there are not as many linear terms as data sets.
        NumericalError: The tolerance was not reached, because it is finer than float64 resolves; nothing may be
            released.

    Example:
        >>> from torchdpcate.fit.losses import Huber
        >>> psi, t, w = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double(), torch.ones(2).double()
        >>> minimise(psi, t, w, Huber(2.0), 2.0, torch.zeros(1, 2), 1e-9).tolist()
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
        parts.append(problem.solve(tolerance))
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

    def solve(self, tolerance: float) -> Tensor:
        """Minimisers [runs, p]; see ``minimise``."""
        start = torch.zeros_like(self.linear_terms)
        return newton(self.evaluate, self._newton_step, start, tolerance, bounds=self._curvatures)[0]

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


ReadBatches = Callable[[], Iterable[tuple[Tensor, ...]]]
"""Reads all records anew, batch by batch: features [b, p] or [runs, b, p], targets and, if not all are one, weights
[b] or [runs, b]."""


@dataclass(frozen=True, eq=False)
class PartedBatches:
    """Batches that lie in parts elsewhere: sums over them are taken there.

    Attributes:
        stream: The records.
        read: From what a part holds to what reads its batches.
        of: Name of what is held.
    """

    stream: PartedStream
    read: Callable[[Any], ReadBatches]
    of: str = RECORDS

    def added(self, sums: Callable[[ReadBatches], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the totals of sums over the batches of each part, added in the order of the parts."""
        found = self.stream.ask(partial(_of_part, self.read, sums), self.of)
        return tuple(reduce(torch.add, numbers) for numbers in zip(*found, strict=True))


def _of_part(
    read: Callable[[Any], ReadBatches], sums: Callable[[ReadBatches], tuple[Tensor, ...]], held: Any
) -> tuple[Tensor, ...]:
    return sums(read(held))


Batches = ReadBatches | PartedBatches
"""All records, by passes over them."""

_LEAST_RECORDS = 64  # of a piece: smaller ones cost more in calls than their memory is worth


def summed(batches: Batches, loss: Loss, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return value [runs], gradient [runs, p] and Hessian [runs, p, p] of a sum over all records at theta [runs, p].

    .. math:: F(\theta) = \sum_i \ell(\psi_i^\top\theta, t_i)

    One pass, in memory that grows with neither the records nor a batch's size.

    Args:
        batches: Reads the records.
        loss: The loss.
        theta: Where, one point a run.

    Example:
        >>> from torchdpcate.fit.losses import Huber
        >>> psi, t = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double()
        >>> value, gradient, hessian = summed(lambda: [(psi, t)], Huber(2.0), torch.zeros(1, 2).double())
        >>> value.tolist(), gradient.tolist(), hessian.tolist()
        ([5.0], [[-2.0, -4.0]], [[[2.0, 0.0], [0.0, 2.0]]])
    """
    if isinstance(batches, PartedBatches):
        value, gradient, hessian = batches.added(partial(summed, loss=loss, theta=theta))
        return value, gradient, hessian
    runs, p = theta.shape
    none, flat = theta.new_zeros(runs), torch.zeros_like(theta)
    value, gradient, hessian = theta.new_zeros(runs), torch.zeros_like(theta), theta.new_zeros(runs, p, p)
    for psi, target, weights in _pieces(batches(), runs):
        part = PerturbedSum(psi, target, weights, loss, none, flat)
        own_value, own_gradient, second = part.evaluate(theta)
        value, gradient, hessian = value + own_value, gradient + own_gradient, hessian + part.hessian(second)
    return value, gradient, hessian


def minimise_batches(
    batches: Batches, loss: Loss, gamma: float | Tensor, linear_terms: Tensor, tolerance: float
) -> Tensor:
    r"""Minimise perturbed sums, one a row of ``linear_terms``, in constant memory: each step is a pass.

    .. math:: F(\theta) = \sum_i w_i\,\ell(\psi_i^\top\theta, t_i) + \tfrac{\gamma}{2}\|\theta\|^2 + b^\top\theta

    The stop, and why it is always reached, are those of ``minimise``.

    Args:
        batches: Reads the records, in the same order each time.
        loss: The loss.
        gamma: Strong convexity of the sum, one number or [runs].
        linear_terms: b, [runs, p]; zeros for no linear term.
        tolerance: Largest norm of the gradient at the end.

    Returns:
        The minimisers, float64 [runs, p].

    Raises:
        InputError: If gamma is not positive.
        NumericalError: The tolerance is finer than float64 resolves; nothing may be released.

    Example:
        >>> from torchdpcate.fit.losses import Huber
        >>> psi, t = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double()
        >>> one_by_one = lambda: zip(psi[:, None], t[:, None])
        >>> minimise_batches(one_by_one, Huber(2.0), 2.0, torch.zeros(1, 2), 1e-9).tolist()
        [[0.5, 1.0]]
    """
    linear_terms = linear_terms.double()
    ridges = positive_ridges(gamma, len(linear_terms), linear_terms.device)

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, hessian = summed(batches, loss, theta)
        hessian.diagonal(dim1=1, dim2=2).add_(ridges[:, None])
        pull = ridges[:, None] * theta
        return value + (theta * (pull / 2 + linear_terms)).sum(1), gradient + pull + linear_terms, hessian

    def step(theta: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
        return newton_direction(gradient, hessian)

    def curvatures() -> tuple[Tensor, Tensor]:
        norms = partial(_norms, torch.zeros_like(ridges))
        (total,) = batches.added(norms) if isinstance(batches, PartedBatches) else norms(batches)
        return ridges, loss.curvature * total + ridges

    return newton(evaluate, step, torch.zeros_like(linear_terms), tolerance, bounds=curvatures)[0]


def _norms(start: Tensor, batches: ReadBatches) -> tuple[Tensor, ...]:
    """Return the weighted sums of all squared norms of features, [runs], added to a start."""
    norms = start
    for psi, _, weights in _pieces(batches(), len(start)):
        norms = norms + (weights * psi.square().sum(-1)).sum(-1)
    return (norms,)


def _pieces(batches: Iterable[tuple[Tensor, ...]], runs: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Split batches, with their weights, so that an array of a piece's features for all runs fits into a cache."""
    for psi, target, *given in batches:
        records = max(_LEAST_RECORDS, MOST_NUMBERS // max(1, runs * psi.shape[-1]))
        columns = (target, *(given or [torch.ones_like(target)]))
        yield from zip(psi.double().split(records, -2), *(c.double().split(records, -1) for c in columns), strict=True)
