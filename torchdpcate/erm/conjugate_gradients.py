"""Conjugate gradients on many right-hand sides side by side, restarted from the true residual until that is small."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Apply = Callable[[Tensor, Tensor], Tensor]
"""(V [p, k], which columns of the right-hand sides these are [k]) -> A V, [p, k]."""


def conjugate_gradients(
    apply: Apply,
    B: Tensor,
    tolerance: float,
    most: int,
    *,
    precondition: Callable[[Tensor], Tensor] | None = None,
    look: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, float]:
    """Solve A X = B, A symmetric and positive definite (Hestenes & Stiefel, 1952).

    Columns have steps of their own, and those that have arrived take no further part. Recursive residuals drift, so the
    true ones are computed at the end, and the iteration starts again from them as long as that helps. The caller
    decides on what is left of them.

    Args:
        apply: Products with A; of each column of B it may be another one.
        B: Right-hand sides, [p, k].
        tolerance: Largest relative true residual of a column that is aimed at.
        most: Products a column.
        precondition: R [p, k] -> M^{-1} R, for M like A.
        look: Sees the curvature d'Ad / d'd of each direction, [k], and may raise.

    Returns:
        X [p, k], and the largest relative true residual of a column: above the tolerance, or not a number, if the
        products were used up, float64 resolves no more, or A is not positive definite.

    Example:
        >>> A, B = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double(), torch.tensor([[3.0], [4.0]]).double()
        >>> X, left = conjugate_gradients(lambda V, _: A @ V, B, 1e-12, 10)
        >>> X.flatten().round(decimals=9).tolist(), left <= 1e-12
        ([1.0, 1.0], True)
    """
    X, residual, norms, left, before = torch.zeros_like(B), B, B.norm(dim=0), most, math.inf
    scale = torch.where(norms > 0, norms, 1.0)
    every = torch.arange(B.shape[1], device=B.device)
    while True:
        worst = float((residual.norm(dim=0) / scale).amax()) if len(every) else 0.0
        if worst <= tolerance or left <= 0 or not worst < before:
            return X, worst
        correction, used = _iterate(apply, residual, (0.9 * tolerance * norms) ** 2, left, precondition, look)
        X, left, before = X + correction, left - used, worst
        residual = B - apply(X, every)


def _iterate(
    apply: Apply,
    B: Tensor,
    target: Tensor,
    most: int,
    precondition: Callable[[Tensor], Tensor] | None,
    look: Callable[[Tensor], None] | None,
) -> tuple[Tensor, int]:
    """Return an approximate solution, and the number of iterations it took."""
    X, R = torch.zeros_like(B), B.clone()
    square = (R * R).sum(0)
    D = R.clone() if precondition is None else precondition(R)
    product = square.clone() if precondition is None else (R * D).sum(0)
    for iteration in range(most):
        (active,) = torch.where(square > target)
        if len(active) == 0:
            return X, max(iteration, 1)
        d = D[:, active]
        q = apply(d, active)
        curvature = (d * q).sum(0)
        if look is not None:
            look(curvature / (d * d).sum(0))
        step = product[active] / curvature
        X[:, active] += step * d
        r = R[:, active] - step * q
        R[:, active] = r
        square[active] = (r * r).sum(0)
        z = r if precondition is None else precondition(r)
        new = square[active] if precondition is None else (r * z).sum(0)
        D[:, active] = z + new / product[active] * d
        product[active] = new
    return X, most
