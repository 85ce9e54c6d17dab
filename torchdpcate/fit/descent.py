"""Iterative solvers side by side: conjugate gradients, damped Newton steps, and gradient steps."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from torchdpcate.errors import NumericalError

Apply = Callable[[Tensor, Tensor], Tensor]
"""(V [p, k], which columns of the right-hand sides these are [k]) -> A V, [p, k]."""

_ROUGH = 1e-5  # what float32 is requested to take off a residual before the next true one
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


Evaluate = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""theta [runs, p] -> value [runs], gradient [runs, p], and whatever the step needs of the curvature [runs, ...]."""
Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(theta, gradient, curvature) -> what to take away from theta, [runs, p]."""
Bounds = Callable[[], tuple[Tensor, Tensor]]
"""() -> least and largest curvature that the objective has anywhere, [runs] each; requested where they are needed."""

_MOST_STEPS = 200  # Newton steps before gradient steps take over, or the fit gives up


def newton(
    evaluate: Evaluate,
    step: Step,
    start: Tensor,
    tolerance: float,
    *,
    what: str = "the fit",
    remedy: str = "raise the ridge",
    bounds: Bounds | None = None,
    part: Callable[[Tensor], tuple[Evaluate, Step]] | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Damped Newton steps with backtracking, side by side on the rows of ``start``.

    Steps may be inexact: how far from stationary the end is, is measured at the end itself. That Newton steps get
    there is certain for no data, and an error message would depend on the records. Given ``bounds``, 200
    of them are followed by ``descend``, which in real arithmetic reaches every stop, on all data:

    .. math:: k \le 2 + 2\sqrt{L/\mu}\, \ln\!\big(3\sqrt2\, (L/\mu)\, \|F'(\theta_0)\| / \tau\big)

    steps are enough, a number that has a bound which is public as n, the largest weight and gamma are.

    Args:
        evaluate: The objective; see ``Evaluate``.
        step: The direction; see ``Step``.
        start: First point, [runs, p].
        tolerance: Largest norm of the gradient at the end.
        what: What is fitted, for the error.
        remedy: What to change, for the error.
        bounds: Gives mu and L, [runs] each, between which the Hessian's eigenvalues lie everywhere; for a smooth,
            strongly convex objective.
        part: Gives both for some rows alone, once half of them have arrived; without ``bounds``.

    Returns:
        The minimisers [runs, p] and the norms of their gradients [runs].

    Raises:
        NumericalError: The tolerance was not reached, given ``bounds`` because it is finer than float64 resolves;
            nothing may be released.
    """
    theta = start.clone()
    value, gradient, curvature = evaluate(theta)
    norm = gradient.norm(dim=1)
    begin = value, norm
    for _ in range(_MOST_STEPS):
        going = norm > tolerance
        if not bool(going.any()):
            break
        if part is not None and 2 * int(going.sum()) <= len(going):
            (rows,) = torch.where(going)
            some = partial(_rows_of, part, rows)
            theta[rows], norm[rows] = newton(*part(rows), theta[rows], tolerance, what=what, remedy=remedy, part=some)
            break
        direction = step(theta, gradient, curvature)
        decrease = (gradient * direction).sum(1)
        length = going.to(theta)  # a run that has arrived stays where it is
        while True:
            candidate = theta - length[:, None] * direction
            new_value, new_gradient, curvature = evaluate(candidate)
            new_norm = new_gradient.norm(dim=1)
            # a smaller gradient counts only where the value is level: else the two rules may take turns for ever;
            # a sum that has come near zero is resolved no finer than at its start
            level = new_value <= value + 1e-13 * torch.maximum(value.abs(), begin[0].abs())
            better = (new_value <= value - 1e-4 * length * decrease) | (level & (new_norm < norm))
            worse = going & ~better & (length > 1e-9)
            if not bool(worse.any()):
                break
            length = torch.where(worse, length / 2, length)
        theta, value, gradient, norm = candidate, new_value, new_gradient, new_norm
    if bounds is not None and not bool((norm <= tolerance).all()):
        # from a point that is no higher than the start: its distance to the minimiser is then bounded by the start's
        lower = (value <= begin[0])[:, None]
        first, rest = torch.where(lower, theta, start), (tolerance, *bounds(), begin[1])
        theta, norm = descend(evaluate, first, *rest)
    if bool((norm <= tolerance).all()):  # nan is not: a factor that failed shows here
        return theta, norm
    raise NumericalError(f"{what} stopped at a gradient norm above {tolerance:.1e}: nothing is released; {remedy}")


def descend(
    evaluate: Evaluate, start: Tensor, tolerance: float, least: Tensor, most: Tensor, steepness: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Accelerated gradient steps with constant momentum, side by side on the rows of ``start``.

    .. math:: \theta_{k+1} = y_k - F'(y_k)/L, \quad
        y_{k+1} = \theta_{k+1} + \tfrac{1 - r}{1 + r} (\theta_{k+1} - \theta_k), \quad r = \sqrt{\mu/L}

    Nesterov (2004, theorem 2.2.3): :math:`F(\theta_k) - F^* \le (1 - r)^k (F(\theta_0) - F^* +
    \tfrac\mu2\|\theta_0 - \theta^*\|^2)`. If F(theta_0) is at most F at a point where the gradient has norm G, the
    bracket is at most G^2 / mu, and :math:`\|F'(y_k)\| \le L (2\|\theta_k - \theta^*\| + \|\theta_{k-1} -
    \theta^*\|) \le 3\sqrt2 (L/\mu)\, G (1 - r)^{(k-1)/2}`. The number of steps follows from that
    bound, before the first is taken.

    Args:
        evaluate: The objective, mu-strongly convex and L-smooth.
        start: First point, [runs, p].
        tolerance: Largest norm of the gradient at the end.
        least: mu, [runs].
        most: L, [runs].
        steepness: G, [runs].

    Returns:
        Points [runs, p] and the norms of their gradients [runs], in real arithmetic at most ``tolerance``.
    """
    ratio = (least / most).sqrt()
    momentum = ((1 - ratio) / (1 + ratio))[:, None]
    needed = 2 / ratio * (3 * math.sqrt(2) * most / least * steepness / tolerance).clamp_min(1.0).log()
    point = ahead = start
    for _ in range(3 + math.ceil(needed.max().item())):
        gradient = evaluate(ahead)[1]
        norm = gradient.norm(dim=1)
        going = (norm > tolerance)[:, None]
        if not bool(going.any()):
            break
        new = ahead - gradient / most[:, None]
        ahead, point = torch.where(going, new + momentum * (new - point), ahead), new
    return ahead, norm


def _rows_of(part: Callable[[Tensor], tuple[Evaluate, Step]], rows: Tensor, some: Tensor) -> tuple[Evaluate, Step]:
    return part(rows[some])
