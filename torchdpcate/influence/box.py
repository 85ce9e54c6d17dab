"""Global search for the maximum of a function over a box, by batched multi-start ascent."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError

_CLIMB_STEPS = 60
_FIRST_STEP, _LAST_STEP = 0.1, 0.002  # of the climb, in widths of the box


@dataclass(frozen=True)
class Maximum:
    """The best point found.

    Attributes:
        value: the function there; a lower bound of the supremum.
        x: the point, [q].
    """

    value: float
    x: Tensor


def maximise_over_box(
    function: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    *,
    starts: int = 1024,
    climbs: int = 64,
    polishes: int = 8,
    seed: int = 0,
) -> Maximum:
    """Largest value found of a function over the box ``low <= x <= high``.

    Scrambled Sobol points and corners of the box (all of them where they are no more than `starts`) are screened in
    one batch; the best climb together by projected Adam; the best of these are polished one by one by L-BFGS-B, which
    keeps to the faces of the box. Everything but the polish is batched, and all of it runs on the device of `low`.

    Args:
        function: values [B] of points [B, q], differentiable almost everywhere.
        low: lower bounds, [q].
        high: upper bounds, [q]; equal to `low` for a coordinate that is fixed.
        starts: number of Sobol points, and largest number of corners.
        climbs: how many of them climb.
        polishes: how many of these are polished.
        seed: of the Sobol scrambling and of the choice of corners.

    Returns:
        The best point. Local search proves no upper bound, so the value is a lower bound of the supremum.

    Raises:
        InputError: if a count is not positive or the bounds do not fit.
        NumericalError: if the function is not finite at a start.

    Example:
        >>> low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> best = maximise_over_box(lambda x: 1 - (x[:, 0] - 0.25) ** 2 + x[:, 1], low, high)
        >>> round(best.value, 9), best.x.round(decimals=6)
        (2.0, tensor([0.2500, 1.0000], dtype=torch.float64))
    """
    for name, count in (("starts", starts), ("climbs", climbs), ("polishes", polishes)):
        if count < 1:
            raise InputError(f"{name}={count} must be at least 1")
    if low.shape != high.shape or low.ndim != 1 or bool((low > high).any()):
        raise InputError("the box needs one lower and one upper bound a coordinate, the lower not above the upper")

    def of_unit(u: Tensor) -> Tensor:
        return function(torch.clamp(low + u * (high - low), low, high))

    points = _starts(len(low), starts, seed).to(low)
    with torch.no_grad():
        values = of_unit(points)
    if not bool(torch.isfinite(values).all()):
        raise NumericalError("the function to maximise is not finite on the box")
    points, values = _best(points, values, climbs)
    points, values = _best(*_climb(of_unit, points, values), polishes)
    scale = float(values.abs().max()) or 1.0
    found = [_polish(of_unit, point, float(value), scale) for point, value in zip(points, values, strict=True)]
    value, u = max(found, key=lambda pair: pair[0])
    return Maximum(value, torch.clamp(low + u * (high - low), low, high))


def _starts(dimension: int, count: int, seed: int) -> Tensor:
    """Centre, Sobol points and corners of the unit box, float64."""
    sobol = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    if 2**dimension <= count:
        corners = torch.tensor(list(product((0.0, 1.0), repeat=dimension)), dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(seed)
        corners = torch.randint(2, (count, dimension), generator=generator).double()
    return torch.cat(
        [torch.full((1, dimension), 0.5, dtype=torch.float64), sobol.draw(count, dtype=torch.float64), corners]
    )


def _best(points: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    index = values.topk(min(count, len(values))).indices
    return points[index], values[index]


def _climb(
    function: Callable[[Tensor], Tensor], points: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Projected Adam from every point at once; the best point on each path and its value."""
    best, best_values, u = points, values, points
    first, second = torch.zeros_like(u), torch.zeros_like(u)
    for k in range(1, _CLIMB_STEPS + 1):
        values, gradient = _value_and_gradient(function, u)
        better = values > best_values
        best, best_values = torch.where(better[:, None], u, best), torch.where(better, values, best_values)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        slope = (first / (1 - 0.9**k)) / ((second / (1 - 0.99**k)).sqrt() + 1e-300)
        step = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** (k / _CLIMB_STEPS)
        u = (u + step * slope).clamp(0, 1)
    return best, best_values


def _polish(
    function: Callable[[Tensor], Tensor], start: Tensor, value: float, scale: float
) -> tuple[float, Tensor]:
    """L-BFGS-B from one point of the unit box; never worse than the start."""

    def negative(u: np.ndarray) -> tuple[float, np.ndarray]:
        values, gradient = _value_and_gradient(function, torch.as_tensor(u).to(start)[None])
        return -float(values[0]) / scale, -gradient[0].cpu().double().numpy() / scale

    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 500}
    bounds = [(0.0, 1.0)] * len(start)
    result = minimize(negative, start.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    end = torch.as_tensor(result.x).to(start)
    with torch.no_grad():
        reached = float(function(end[None])[0])
    return (reached, end) if reached > value else (value, start)


def _value_and_gradient(function: Callable[[Tensor], Tensor], u: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        values = function(u)
        (gradient,) = torch.autograd.grad(values.sum(), u)
    return values.detach(), gradient
