"""Conjugate gradients on many right-hand sides side by side, restarted from the true residual until that is small.

Restarts are iterative refinement: what the iteration works with decides how long a solve takes, never how exact it is.
So it may work with float32 products as long as the residuals are those of the matrix itself.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Apply = Callable[[Tensor, Tensor], Tensor]
"""(V [p, k], which columns of the right-hand sides these are [k]) -> A V, [p, k]."""

_ROUGH = 1e-5  # what float32 is asked to take off a residual before the next true one
_ROUGH_STEPS = 500  # of float32 between two true residuals
_HELPS = 0.5  # of the residual before: float32 that leaves more is given up


def conjugate_gradients(
    apply: Apply,
    B: Tensor,
    tolerance: float,
    most: int,
    *,
    precondition: Callable[[Tensor], Tensor] | None = None,
    look: Callable[[Tensor], None] | None = None,
    rough: Apply | None = None,
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
        precondition: R [p, k] -> M^{-1} R, for M like A; of R's type.
        look: Sees the curvature d'Ad / d'd of each direction, [k], and may raise; not of rough products, which are too
            inexact to judge by.
        rough: Products with nearly A, float32 -> float32. They take the iteration as far as they can, with residuals by
            ``apply`` in between (iterative refinement); where they no longer help, or meet a direction without
            curvature, ``apply`` goes on from there.

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
        if worst <= tolerance or left <= 0:
            return X, worst
        if rough is not None and not worst < _HELPS * before:
            rough, before = None, math.inf
        if not worst < before:
            return X, worst
        goal = 0.9 * tolerance * norms
        if rough is None:
            correction, used = _iterate(apply, residual, goal**2, left, precondition, look)
            X = X + correction
            residual = B - apply(X, every)
        else:
            correction, used = _iterate_roughly(rough, residual, goal, min(left, _ROUGH_STEPS), precondition)
            found = B - apply(X + correction, every)
            better = found.norm(dim=0) < residual.norm(dim=0)
            X = torch.where(better, X + correction, X)
            residual = torch.where(better, found, residual)
        left, before = left - used, worst


def _iterate_roughly(
    rough: Apply, residual: Tensor, goal: Tensor, most: int, precondition: Callable[[Tensor], Tensor] | None
) -> tuple[Tensor, int]:
    """Return a correction worked out in float32, zero where that is not finite, and the iterations it took."""
    norms = residual.norm(dim=0)
    scale = torch.where(norms > 0, norms, 1.0)  # columns of norm 1: float32 has few small numbers
    target = (goal / scale).clamp(min=_ROUGH).square()
    X, used = _iterate(rough, (residual / scale).float(), target.float(), most, precondition, None)
    return torch.where(torch.isfinite(X), X, 0.0).to(residual) * scale, used


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
        if not bool((curvature > 0).all()):
            return X, iteration + 1
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
