"""Where a figure of a release is drawn: one covariate varies, over public or released values of the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._cells import MISSING_LEVEL
from torchdpcate.data.covariates import Categorical, Covariate, Numeric
from torchdpcate.data.facts import to_number
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import column_words
from torchdpcate.errors import InputError
from torchdpcate.release.release import EffectRelease

GIVEN = "averaged over the reference population"
MID_RANGE, POPULATION = "at mid-range", "averaged over their released means and spreads"
SPREAD = "spread evenly over their public bounds"
PROFILE = "at the given profile"
_POINTS = 101
_ROWS = 256  # of others that are spread
_SPREADS = 2.0  # released ones about the released mean, beyond which few records lie


@dataclass(frozen=True, eq=False)
class FigurePoints:
    """Points of a figure, made of public facts and released numbers.

    Args:
        schema: Columns and public bounds.
        covariate: The column that varies, of the table or encoded; None takes the first encoded one.
        profile: Values of others by column, public facts: numbers of encoded columns, levels of categories. What it
            leaves open is averaged over ``reference`` of a composed release, else at the middle of bounds.
        reference: Encoded rows of a public population, [k, q], that take the place of both; None without.
        spread: Whether what no composed release knows of is spread over the bounds, not at their middle.

    Raises:
        InputError: A column that is not there, or a value outside its bounds.
    """

    schema: TableSchema
    covariate: str | None = None
    profile: Mapping[str, Any] | None = None
    reference: Tensor | None = None
    spread: bool = False

    def __post_init__(self) -> None:
        known = {*self.schema.domain.names, *self.schema.columns}
        for setting, name in [("covariate", self.covariate)] + [(f"profile.{key}", key) for key in self.profile or {}]:
            if name is not None and name not in known:
                listed = ", ".join(dict.fromkeys((*self.schema.columns, *self.schema.domain.names)))
                raise InputError(f"{setting} = {name}: not a covariate; choose among {listed}")
        _ = self._fixed

    @property
    def name(self) -> str:
        """The column that varies."""
        return self._column(self.covariate or self.schema.columns[0])[0].name

    @property
    def label(self) -> str:
        """What its axis says: the column, and its unit where one is stated."""
        return column_words(self._varied[0])

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """What the points are called where the covariate has levels; empty for a number."""
        return self._varied[0].labels

    @property
    def columns(self) -> list[int]:
        """Positions of its encoded columns; of a number without that which says where it is missing."""
        covariate, columns = self._varied
        return columns[:1] if isinstance(covariate, Numeric) else columns

    @property
    def grid(self) -> Tensor:
        """Values: 101 of the typical range or between bounds, the two of two levels, or positions of categories."""
        covariate, columns = self._varied[0], self.columns
        if len(columns) > 1:
            return torch.arange(float(len(columns)), dtype=torch.float64)
        typical = self.schema.domain.typical[columns[0]]
        if typical is not None:
            return torch.linspace(*typical, _POINTS, dtype=torch.float64)
        return self.schema.domain.line(columns[0], len(covariate.levels) or _POINTS)

    def place(self, release: EffectRelease | None) -> str:
        """Return where the other covariates are, in words; empty where there are none."""
        return ", or ".join(filter(None, [PROFILE if self._fixed else "", self._others(release)[0]]))

    def _others(self, release: EffectRelease | None) -> tuple[str, Tensor]:
        """Return where covariates are that neither vary nor are fixed, in words, and rows of them."""
        domain = self.schema.domain
        middle = domain.from_unit(torch.full((1, domain.dimension), 0.5, dtype=torch.float64))
        if {*self._fixed, *self._varied[1]}.issuperset(range(domain.dimension)):
            return "", middle
        if self.reference is not None:
            return GIVEN, self.reference.clone()
        if release is not None and release.reference is not None:
            return POPULATION, release.reference.clone()
        return (SPREAD, self.schema.grid(_ROWS)) if self.spread else (MID_RANGE, middle)

    def points(self, release: EffectRelease | None) -> Tensor:
        """Return the points, [m rows, q]: for each of the m values of the covariate the same rows of the others.

        Args:
            release: Whose effect is drawn; None if there is none yet.
        """
        grid, columns, (_, others) = self.grid, self.columns, self._others(release)
        for column, value in self._fixed.items():
            others[:, column] = value
        x = others.repeat(len(grid), 1)
        values = grid[:, None] if len(columns) == 1 else torch.eye(len(grid), dtype=torch.float64)
        x[:, self._varied[1]] = 0.0  # where it is missing
        x[:, columns] = values.repeat_interleave(len(others), 0)
        return x

    def common(self, release: Any) -> tuple[float, float] | None:
        """Return the values of a number beyond which few records lie, by a release's means and spreads, if it has some.

        Those are two spreads of the people of ``reference`` from their mean, on the covariate's scale.
        """
        if self.levels or release is None or release.reference is None:
            return None
        column, domain = self._varied[1][0], self.schema.domain
        own = domain.scale(release.reference)[:, column]
        ends = own.mean() + _SPREADS * own.std() * torch.tensor([-1.0, 1.0], dtype=torch.float64)
        unit = ends.add(1).div(2).clamp(0, 1)[:, None].expand(-1, len(domain.names))
        first, last = domain.from_unit(unit)[:, column].clamp(self.grid[0], self.grid[-1]).tolist()
        return (first, last) if first < last else None

    @property
    def _varied(self) -> tuple[Covariate, list[int]]:
        """The covariate that varies, and its encoded columns."""
        return self._column(self.name)

    @cached_property
    def _fixed(self) -> dict[int, float]:
        """Values of encoded columns that the profile gives."""
        found: dict[int, float] = {}
        names = self.schema.domain.names
        for name, value in (self.profile or {}).items():
            covariate, columns = self._column(name)
            own = name == covariate.name
            if own and isinstance(covariate, Numeric) and covariate.missing:
                gone = value == MISSING_LEVEL
                found |= {columns[0]: covariate.middle if gone else self._within(name, value), columns[1]: float(gone)}
            elif own and isinstance(covariate, Categorical) and value in covariate.levels:
                place = covariate.levels.index(value)
                found |= dict(zip(columns, [float(place)] if len(columns) == 1 else _one(place, columns), strict=True))
            elif len(columns) > 1 and name == covariate.name:
                levels = ", ".join(map(str, covariate.levels))
                raise InputError(f"profile.{name} = {value}: give one of {levels}")
            else:
                column, number = names.index(name), self._within(name, value)
                if len(columns) > 1 and number == 1:  # no other category then
                    found |= dict(zip(columns, _one(columns.index(column), columns), strict=True))
                found[column] = number
        return found

    def _within(self, name: str, value: Any) -> float:
        """Return a value that the profile gives for an encoded column, within its bounds."""
        number = to_number(f"profile.{name}", value)
        low, high = self._bounds(self.schema.domain.names.index(name))
        if not low <= number <= high:
            raise InputError(f"profile.{name} = {number:g}: give a value within [{low:g}, {high:g}]")
        return number

    def _column(self, name: str) -> tuple[Covariate, list[int]]:
        """Return the covariate of a column, of the table or encoded, and the positions of its encoded ones."""
        for covariate in self.schema.covariates:
            if name in (covariate.name, *(column.name for column in covariate.columns)):
                return covariate, list(self.schema.places[covariate.name])
        raise InputError(f"covariate = {name}: not a covariate")

    def _bounds(self, column: int) -> tuple[float, float]:
        domain = self.schema.domain
        return float(domain.covariate_low[column]), float(domain.covariate_high[column])


def _one(place: int, columns: list[int]) -> list[float]:
    """Return indicators of one of several columns."""
    return [float(i == place) for i in range(len(columns))]
