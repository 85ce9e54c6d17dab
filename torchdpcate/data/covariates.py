"""Columns of a table that are covariates, and the numbers they become."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._columns import category_codes, numeric_column, readable_rows
from torchdpcate.data.covariate_scale import CovariateScales, Typical, check_scale
from torchdpcate.data.facts import check_bounds, check_distinct, check_name, to_number
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class Covariate(ABC):
    """One column of a table and the numeric columns it becomes.

    Attributes:
        name: The column's name in the table.
        origin: Where its bounds or categories come from, if other than the schema's own; never compared.
    """

    name: str
    origin: str

    @property
    @abstractmethod
    def bounds(self) -> tuple[tuple[str, float, float], ...]:
        """Name, lower and upper bound of each encoded column."""

    @property
    @abstractmethod
    def levels(self) -> tuple[Any, ...]:
        """The values that the column may have, in the order of the encoding; empty if any between the bounds."""

    @abstractmethod
    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return the encoded columns, float64 [n, k].

        Raises:
            InputError: Missing or unknown values; says which column and how many.
        """

    def readable(self, column: "pd.Series") -> np.ndarray:
        """Return which values ``encode`` can read, bool [n]."""
        return readable_rows(column)

    @abstractmethod
    def decode_unit(self, u: Tensor) -> Tensor:
        """Map points u [n] of [0, 1) to encoded columns [n, k]: where a public grid lies."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return this covariate's yaml entry."""


@dataclass(frozen=True)
class Numeric(Covariate):
    """A number between public bounds, or one of the two if it has two levels; encoded as it is.

    Its scale and its typical range are those of ``CovariateScales``.
    """

    name: str
    low: float
    high: float
    origin: str = field(default="", compare=False)
    two_levels: bool = False
    scale: str = "linear"
    typical: Typical = None

    def __post_init__(self) -> None:
        low, high = check_bounds(f"covariate {self.name!r}", self.low, self.high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        scale = check_scale(f"covariate {self.name!r}", self.scale, self.typical, low, high, self.two_levels)
        object.__setattr__(self, "typical", scale[1])

    @property
    def bounds(self) -> tuple[tuple[str, float, float], ...]:
        """The declared bounds."""
        return ((self.name, self.low, self.high),)

    @property
    def levels(self) -> tuple[Any, ...]:
        """The bounds, if it has two levels."""
        return (self.low, self.high) if self.two_levels else ()

    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return the numbers [n, 1]; bounds are the domain's to check."""
        return numeric_column(column, self.name)[:, None]

    def decode_unit(self, u: Tensor) -> Tensor:
        """Return low + u (high - low), or where its scale bends that; in the bounds; of two levels, the nearer."""
        u = u.round() if self.two_levels else self._scales.linear_shares(u[:, None])[:, 0]
        return (self.low + u * (self.high - self.low)).clamp(self.low, self.high)[:, None]

    @cached_property
    def _scales(self) -> CovariateScales:
        return CovariateScales([self.low], [self.high], [self.scale], [self.typical])

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds, and what else is said of it."""
        facts: dict[str, Any] = {"low": self.low, "high": self.high}
        facts |= {"two_levels": True} if self.two_levels else {}
        facts |= {"scale": self.scale} if self.scale != "linear" else {}
        facts |= {"typical": list(self.typical)} if self.typical is not None else {}
        return facts | said(self.origin)


@dataclass(frozen=True)
class Categorical(Covariate):
    """One of k public categories: a 0/1 column if k = 2, k one-hot columns ``name=level`` otherwise.

    With two categories the column is 0 for the first one listed and 1 for the second.
    """

    name: str
    categories: tuple[Any, ...]
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        for level in self.categories:
            if isinstance(level, str):
                check_name(f"a category of {self.name!r}", level)
            elif abs(to_number(f"a category of {self.name!r}", level)) >= 2**53:
                raise InputError(f"category {level} of {self.name!r} is beyond 2^53; put identifiers in quotes")
        if len(self.categories) < 2 or len(set(self.categories)) < len(self.categories):
            raise InputError(f"categories of {self.name!r} are {list(self.categories)}; list two or more, each once")
        check_distinct(f"categories of {self.name!r}:", [level for level in self.categories if isinstance(level, str)])
        if any(isinstance(level, bool) for level in self.categories):
            raise InputError(
                f"categories of {self.name!r} hold true/false; put words like 'yes' in quotes, or use 0 and 1"
            )
        if len({isinstance(level, str) for level in self.categories}) == 2:
            raise InputError(f"categories of {self.name!r} mix words and numbers; use one kind")

    @property
    def is_text(self) -> bool:
        """Whether the categories are words rather than numbers."""
        return isinstance(self.categories[0], str)

    @property
    def bounds(self) -> tuple[tuple[str, float, float], ...]:
        """Every encoded column lies in [0, 1]."""
        if len(self.categories) == 2:
            return ((self.name, 0.0, 1.0),)
        return tuple((f"{self.name}={level}", 0.0, 1.0) for level in self.categories)

    @property
    def levels(self) -> tuple[Any, ...]:
        """The categories."""
        return self.categories

    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return 0/1 columns [n, 1] or [n, k]."""
        return self._one_hot(category_codes(column, self.name, self.categories))

    def readable(self, column: "pd.Series") -> np.ndarray:
        """Return which values are among the categories, bool [n]."""
        return readable_rows(column, self.categories)

    def decode_unit(self, u: Tensor) -> Tensor:
        """Give each category the same share of [0, 1)."""
        return torch.from_numpy(self._one_hot((u * len(self.categories)).long().numpy()))

    def to_dict(self) -> dict[str, Any]:
        """Return the categories."""
        return {"categories": list(self.categories)} | said(self.origin)

    def _one_hot(self, codes: np.ndarray) -> np.ndarray:
        if len(self.categories) == 2:
            return codes.astype(np.float64)[:, None]
        return np.eye(len(self.categories))[codes]


def bounds_in_words(covariate: Covariate) -> str:
    """Return a covariate's name with its levels or its bounds.

    Example:
        >>> bounds_in_words(Numeric("age", 16, 60))
        'age: 16 to 60'
    """
    if covariate.levels:
        return f"{covariate.name}: {', '.join(map(str, covariate.levels))}"
    _, low, high = covariate.bounds[0]
    words = f"{covariate.name}: {low:g} to {high:g}"
    if not isinstance(covariate, Numeric):
        return words
    more = ["log scale"] if covariate.scale == "log" else []
    more += [] if covariate.typical is None else ["typically {:g} to {:g}".format(*covariate.typical)]
    return f"{words} ({', '.join(more)})" if more else words


def said(origin: str) -> dict[str, str]:
    """Return the entry of a domain file that says where bounds come from; none if nothing is said."""
    return {"origin": origin} if origin else {}
