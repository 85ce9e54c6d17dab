"""How a covariate between its bounds is mapped to [-1, 1]: linearly, or by two further public facts."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.facts import to_number
from torchdpcate.errors import InputError

SCALES = ("linear", "log")
"""What the scale of a covariate may be."""

Typical = tuple[float, float] | None

_KNOTS = (1 / 6, 5 / 6)  # where the ends of a typical range go, of the way from the lower bound to the upper one
_UNITS = 1000.0  # of a log scale in the width of the bounds, where nothing else says what is small
_RESOLUTION = 2.0**-40  # least distance of two knots, in units of the numbers about them
_BEYOND = 2.0  # stands for a knot that is not there: no share of a width comes so far


def check_scale(what: str, scale: Any, typical: Any, low: float, high: float, levels: bool) -> tuple[str, Typical]:
    """Return the scale and the typical range of a covariate.

    Args:
        what: Names the covariate in messages.
        scale: ``"linear"`` or ``"log"``.
        typical: Two numbers between which about nine of ten values lie, or None.
        low: The covariate's lower bound.
        high: Its upper bound.
        levels: Whether it has categories or two levels, which have no scale.

    Raises:
        InputError: Another scale, a range that is no pair of numbers, empty or beyond the bounds, one that float64
            cannot tell from a bound, or either fact of a covariate with levels.

    Example:
        >>> check_scale("covariate 'crp'", "log", [1, 50], 0.0, 500.0, levels=False)
        ('log', (1.0, 50.0))
    """
    if not isinstance(scale, str) or scale not in SCALES:
        raise InputError(f"scale of {what} is {scale!r}; choose one of {', '.join(SCALES)}")
    if levels and (scale != "linear" or typical is not None):
        fact = f"scale {scale}" if scale != "linear" else f"typical {typical}"
        raise InputError(f"{what} has levels, and {fact}, which is of numbers alone; leave it out")
    found = None if typical is None else _range(what, typical, low, high)
    if scale == "log" and not math.isfinite((high - low) / _unit(found, low, high)):
        raise InputError(f"scale of {what} is log from low {low:g} to high {high:g}, too far apart; raise low")
    return scale, found


def _range(what: str, typical: Any, low: float, high: float) -> tuple[float, float]:
    if isinstance(typical, str) or not isinstance(typical, Sequence) or len(typical) != 2:
        raise InputError(f"typical of {what} is {typical!r}; give two numbers, [low, high]")
    first, last = (to_number(f"typical of {what}", end) for end in typical)
    if not first < last:
        raise InputError(f"typical of {what} is [{first:g}, {last:g}]; give the lower end first, below the upper one")
    if not low <= first < last <= high:
        raise InputError(
            f"typical of {what} is [{first:g}, {last:g}], outside its bounds [{low:g}, {high:g}]; give a range within "
            "them, or wider bounds"
        )
    knots = [low, first, last, high]
    for start, end in pairwise(knots):
        if 0 < end - start < _RESOLUTION * max(abs(start), abs(end), end - low):
            raise InputError(
                f"typical of {what} is [{first:g}, {last:g}] in bounds [{low:g}, {high:g}]: float64 cannot distinguish "
                "values so close to each other; widen it, or give the bound itself for its end"
            )
    return first, last


def _unit(typical: Typical, low: float, high: float) -> float:
    if low > 0:
        return low
    return typical[0] - low if typical is not None and typical[0] > low else (high - low) / _UNITS


class CovariateScales:
    r"""Public monotone maps of covariates between bounds onto the unit interval, column by column.

    A covariate :math:`x \in [l, u]` is the share :math:`t = (x - l) / (u - l)` of its width. On a log scale

    .. math:: t = \frac{\log(1 + (x - l) / s)}{\log(1 + (u - l) / s)}

    with the unit s = l of a lower bound above 0, so that :math:`t = \log(x / l) / \log(u / l)`; else s = a - l of a
    typical range [a, b] with a > l, and (u - l) / 1000 without one. A typical range then stretches what it holds and
    compresses the tails: t goes through the line with the corners

    .. math:: l \mapsto 0, \quad a \mapsto 1/6, \quad b \mapsto 5/6, \quad u \mapsto 1

    of which a = l and b = u are none: two thirds of [-1, 1] hold about nine of ten values. ``Domain.scale`` is twice
    the share, less one. Both facts are the curator's and public, so the map is a public map of each record by itself:
    continuous, increasing, onto, and no claim depends on which one it is.

    Args:
        low: Lower bounds, q numbers.
        high: Upper bounds, q numbers.
        scales: ``"linear"`` or ``"log"`` of each column.
        typical: Typical range of each column, or None; see ``check_scale``.

    Attributes:
        linear: Whether no column has either fact.

    Example:
        >>> scales = CovariateScales([1.0, 0.0], [10_000.0, 100.0], ["log", "linear"], [None, (0.0, 10.0)])
        >>> scales.shares(torch.tensor([[99 / 9999, 0.1]]).double()).round(decimals=4).tolist()  # 100, 10
        [[0.5, 0.8333]]
    """

    def __init__(
        self, low: Sequence[float], high: Sequence[float], scales: Sequence[str], typical: Sequence[Typical]
    ) -> None:
        rows = [_numbers(*column) for column in zip(low, high, scales, typical, strict=True)]
        self.linear = not any(row[0] for row in rows)
        self._rows = torch.tensor(rows, dtype=torch.float64).T

    def shares(self, linear: Tensor) -> Tensor:
        """Return shares of the scaled width, in [0, 1], by those of the width itself, [..., q]; dtypes are kept.

        Differentiable. Of a column with either fact what lies outside the bounds is moved to them.
        """
        given, log, ratio, top, *knots = self._to(linear)
        t = linear.double().clamp(0, 1)
        t = torch.where(log > 0, torch.log1p(ratio * t) / top, t)
        return torch.where(given > 0, _bent(t, knots[:2], knots[2:]).clamp(0, 1).to(linear.dtype), linear)

    def linear_shares(self, shares: Tensor) -> Tensor:
        """Return shares of the width itself by those of the scaled one, [..., q]: the inverse of ``shares``."""
        given, log, ratio, top, *knots = self._to(shares)
        t = _bent(shares.double().clamp(0, 1), knots[2:], knots[:2])
        t = torch.where(log > 0, torch.expm1(t * top) / ratio, t)
        return torch.where(given > 0, t.clamp(0, 1).to(shares.dtype), shares)

    def numbers(self, column: int) -> dict[str, float] | None:
        """Return the numbers that make a column's map, for another language; None where it is linear."""
        names = ("given", "log", "ratio", "top", "first", "last", "firstTo", "lastTo")
        found = dict(zip(names, self._rows[:, column].tolist(), strict=True))
        return found if found.pop("given") else None

    def _to(self, x: Tensor) -> tuple[Tensor, ...]:
        return self._rows.to(x.device).unbind()


