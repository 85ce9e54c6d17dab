"""Global search for the largest influence of a record over the domain, by batched multi-start ascent over a box."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Protocol

import numpy as np
import scipy
import torch
from torch import Tensor

from torchdpcate.errors import NumericalError

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain


_CLIMB_STEPS = 60
_CLIMB_DECAY = 0.02  # last step of a climb over its first
_SWEEP_ROUNDS = 30
_SWEEP_BATCH = 8_192


def maximise_over_box(
    function: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    *,
    starts: int = 1024,
    climbs: int = 128,
    polishes: int = 2,
    seed: int = 0,
    place: Callable[[Tensor], Tensor] | None = None,
) -> tuple[float, Tensor]:
    """Largest value found of a function over the box ``low <= x <= high``.

    Scrambled Sobol points and corners of the box (all of them where they are no more than ``starts``) are screened
    in one batch, and the best climb together by projected Adam. In many dimensions the maximum sits on faces that a
    gradient does not see across, so the best quarter then moves single coordinates to an end of their range for as
    long as that helps. A shorter climb and a second sweep follow, a fine climb of the best few, and L-BFGS-B for the
    very best. Everything before L-BFGS-B is batched, and every value is computed on the device of ``low``.

    Args:
        function: Values [B] of points [B, q], differentiable almost everywhere.
        low: Lower bounds, [q].
        high: Upper bounds, [q]; equal to ``low`` for a coordinate that is fixed.
        starts: Number of Sobol points, and largest number of corners.
        climbs: How many of them climb.
        polishes: How many of these are polished.
        seed: Of the Sobol scrambling and of the choice of corners.
        place: Points [B, q] of the box by those of the unit box, where the search is: it is to go through all of the
            box and be differentiable almost everywhere (``Domain.from_unit``). None divides the box evenly.

    Returns:
        The value at the best point found, and the point, [q]. Local search proves no upper bound, so the value is a
        lower bound of the supremum.

    Raises:
        NumericalError: if the function is not finite at a start.

    Example:
        >>> low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> value, x = maximise_over_box(lambda x: 1 - (x[:, 0] - 0.25) ** 2 + x[:, 1], low, high)
        >>> round(value, 9), x.round(decimals=6)
        (2.0, tensor([0.2500, 1.0000], dtype=torch.float64))
    """

    def placed(u: Tensor) -> Tensor:
        return torch.clamp(low + u * (high - low) if place is None else place(u), low, high)

    def of_unit(u: Tensor) -> Tensor:
        return function(placed(u))

    points = _starts(len(low), starts, seed).to(low)
    with torch.no_grad():
        values = of_unit(points)
    if not bool(torch.isfinite(values).all()):
        raise NumericalError("the function to maximise is not finite on the box")
    points, values = _climb(of_unit, *_best(points, values, climbs), first_step=0.1)
    points, values = _sweep(of_unit, *_best(points, values, min(climbs // 4 + 1, _SWEEP_BATCH // len(low) + 1)))
    points, values = _climb(of_unit, points, values, first_step=0.03)
    points, values = _best(*_sweep(of_unit, points, values), 4 * polishes)
    points, values = _best(*_climb(of_unit, points, values, first_step=0.004), polishes)
    scale = float(values.abs().max()) or 1.0
    found = [_polish(of_unit, point, float(value), scale) for point, value in zip(points, values, strict=True)]
    value, u = max(found, key=lambda pair: pair[0])
    return value, placed(u)


def _starts(dimension: int, count: int, seed: int) -> Tensor:
    """Centre, Sobol points and corners of the unit box, float64."""
    sobol = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    if 2**dimension <= count:
        corners = torch.tensor(list(product((0.0, 1.0), repeat=dimension)), dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(seed)
        corners = torch.randint(2, (count, dimension), generator=generator).double()
    return torch.cat(
        [
            torch.full((1, dimension), 0.5, dtype=torch.float64),
            sobol.draw(count, dtype=torch.float64),
            corners,
        ]
    )


def _best(points: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    index = values.topk(min(count, len(values))).indices
    return points[index], values[index]


def _climb(
    function: Callable[[Tensor], Tensor], points: Tensor, values: Tensor, first_step: float
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
        u = (u + first_step * _CLIMB_DECAY ** (k / _CLIMB_STEPS) * slope).clamp(0, 1)
    return best, best_values


def _sweep(function: Callable[[Tensor], Tensor], points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Move one coordinate of each point to an end of its range, the best such move first, while that helps."""
    points, values, active = points.clone(), values.clone(), torch.arange(len(points), device=points.device)
    for _ in range(_SWEEP_ROUNDS):
        moved = _moves(points[active])
        with torch.no_grad():
            reached = torch.cat([function(batch) for batch in moved.flatten(0, 1).split(_SWEEP_BATCH)])
        best, which = reached.view(len(active), -1).max(1)
        (better,) = torch.where(best > values[active] * (1 + 1e-9))
        active, moved, best = active[better], moved[better, which[better]], best[better]
        if len(active) == 0:
            break
        points[active], values[active] = moved, best
    return points, values


def _moves(points: Tensor) -> Tensor:
    """Each point with one coordinate set to 0 or 1: [K, q] -> [K, 2 q, q]."""
    coordinate = torch.arange(points.shape[1], device=points.device)
    moved = points[:, None, None, :].repeat(1, 2, len(coordinate), 1)
    moved[:, 0, coordinate, coordinate] = 0.0
    moved[:, 1, coordinate, coordinate] = 1.0
    return moved.flatten(1, 2)


def _polish(function: Callable[[Tensor], Tensor], start: Tensor, value: float, scale: float) -> tuple[float, Tensor]:
    """L-BFGS-B from one point of the unit box; never worse than the start."""

    def negative(u: np.ndarray) -> tuple[float, np.ndarray]:
        values, gradient = _value_and_gradient(function, torch.as_tensor(u).to(start)[None])
        return -float(values[0]) / scale, -gradient[0].cpu().double().numpy() / scale

    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 100, "maxfun": 100}
    bounds = [(0.0, 1.0)] * len(start)
    result = scipy.optimize.minimize(
        negative, start.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
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


def gross_error_sensitivity(influence: Influence, regression: Regression, domain: "Domain", **search: int) -> Supremum:
    r"""Gross-error sensitivity ``gamma = sup_z ||IF(z)||_2`` over the records z = (x, a, y) of the domain.

    The supremum runs over the public domain and never over the sample: a in {0, 1} is enumerated; s is affine
    in y, so the norm is convex in y and only the two end points of the outcome interval count; x is searched
    over the box by ``maximise_over_box``. Source: Hampel (1974); it scales the noise of Schroeder, Melnychuk &
    Feuerriegel (2025), Theorem 1.

    Guarantee: none. A local search gives a lower bound of the supremum.

    Args:
        influence: Influence function of the head, at the d queries.
        regression: Targets and weights ``(s, w)``, [B] and [B], of records x [B, q], a [B], y [B];
            differentiable in x (almost everywhere is enough) and affine in y. It is called with tensors like
            ``influence.theta``.
        domain: Public bounds of covariates and outcome.
        search: ``starts``, ``climbs``, ``polishes`` and the public ``seed`` of ``maximise_over_box``.

    Returns:
        The largest influence found and where.

    Raises:
        NumericalError: if an influence is not finite.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.heads.influence import InfluenceFunction
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
    place = None if domain.linear else domain.from_unit
    value, x = maximise_over_box(lambda x: norms(x).amax(0), low, high, place=place, **search)
    with torch.no_grad():
        arm = int(norms(x[None]).argmax())
    return Supremum(value, x, int(a[arm]), float(y[arm]))
