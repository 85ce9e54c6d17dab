"""The gross-error sensitivity: the most that any record of the domain can move the effects at the queries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from torchdpcate.errors import NumericalError
from torchdpcate.influence.box import maximise_over_box

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain

Regression = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Influence(Protocol):
    """The interface of influence functions for the search."""

    @property
    def theta(self) -> Tensor:
        """Coefficients of the fit, of whose type and device all is."""

    def norm(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """``||IF||_2`` of records x [B, q], s and w [k, B]: [k, B]; differentiable in x."""


@dataclass(frozen=True)
class Supremum:
    """The record of the domain with the largest influence found, and that influence.

    Attributes:
        value: Its norm, gamma; a lower bound of the supremum. It depends on the records: the curator's alone.
        x: Covariates of the record, [q].
        a: Its treatment, 0 or 1.
        y: Its outcome, an end point of the outcome interval.
    """

    value: float
    x: Tensor
    a: int
    y: float


def gross_error_sensitivity(
    influence: Influence,
    regression: Regression,
    domain: "Domain",
    *,
    starts: int = 1024,
    climbs: int = 128,
    polishes: int = 2,
    seed: int = 0,
) -> Supremum:
    r"""Gross-error sensitivity ``gamma = sup_z ||IF(z)||_2`` over the records z = (x, a, y) of the domain.

    The supremum runs over the public domain and never over the sample: a in {0, 1} is enumerated; s is affine
    in y, so the norm is convex in y and only the two end points of the outcome interval count; x is searched
    over the box by ``maximise_over_box``. Source: Hampel (1974); it scales the noise of Schroeder, Melnychuk &
    Feuerriegel (2025), Theorem 1.

    Guarantee: none. A local search gives a lower bound of the supremum; ``operator_norm_bound`` is an upper
    bound for linear heads.

    Args:
        influence: Influence function of the head, at the d queries.
        regression: Targets and weights ``(s, w)``, [B] and [B], of records x [B, q], a [B], y [B];
            differentiable in x (almost everywhere is enough) and affine in y. It is called with tensors like
            ``influence.theta``.
        domain: Public bounds of covariates and outcome.
        starts: As of ``maximise_over_box``.
        climbs: As of ``maximise_over_box``.
        polishes: As of ``maximise_over_box``.
        seed: As of ``maximise_over_box``; public.

    Returns:
        The largest influence found and where.

    Raises:
        NumericalError: if an influence is not finite.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.influence import InfluenceFunction
        >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> zero, one = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> F = InfluenceFunction(lambda t, x: x @ t, zero[:1], x, zero, one, 0.5, x[:1])
        >>> domain = Domain([0], [6], outcome_low=-1, outcome_high=3)
        >>> gamma = gross_error_sensitivity(F, lambda x, a, y: (y, torch.ones_like(y)), domain)  # sup |x y / 3|
        >>> round(gamma.value, 9), gamma.x, gamma.y
        (6.0, tensor([6.], dtype=torch.float64), 3.0)
    """
    theta = influence.theta
    a = torch.tensor([0, 0, 1, 1]).to(theta)
    y = torch.tensor([domain.outcome_low, domain.outcome_high] * 2).to(theta)

    def norms(x: Tensor) -> Tensor:
        s, w = regression(x.repeat(4, 1), a.repeat_interleave(len(x)), y.repeat_interleave(len(x)))
        return influence.norm(x, s.view(4, -1), w.view(4, -1))

    low, high = domain.covariate_low.to(theta), domain.covariate_high.to(theta)
    best = maximise_over_box(
        lambda x: norms(x).amax(0),
        low,
        high,
        starts=starts,
        climbs=climbs,
        polishes=polishes,
        seed=seed,
        place=None if domain.linear else domain.from_unit,
    )
    with torch.no_grad():
        arm = int(norms(best.x[None]).argmax())
    return Supremum(best.value, best.x, int(a[arm]), float(y[arm]))


def operator_norm_bound(J: Tensor, A: Tensor, kappa: float) -> float:
    r"""Certified bound ``sup_x ||h(x)||_2 <= kappa ||J A^{-1}||_op`` for a head linear in its features.

    For ``f = psi^T theta`` with ``||psi(x)|| <= kappa`` everywhere, ``h(x) = J A^{-1} psi(x)``; no search is
    involved.

    Args:
        J: Features of the queries, [d, p].
        A: ``ridge I + (1/n) sum w^2 psi psi^T``, half the Hessian, [p, p].
        kappa: Public bound of the features' norm.

    Returns:
        The bound.

    Raises:
        NumericalError: if A is not positive definite.

    Example:
        >>> operator_norm_bound(torch.tensor([[3.0, 4.0]]), 2 * torch.eye(2), kappa=1.0)
        2.5
    """
    L, failed_at = torch.linalg.cholesky_ex(A)
    if int(failed_at) != 0:
        raise NumericalError(f"A is not positive definite (leading minor {int(failed_at)}): raise the head's `ridge`")
    return kappa * float(torch.linalg.matrix_norm(torch.cholesky_solve(J.T, L), 2))
