"""Minimisers of perturbed sums over records that are read batch by batch, as often as needed, in constant memory."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from torchdpcate.erm.descent import newton
from torchdpcate.erm.losses import Loss
from torchdpcate.erm.solver import MOST_NUMBERS, PerturbedSum, linear_predictor, newton_direction, positive_ridges
from torchdpcate.privacy.exact_sums import exact_sum

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Reads all records anew: features [b, p] or [runs, b, p] and targets [b] or [runs, b], batch by batch."""

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
        >>> from torchdpcate.erm import Squared
        >>> psi, t = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double()
        >>> value, gradient, hessian = summed(lambda: [(psi, t)], Squared(2.0), torch.zeros(1, 2).double())
        >>> value.tolist(), gradient.tolist(), hessian.tolist()
        ([5.0], [[-2.0, -4.0]], [[[2.0, 0.0], [0.0, 2.0]]])
    """
    runs, p = theta.shape
    none, flat = theta.new_zeros(runs), torch.zeros_like(theta)
    value, gradient, hessian = theta.new_zeros(runs), torch.zeros_like(theta), theta.new_zeros(runs, p, p)
    for psi, target in _pieces(batches(), runs):
        part = PerturbedSum(psi, target, torch.ones_like(target), loss, none, flat)
        own_value, own_gradient, second = part.evaluate(theta)
        value, gradient, hessian = value + own_value, gradient + own_gradient, hessian + part.hessian(second)
    return value, gradient, hessian


def summed_gradient(batches: Batches, loss: Loss, theta: Tensor, n: int, bound: float) -> Tensor:
    r"""Return the gradient [runs, p] of a sum over all records at theta [runs, p] alone, exact on a public grid.

    .. math:: F'(\theta) = \sum_i \ell'(\psi_i^\top\theta, t_i)\, \psi_i

    The low bits of such a sum do not depend on the order of the records, see ``privacy.exact_sum``.

    Args:
        batches: Reads the records.
        loss: The loss.
        theta: Where, one point a run.
        n: How many records there are, public.
        bound: Public bound of |l' psi_j|; ``sum_grid`` of both adds to what one record moves an entry by.

    Example:
        >>> from torchdpcate.erm import Squared
        >>> psi, t = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double()
        >>> summed_gradient(lambda: [(psi, t)], Squared(2.0), torch.zeros(1, 2).double(), 2, 4.0).tolist()
        [[-2.0, -4.0]]
    """
    gradient = torch.zeros_like(theta)
    for psi, target in _pieces(batches(), len(theta)):
        pulls = loss(linear_predictor(psi, theta), target).first
        gradient = gradient + exact_sum(pulls[:, :, None] * psi, n, bound, dim=1)
    return gradient


def minimise_batches(
    batches: Batches, loss: Loss, gamma: float | Tensor, linear_terms: Tensor, tolerance: float
) -> Tensor:
    r"""Minimise perturbed sums of unit weights, one a row of ``linear_terms``, in constant memory: each step is a pass.

    .. math:: F(\theta) = \sum_i \ell(\psi_i^\top\theta, t_i) + \tfrac{\gamma}{2}\|\theta\|^2 + b^\top\theta

    The stop, and why it is always reached, are those of ``minimise`` without a domain.

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
        >>> from torchdpcate.erm import Squared
        >>> psi, t = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double()
        >>> one_by_one = lambda: zip(psi[:, None], t[:, None])
        >>> minimise_batches(one_by_one, Squared(2.0), 2.0, torch.zeros(1, 2), 1e-9).tolist()
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
        norms = torch.zeros_like(ridges)
        for psi, _ in _pieces(batches(), len(linear_terms)):
            norms = norms + psi.square().sum((-2, -1))
        return ridges, loss.curvature * norms + ridges

    return newton(evaluate, step, torch.zeros_like(linear_terms), tolerance, bounds=curvatures)[0]


def _pieces(batches: Iterable[tuple[Tensor, Tensor]], runs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split batches so that an array of a piece's features for all runs fits into a cache."""
    for psi, target in batches:
        records = max(_LEAST_RECORDS, MOST_NUMBERS // max(1, runs * psi.shape[-1]))
        yield from zip(psi.double().split(records, -2), target.double().split(records, -1), strict=True)
