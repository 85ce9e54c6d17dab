"""Columns of a table that are covariates: the numbers they become, and how these are scaled to [-1, 1]."""

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._arrays import category_codes, numeric_column, readable_rows
from torchdpcate.data._cells import (
    INDICATOR,
    MISSING_LEVEL,
    Code,
    are_dates,
    check_codes,
    check_format,
    code_entries,
    days_since,
    read_cells,
    to_date,
)
from torchdpcate.data.facts import check_bounds, check_distinct, check_name, to_number
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

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
        columns: The covariates.

    Attributes:
        linear: Whether no column has either fact.

    Example:
        >>> wide, short = Numeric("a", 1.0, 10_000.0, scale="log"), Numeric("b", 0.0, 100.0, typical=(0.0, 10.0))
        >>> scales = CovariateScales([wide, short])
        >>> scales.shares(torch.tensor([[99 / 9999, 0.1]]).double()).round(decimals=4).tolist()  # 100, 10
        [[0.5, 0.8333]]
    """

    def __init__(self, columns: "Sequence[Numeric]") -> None:
        rows = [_numbers(column.low, column.high, column.scale, column.typical) for column in columns]
        self.linear = not any(row[0] for row in rows)
        self._rows = torch.tensor(rows, dtype=torch.float64).T

    def shares(self, linear: Tensor) -> Tensor:
        """Return shares of the scaled width, in [0, 1], by those of the width itself, [..., q]; dtypes are kept.

        Differentiable. Of a column with either fact what lies outside the bounds is moved to them.
        """
        if self.linear:
            return linear
        given, log, ratio, top, *knots = self._to(linear)
        t = linear.double().clamp(0, 1)
        t = torch.where(log > 0, torch.log1p(ratio * t) / top, t)
        return torch.where(given > 0, _bent(t, knots[:2], knots[2:]).clamp(0, 1).to(linear.dtype), linear)

    def linear_shares(self, shares: Tensor) -> Tensor:
        """Return shares of the width itself by those of the scaled one, [..., q]: the inverse of ``shares``."""
        if self.linear:
            return shares
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


@dataclass(frozen=True)
class Numeric:
    """A number between public bounds, or one of the two if it has two levels; encoded as it is.

    Its scale and its typical range are those of ``CovariateScales``; ``origin`` says where its bounds come from, if
    other than the schema's own, ``unit`` what it is measured in, and ``label`` what readers see in the place of its
    name, which it is where nothing is said; none is ever compared.

    Where values may be missing, a second column ``name=missing`` is 1 for those, whose number is then the middle of the
    bounds on its scale: a public map of each record by itself. Of dates the number is that of days since the lower
    bound, which is 0.

    Attributes:
        missing: Whether values may be missing.
        codes: What else means that a value is missing, or stands for another, see ``check_codes``.
        start: Lower bound of dates; None for numbers.
        format: How dates are written, see ``check_format``.

    Example:
        >>> import pandas as pd
        >>> age = Numeric("age", 0, 100, missing=True, codes=(-99,))
        >>> [column.name for column in age.columns], age.encode(pd.Series([20, -99])).tolist()
        (['age', 'age=missing'], [[20.0, 0.0], [50.0, 1.0]])
    """

    name: str
    low: float
    high: float
    origin: str = field(default="", compare=False)
    two_levels: bool = False
    scale: str = "linear"
    typical: Typical = None
    unit: str = field(default="", compare=False)
    missing: bool = False
    codes: tuple[Code, ...] = ()
    start: datetime.date | None = None
    label: str = field(default="", compare=False)
    format: str = ""

    def __post_init__(self) -> None:
        what = f"covariate {self.name!r}"
        low, high = check_bounds(what, self.low, self.high)
        _, typical = check_scale(what, self.scale, self.typical, low, high, self.two_levels)
        codes, form = check_codes(what, self.codes), self.format and check_format(what, self.format)
        vars(self).update(low=low, high=high, typical=typical, codes=codes, format=form, label=self.label or self.name)
        if self.missing and self.two_levels:
            raise InputError(
                f"{what} has two levels, and values that may be missing; give categories: [{low:g}, {high:g}] in the "
                "place of low, high and two_levels"
            )

    @classmethod
    def of_dates(cls, name: str, low: Any, high: Any, typical: Any = None, **facts: Any) -> "Numeric":
        """Return the covariate of dates between two, of which ``typical`` holds about nine of ten.

        Raises:
            InputError: A bound that is no date, or bounds and a typical range that do not fit.

        Example:
            >>> Numeric.of_dates("admission", "2015-01-01", "2016-01-01").high
            365.0
        """
        what = f"covariate {name!r}"
        start = to_date(f"low of {what}", low)
        days = (to_date(f"high of {what}", high) - start).days
        if days < 1:
            raise InputError(f"bounds of {what} are {low} and {high}; give the earlier date as low")
        if isinstance(typical, list | tuple):
            typical = tuple(float((to_date(f"typical of {what}", end) - start).days) for end in typical)
        return cls(name, 0.0, float(days), typical=typical, start=start, **facts)

    @cached_property
    def columns(self) -> "tuple[Numeric, ...]":
        """The encoded columns: itself, and where it is missing."""
        if not self.missing:
            return (self,)
        own = Numeric(self.name, self.low, self.high, scale=self.scale, typical=self.typical, label=self.label)
        gone = f"={MISSING_LEVEL}"
        return own, Numeric(self.name + gone, 0.0, 1.0, two_levels=True, label=self.label + gone)

    @property
    def levels(self) -> tuple[Any, ...]:
        """The values that it may have, in the order of the encoding: the bounds, if it has two levels, else none."""
        return (self.low, self.high) if self.two_levels else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What readers see of ``levels``."""
        return tuple(map(self.written, self.levels))

    @property
    def middle(self) -> float:
        """The number that a missing value has: the middle of the bounds on its scale."""
        return float(self._of_share(torch.full((1,), 0.5, dtype=torch.float64)))

    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return the numbers [n, 1], or with where they are missing [n, 2]; bounds are the domain's to check.

        Raises:
            InputError: Missing or other values; says which column and how many.
        """
        column = read_cells(column, self.codes)
        if self.start is None:
            values = numeric_column(column, self.name, missing=self.missing)
        else:
            values = days_since(column, self.name, self.start, self.format, missing=self.missing)
        if not self.missing:
            return values[:, None]
        gone = np.isnan(values)
        return np.stack([np.where(gone, self.middle, values), gone], 1)

    def readable(self, column: "pd.Series") -> np.ndarray:
        """Return which values ``encode`` can read, bool [n]."""
        column = read_cells(column, self.codes)
        if self.start is None:
            return readable_rows(column, missing=self.missing)
        return are_dates(column, self.missing, self.format)

    def decode_unit(self, u: Tensor) -> Tensor:
        """Return low + u (high - low), or where its scale bends that; in the bounds; of two levels, the nearer.

        None is missing: with an indicator it is 0, [n, 2].
        """
        values = self._of_share(u)[:, None]
        return torch.cat([values, torch.zeros_like(values)], 1) if self.missing else values

    def _of_share(self, u: Tensor) -> Tensor:
        u = u.round() if self.two_levels else CovariateScales([self]).linear_shares(u[:, None])[:, 0]
        return (self.low + u * (self.high - self.low)).clamp(self.low, self.high)

    @property
    def linear(self) -> bool:
        """Whether it is scaled linearly: it is on no log scale and has no typical range."""
        return self.scale == "linear" and self.typical is None

    def written(self, value: float) -> str:
        """Return a value as it is shown: a number as short as it can be, or the date of a number of days.

        Example:
            >>> Numeric("age", 16, 60).written(16.0), Numeric.of_dates("seen", "2015-01-01", "2016-01-01").written(31.0)
            ('16', '2015-02-01')
        """
        if self.start is None:
            return f"{value:g}"
        return (self.start + datetime.timedelta(days=round(value))).isoformat()

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds, and what else is said of it."""
        dates = self.start is not None
        return (
            ({"kind": "date"} if dates else {})
            | {"low": self._entry(self.low), "high": self._entry(self.high)}
            | ({"two_levels": True} if self.two_levels else {})
            | ({"scale": self.scale} if self.scale != "linear" else {})
            | ({"typical": list(map(self._entry, self.typical))} if self.typical is not None else {})
            | ({"unit": self.unit} if self.unit else {})
            | ({"format": self.format} if self.format else {})
            | _more_entries(self)
        )

    def _entry(self, value: float) -> float | str:
        return value if self.start is None else self.written(value)


