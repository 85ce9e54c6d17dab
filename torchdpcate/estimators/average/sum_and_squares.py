"""The sum of bounded values and that of their squares as one pure event, and how much the values vary."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.estimators.average.ratio_of_sums import Sums
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism

_LEVEL, _OUTSIDE = 0.9, 0.005  # of the one-sided bound; and how often the mean lies beyond what is assumed of it
_STEPS = 16  # of the mean's size, at which quantiles are worked out
_NODES = 2048  # of the integral over the sum's noise; its error is below one part in so many


def sums_mechanism(n: int, epsilon: float) -> LaplaceMechanism:
    r"""Return the noise of both sums over n records: of v, and of half of :math:`v^2`, for v in [-1, 1].

    Two values at a distance d move v by d and :math:`v^2/2` by at most :math:`d (2 - d)/2`; together that is
    :math:`2 d - d^2/2 \le 2`. So the squares cost nothing beside the sum. Rounding to the grid of exact sums adds a
    step to each.

    Example:
        >>> round(sums_mechanism(1000, 0.5).scale, 6)
        4.0
    """
    return LaplaceMechanism(epsilon, 2.0 + 2 * sum_grid(n, 1.0))


def sums_law(n: int, epsilon: float) -> AddedNoise:
    """Return the law of both sums of n values at this epsilon."""
    return AddedNoise(sums_mechanism(n, epsilon), 2, float(n))


def sum_and_squares(
    n: int,
    terms: Callable[[Any], Tensor] | None = None,
    within: "TermRange | None" = None,
    names: tuple[str, str] = ("sum", "spread"),
) -> Sums:
    """Return the sums of n values, and of their squares about the middle of their range, as one event.

    The answers are those of the values' places v in their range, in [-1, 1]: the sums of v and of half its square.

    Args:
        n: How many values there are, public.
        terms: The values of a batch, [runs, b]; None takes the batch itself.
        within: Their public range; None takes [-1, 1].
        names: What releases call both numbers.

    Example:
        >>> sum_and_squares(3).exact(torch.tensor([[1.0, -0.5, 0.25]], dtype=torch.float64)).tolist()
        [[0.75, 0.65625]]
    """
    each = partial(_places, terms, within)
    if within is None:
        return Sums(names, each, n, (1.0, 1.0), unit=torch.tensor([1.0, 2.0], dtype=torch.float64))
    middle = n * within.middle
    unit = torch.stack([within.half, 2 * within.half.square()], -1)
    shift = torch.stack([middle, torch.zeros_like(middle)], -1)
    return Sums(names, each, n, (1.0, 1.0), unit=unit, shift=shift)


def _places(terms: Callable[[Any], Tensor] | None, within: "TermRange | None", batch: Any) -> tuple[Tensor, Tensor]:
    values = batch if terms is None else terms(batch)
    v = values if within is None else within.places(values)
    return v, v.square() / 2


class TermRange(NamedTuple):
    """The public interval of the terms of a sum, which is released as sum and squares of their places in it.

    Attributes:
        low: Least term, [runs].
        high: Largest, above it.
    """

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        """[runs]."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> Tensor:
        """Half of the width, [runs]."""
        return (self.high - self.low) / 2

    def places(self, terms: Tensor) -> Tensor:
        """Return where in the interval terms [runs, b] are, in [-1, 1]."""
        return ((terms - self.middle[:, None]) / self.half[:, None]).clamp(-1, 1)

    def most_deviations(self, total: Tensor, squares: Tensor, n: int, scale: float) -> Tensor:
        """Return the bound of ``most_deviations`` for n terms, by their sum and squares; scale is that of places."""
        places, half_squares = (total - n * self.middle) / self.half, squares / (2 * self.half.square())
        return self.half.square() * most_deviations(places, 2 * half_squares, n, scale)


def most_deviations(total: Tensor, squares: Tensor, n: int, scale: float) -> Tensor:
    r"""Return a one-sided 90 % bound, [runs], of the sum of squared deviations of the values from their mean.

    With :math:`T = \sum_i v_i + n_T`, :math:`Q = \sum_i v_i^2 + n_Q` and the mean :math:`\bar v` of the values,

    .. math:: \sum_i (v_i - \bar v)^2 = Q - \frac{T^2}n - n_Q + 2 \bar v\, n_T + \frac{n_T^2}n .

    The law of the last three terms is that of :math:`2 b (L_1 + \bar v L_2 + b L_2^2 / 2n)`, which the sign of the mean
    leaves alone. The mean is at most :math:`|T|/n + b \ln(200)/n` in size but for one run in 200, which is added to the
    level of the quantile. n numbers in [-1, 1] do not deviate by more than n.

    Args:
        total: T, [runs].
        squares: Q, [runs]; its noise has twice the scale of that in T.
        n: Number of values.
        scale: b, of the noise in T; 0 for none.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> most_deviations(20 * one, 14 * one, 100, 0.0).item()
        10.0
        >>> round((most_deviations(20 * one, 40 * one, 100, 2.0).item() - 36) / 4, 3)
        1.795
    """
    deviations = squares - total.square() / n
    if scale > 0:
        mean = (total.abs() / n + scale * math.log(1 / _OUTSIDE) / n).clamp_max(1)
        deviations = deviations + 2 * scale * _quantiles(scale / (2 * n))[(mean * _STEPS).ceil().long()]
    return deviations.clamp(0, n)


@lru_cache(maxsize=256)
def _quantiles(curvature: float) -> Tensor:
    r"""Return quantiles of :math:`L_1 + m L_2 + \kappa L_2^2`, standard Laplace, for m = 0, 1/16, ..., 1.

    By bisection of the distribution function, an integral over :math:`L_2`; rounded up.

    Args:
        curvature: kappa.
    """
    p = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    l2 = -(p - 0.5).sign() * torch.log1p(-2 * (p - 0.5).abs())
    means = torch.arange(_STEPS + 1, dtype=torch.float64)[:, None] / _STEPS
    moved = means * l2 + curvature * l2.square()
    level = _LEVEL + _OUTSIDE + 1 / _NODES
    low, high = torch.zeros(_STEPS + 1, 1, dtype=torch.float64), moved.amax(1, keepdim=True) + math.log(_NODES)
    for _ in range(40):
        middle = (low + high) / 2
        left = middle - moved
        below = (0.5 + 0.5 * left.sign() * -torch.expm1(-left.abs())).mean(1, keepdim=True) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high[:, 0].cummax(0).values  # the largest of all means up to this one
