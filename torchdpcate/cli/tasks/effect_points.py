"""Where the figure of an effect is drawn: one covariate varies, the others stay at a public profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import to_number
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import EffectRelease

MID_RANGE, MEANS, PROFILE = "mid-range", "their released means", "the given profile"
_POINTS = 101


@dataclass(frozen=True)
class FigurePoints:
    """Points of a figure, all of them public.

    Args:
        schema: Columns and public bounds.
        covariate: The encoded column that varies; None takes the first.
        profile: Values of others by encoded column, public facts; None takes released means where a release has some,
            else the middle of the bounds.

    Raises:
        InputError: A column that is not there, or a value outside its bounds.
    """

    schema: TableSchema
    covariate: str | None = None
    profile: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        names, domain = self.schema.domain.names, self.schema.domain
        if self.covariate is not None and self.covariate not in names:
            raise InputError(f"figure.covariate = {self.covariate}: not a covariate; choose one of {', '.join(names)}")
        for name, value in (self.profile or {}).items():
            if name not in names:
                raise InputError(f"figure.profile.{name}: not a covariate; choose among {', '.join(names)}")
            column, number = names.index(name), to_number(f"figure.profile.{name}", value)
            low, high = float(domain.covariate_low[column]), float(domain.covariate_high[column])
            if not low <= number <= high:
                raise InputError(f"figure.profile.{name} = {number:g}: give a value within [{low:g}, {high:g}]")

    @property
    def name(self) -> str:
        """The column that varies."""
        return self.covariate or self.schema.domain.names[0]

    @property
    def column(self) -> int:
        """Its position."""
        return self.schema.domain.names.index(self.name)

    def place(self, release: EffectRelease | None) -> str:
        """Return where the other covariates are, in words."""
        return PROFILE if self.profile else MEANS if isinstance(release, ComposedRelease) else MID_RANGE

    def points(self, release: EffectRelease | None) -> Tensor:
        """Return the points: 101 over the covariate's bounds, or its two levels.

        Args:
            release: Whose effect is drawn; None if there is none yet.
        """
        domain = self.schema.domain
        low, high = domain.covariate_low, domain.covariate_high
        base = (low + high) / 2
        if isinstance(release, ComposedRelease):
            columns = list(range(len(base))) if release.columns is None else list(release.columns)
            u = release.standardisation.mean
            base[columns] = low[columns] + (u + 1) / 2 * (high - low)[columns]
        for name, value in (self.profile or {}).items():
            base[domain.names.index(name)] = float(value)
        two = self.schema.two_levels[self.column]
        x = base.repeat(2 if two else _POINTS, 1)
        along = torch.linspace(0, 1, len(x), dtype=torch.float64)
        x[:, self.column] = low[self.column] + along * (high - low)[self.column]
        return x