@dataclass(frozen=True)
class Categorical:
    """One of k public categories: a 0/1 column if k = 2, k one-hot columns ``name=level`` otherwise.

    With two categories the column is 0 for the first one listed and 1 for the second. Where values may be missing,
    ``missing`` is a level more, the last one: two categories then have three columns.

    Attributes:
        missing: Whether values may be missing.
        codes: What else means that a value is missing, or stands for a category, see ``check_codes``.
        label: What readers see in the place of its name, which it is where nothing is said; never compared.
        labels: What readers see of each of ``levels``, likewise.

    Example:
        >>> Categorical("site", ("north", "south"), missing=True).levels
        ('north', 'south', 'missing')
    """

    name: str
    categories: tuple[Any, ...]
    origin: str = field(default="", compare=False)
    missing: bool = False
    codes: tuple[Code, ...] = ()
    label: str = field(default="", compare=False)
    labels: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        given = tuple(int(level) if isinstance(level, bool) else level for level in self.categories)
        vars(self).update(categories=given, label=self.label or self.name)
        for level in self.categories:
            if isinstance(level, str):
                check_name(f"a category of {self.name!r}", level)
            elif abs(to_number(f"a category of {self.name!r}", level)) >= 2**53:
                raise InputError(f"category {level} of {self.name!r} is beyond 2^53; put identifiers in quotes")
        if len(self.categories) < 2 or len(set(self.categories)) < len(self.categories):
            raise InputError(f"categories of {self.name!r} are {list(self.categories)}; list two or more, each once")
        if len({isinstance(level, str) for level in self.categories}) == 2:
            raise InputError(f"categories of {self.name!r} mix words and numbers; use one kind")
        if self.missing and MISSING_LEVEL in self.categories:
            raise InputError(
                f"categories of {self.name!r} have {MISSING_LEVEL!r}, which missing: {INDICATOR} adds; leave it out of "
                f"the list, and add codes: [{MISSING_LEVEL}] where it is a word in cells"
            )
        check_distinct(f"categories of {self.name!r}:", [level for level in self.levels if isinstance(level, str)])
        labels = (self.labels or tuple(map(written_level, given)))[: len(given)] + (MISSING_LEVEL,) * self.missing
        check_distinct(f"labels of {self.name!r}:", labels)
        vars(self).update(labels=labels, codes=check_codes(f"covariate {self.name!r}", self.codes, levels=given))
        both = [cell for code in self.codes if (cell := code[0] if isinstance(code, tuple) else code) in {*given}]
        if both:
            raise InputError(f"codes of {self.name!r} hold {both[0]!r}, a category; leave it out of one of them")

    @property
    def is_text(self) -> bool:
        """Whether the categories are words rather than numbers."""
        return isinstance(self.categories[0], str)

    @cached_property
    def columns(self) -> tuple[Numeric, ...]:
        """The encoded columns, each 0 or 1."""
        found = [(self.name, f"{self.label}={self.labels[1]}" if self.relabelled else self.label)]
        if len(self.levels) > 2:
            each = zip(self.levels, self.labels, strict=True)
            found = [(f"{self.name}={level}", f"{self.label}={label}") for level, label in each]
        return tuple(Numeric(name, 0.0, 1.0, two_levels=True, label=label) for name, label in found)

    @property
    def relabelled(self) -> bool:
        """Whether readers see other words for its levels."""
        return self.labels != tuple(map(written_level, self.levels))

    @property
    def levels(self) -> tuple[Any, ...]:
        """The categories, and ``missing`` where values may be."""
        return (*self.categories, MISSING_LEVEL) if self.missing else self.categories

    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return 0/1 columns [n, 1] or [n, k].

        Raises:
            InputError: Missing or unknown values; says which column and how many.
        """
        column = read_cells(column, self.codes, text=self.is_text)
        return self._one_hot(category_codes(column, self.name, self.categories, missing=self.missing))

    def readable(self, column: "pd.Series") -> np.ndarray:
        """Return which values are among the categories, bool [n]."""
        return readable_rows(read_cells(column, self.codes, text=self.is_text), self.categories, self.missing)

    def decode_unit(self, u: Tensor) -> Tensor:
        """Give each level the same share of [0, 1)."""
        return torch.from_numpy(self._one_hot((u * len(self.levels)).long().numpy()))

    def to_dict(self) -> dict[str, Any]:
        """Return the categories, and what else is said of it."""
        labels = {"labels": dict(zip(map(str, self.categories), self.labels, strict=False))} if self.relabelled else {}
        return {"categories": list(self.categories), **labels, **_more_entries(self)}

    def _one_hot(self, codes: np.ndarray) -> np.ndarray:
        if len(self.levels) == 2:
            return codes.astype(np.float64)[:, None]
        return np.eye(len(self.levels))[codes]


def _more_entries(covariate: "Covariate") -> dict[str, Any]:
    found: dict[str, Any] = {"missing": INDICATOR} if covariate.missing else {}
    label = {"label": covariate.label} if covariate.label != covariate.name else {}
    return {**found, **(code_entries(covariate.codes) if covariate.codes else {}), **said(covariate.origin), **label}


def written_level(level: Any) -> str:
    """Write a level or a cut: a number as short as it can be, without losing any of it."""
    if isinstance(level, float):
        return f"{level:g}" if float(f"{level:g}") == level else repr(level)
    return str(level)


Covariate: TypeAlias = Numeric | Categorical
"""One column of a table and the numeric columns it becomes."""


def bounds_in_words(covariate: Covariate) -> str:
    """Return a covariate's name with its levels or its bounds.

    Example:
        >>> bounds_in_words(Numeric("age", 16, 60))
        'age: 16 to 60'
    """
    if covariate.levels:
        return f"{covariate.label}: {', '.join(covariate.labels)}"
    assert isinstance(covariate, Numeric)
    words = f"{covariate.label}: {covariate.written(covariate.low)} to {covariate.written(covariate.high)}"
    words += f" {covariate.unit}" if covariate.unit else ""
    more = ["log scale"] if covariate.scale == "log" else []
    if covariate.typical is not None:
        more += ["typically {} to {}".format(*map(covariate.written, covariate.typical))]
    more += ["or missing"] if covariate.missing else []
    return f"{words} ({', '.join(more)})" if more else words


def said(origin: str) -> dict[str, str]:
    """Return the entry of a domain file that says where bounds come from; none if nothing is said."""
    return {"origin": origin} if origin else {}
