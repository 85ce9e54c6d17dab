"""Lines: named estimates with intervals, the shape of a release that tables, pages and forest plots ask for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.release.estimate import half_width, noise_deviation

if TYPE_CHECKING:
    import pandas as pd

EVERYBODY, WEIGHTED, BY_EFFECT, SUBGROUPS = "everybody", "weighted", "by effect", "subgroups"
OF_RULE, OF_POLICY, QUERIES = "value of the rule", "value of a policy", "queries"
"""What lines are about where they are no partition's: the groups that tables and forest plots put them in."""
NO_INTERVAL = "no honest interval is known for this estimate; CovariateBalancingEffect has one"
LEVEL = 0.95
"""Probability of the intervals that cards and ``torchdpcate verify`` show."""


@dataclass(frozen=True, eq=False)
class Lines:
    r"""Named estimates with the laws of their errors, in outcome units, one entry a line.

    Attributes:
        names: What a line is called; each name once.
        titles: Whom a line is about, in words.
        groups: What it belongs to: ``EVERYBODY`` and the like, the name of a partition, or of a line over sites.
        estimates: float64 [L].
        errors: Standard errors, sampling and noise and whatever else an interval counts, [L]; infinite where noise
            dominates, NaN where no interval is known.
        noise: Standard deviation of the privacy noise alone, [L]; NaN where it is not known.
        records: About how many records a line is about, [L].
        ends: Of a level in (0, 1) to the ends of the intervals, [L, 2]; NaN where none is known.
        assumptions: What estimates and intervals rest on, in words; empty where that is not known.
        at_once: Likewise of intervals that hold all lines together; None where there are none.
        unshrunk: Estimates before they were moved within their errors, [L]; None where none was. What sites pool.
        laplace: Scales of the Laplace parts of errors, [L, parts]; None where all of them are normal.
        common: Variance of errors that other lines and sites may share, [L]; None where there is none.
        disjoint: Groups whose lines are of different records, so that their errors are independent but for the shared.
        comparable: Names of lines that mean the same at another site.
        weights: Share of a site in the mean of its group, [L]; None of one site. The mean itself has one.
        means: Whether a line is the mean of its group over sites, [L]; empty of one site.
    """

    names: tuple[str, ...]
    titles: tuple[str, ...]
    groups: tuple[str, ...]
    estimates: Tensor
    errors: Tensor
    noise: Tensor
    records: Tensor
    ends: Callable[[float], Tensor]
    assumptions: str
    at_once: Callable[[float], Tensor] | None = None
    unshrunk: Tensor | None = None
    laplace: Tensor | None = None
    common: Tensor | None = None
    disjoint: tuple[str, ...] = ()
    comparable: tuple[str, ...] = ()
    weights: Tensor | None = None
    means: tuple[bool, ...] = ()

    @property
    def dominated(self) -> list[bool]:
        """Whether noise dominates each line, so that any effect is possible."""
        found: list[bool] = self.errors.isinf().tolist()
        return found

    def place(self, name: str) -> int:
        """Return the position of the line with this name or title.

        Raises:
            InputError: There is none, or several of this title.
        """
        if name in self.names:
            return self.names.index(name)
        if self.titles.count(name) == 1:
            return self.titles.index(name)
        raise InputError(f"line = {name!r}: choose one of {', '.join(self.names)}")

    def only(self, places: Sequence[int]) -> "Lines":
        """Return the lines at these positions, in their order; those of all of them at once have no intervals."""

        def words(given: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(given[place] for place in places) if given else given

        def numbers(given: Tensor | None) -> Any:
            return None if given is None else given[list(places)]

        names, ends = words(self.names), self.ends
        return replace(
            self,
            names=names,
            titles=words(self.titles),
            groups=words(self.groups),
            estimates=numbers(self.estimates),
            errors=numbers(self.errors),
            noise=numbers(self.noise),
            records=numbers(self.records),
            ends=lambda level: numbers(ends(level)),
            at_once=None,
            unshrunk=numbers(self.unshrunk),
            laplace=numbers(self.laplace),
            common=numbers(self.common),
            comparable=tuple(name for name in self.comparable if name in names),
            weights=numbers(self.weights),
            means=words(self.means),
        )

    def interval(self, level: float = LEVEL, simultaneous: bool = False) -> Tensor:
        """Return the ends of the intervals, [L, 2], see ``Release.lines``."""
        if simultaneous and self.at_once is None:
            return self.ends(1 - (1 - level) / len(self.names))
        return self.at_once(level) if simultaneous and self.at_once is not None else self.ends(level)

    def table(self, level: float = LEVEL, simultaneous: bool = False) -> "pd.DataFrame":
        """Return one row a line, see ``Release.lines``."""
        import pandas as pd

        low, high = self.interval(level, simultaneous).unbind(1)
        columns = {
            "line": self.titles,
            "estimate": self.estimates,
            "low": low,
            "high": high,
            "standard_error": self.errors,
            "noise_share": (self.noise / self.errors).square().nan_to_num(torch.nan),
            "records": self.records.round(),
            "group": self.groups,
        }
        shares = {} if self.weights is None else {"weight": self.weights}
        return pd.DataFrame({name: np.asarray(column) for name, column in (columns | shares).items()}, self.names)

    def rows(self, level: float = LEVEL) -> list[dict[str, Any]]:
        """Return one mapping a line, as summaries have it: plain types, None of an end that is not known or finite."""
        table = self.table(level)[["line", "estimate", "low", "high", "records"]].astype(object)
        table = table.where(table.notna() & ~table.isin([math.inf, -math.inf]), None)
        if self.at_once is not None and len(table) > 1:
            ends = self.at_once(level).tolist()
            table["simultaneous"] = [[end if math.isfinite(end) else None for end in pair] for pair in ends]
        return table.to_dict("records")  # type: ignore[return-value]

    def summary_frame(self, alpha: float = 0.05) -> "pd.DataFrame":
        """Return one row a line, see ``Release.summary_frame``."""
        import pandas as pd

        low, high = self.ends(1 - alpha).unbind(1)
        z = self.estimates / self.errors
        columns = {
            "point_estimate": self.estimates,
            "stderr": self.errors,
            "zstat": z,
            "pvalue": 2 * torch.special.ndtr(-z.abs()),
            "ci_lower": low,
            "ci_upper": high,
        }
        return pd.DataFrame({name: column.numpy() for name, column in columns.items()}, list(self.titles))

    def contrast(self, name: str, other: str, level: float = 0.95) -> tuple[float, float, float]:
        r"""Return the difference of two lines and the ends of its interval, see ``Release.contrast``."""
        one, two = self.place(name), self.place(other)
        if one == two:
            raise InputError(f"contrast: {name!r} and {other!r} are one line; give two")
        pair = torch.tensor([one, two])
        shared = torch.zeros(2).double() if self.common is None else self.common[pair].sqrt()
        parts = torch.zeros(2, 0).double() if self.laplace is None else self.laplace[pair]
        normal = (self.errors[pair].square() - noise_deviation(parts).square()).clamp_min(0)
        own = (normal - shared.square()).clamp_min(0)
        value = float(self.estimates[one] - self.estimates[two])
        if bool(self.errors[pair].isinf().any()):
            return value, -math.inf, math.inf
        if self.means:  # of few sites, whose intervals are wider than normal ones
            low, high = self.ends(level)[pair].unbind(1)
            return value, float(low[0] - high[1]), float(high[0] - low[1])
        if self.groups[one] == self.groups[two] and self.groups[one] in self.disjoint:
            deviation = (own.sum() + shared.sum().square()).sqrt()
        else:  # no correlation makes it larger
            deviation, parts = (own.sqrt().sum().square() + shared.sum().square()).sqrt(), parts.sum(0, keepdim=True)
        half = float(half_width(level, deviation[None], parts.reshape(1, -1)))
        return value, value - half, value + half