def _numbers(low: float, high: float, scale: str, typical: Typical) -> tuple[float, ...]:
    """Return whether a column has a fact, whether it is log, its ratio and logarithm, and both corners: from and to."""
    width, log = high - low, scale == "log"
    ratio = width / _unit(typical, low, high) if log else 1.0
    top = math.log1p(ratio)

    def of(x: float) -> float:
        return math.log1p(ratio * ((x - low) / width)) / top if log else (x - low) / width

    corners = [-_BEYOND, _BEYOND, -_BEYOND, _BEYOND]
    for place, (end, bound) in enumerate(zip(typical or (), (low, high), strict=False)):
        if end != bound:
            corners[place], corners[place + 2] = of(end), _KNOTS[place]
    return float(log or typical is not None), float(log), ratio, top, *corners


def _bent(t: Tensor, knots: Sequence[Tensor], to: Sequence[Tensor]) -> Tensor:
    """Return the line from (0, 0) by both knots, where they are within, to (1, 1)."""
    (first, last), (low, high) = (knot.clamp(0, 1) for knot in knots), (knot.clamp(0, 1) for knot in to)
    # a sum of three monotone parts is monotone with all its rounding; a knot that is not there is never met
    below = torch.minimum(t, knots[0]).clamp_min(0) * _slope(low, first)
    between = (torch.maximum(torch.minimum(t, knots[1]), knots[0]) - first) * _slope(high - low, last - first)
    above = (torch.maximum(t, knots[1]) - last) * _slope(1 - high, 1 - last)
    return below + between + torch.where(knots[1] < 1, above, 0.0)


def _slope(rise: Tensor, run: Tensor) -> Tensor:
    return torch.where(run > 0, rise / torch.where(run > 0, run, 1.0), 0.0)
