"""How many values were moved to their public bounds: a number of the records, for the curator alone."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from torchdpcate.data._arrays import plural

if TYPE_CHECKING:
    from torchdpcate.data.records import CausalData
    from torchdpcate.data.schema import TableSchema

LARGE_SHARE = 0.05
"""Share of a column's values from which on a curator is warned that they were moved."""


@dataclass(frozen=True)
class Clipped:
    """How many values of each column were moved to their bounds; never to be published.

    Args:
        rows: Rows that were read.
        moved: Number of values moved, by the column's name; columns without any are left out.

    Example:
        >>> print(Clipped(200, {"y": 3}) + Clipped(100, {"y": 3, "age": 1}))
        y 6 of 300 (2 %), age 1 of 300 (0.333 %)
    """

    rows: int = 0
    moved: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def between(cls, given: "CausalData", kept: "CausalData", schema: "TableSchema") -> "Clipped":
        """Return how many values differ between records as they came and as they were kept.

        Args:
            given: Records as they were read.
            kept: The same within their bounds.
            schema: Names the columns.
        """
        moved = {schema.outcome: _differ(given.y, kept.y)}
        moved |= dict(zip(schema.domain.names, (given.x != kept.x).sum(0).tolist(), strict=True))
        if schema.propensity_column is not None and given.propensity is not None and kept.propensity is not None:
            moved[schema.propensity_column] = _differ(given.propensity, kept.propensity)
        return cls(given.n, {name: count for name, count in moved.items() if count})

    def __add__(self, other: "Clipped") -> "Clipped":
        names = dict.fromkeys([*self.moved, *other.moved])
        moved = {name: self.moved.get(name, 0) + other.moved.get(name, 0) for name in names}
        return Clipped(self.rows + other.rows, moved)

    def __str__(self) -> str:
        """Return columns, counts and shares in one line, the most first; ``none`` if nothing was moved."""
        most = sorted(self.moved, key=self.moved.__getitem__, reverse=True)
        return ", ".join(f"{name} {self._count(name)}" for name in most) or "none"

    def warn(self, schema: "TableSchema") -> None:
        """Warn of columns of which a large share was moved, in one line that names the bounds of the worst.

        Args:
            schema: Its bounds.
        """
        large = [name for name, count in self.moved.items() if count > LARGE_SHARE * self.rows]
        if not large:
            return
        worst = max(large, key=self.moved.__getitem__)
        others = f" (so were those of {plural(len(large) - 1, 'other column')})" if large[1:] else ""
        low, high = _bounds(worst, schema)
        between = (
            " or between integers" if worst == schema.outcome and schema.domain.outcome_kind != "continuous" else ""
        )
        warnings.warn(
            f"column {worst!r}: {self._count(worst)} values were outside the declared bounds [{low:.10g}, {high:.10g}]"
            f"{between} and were moved{others}; are codes of missing values (-99, 999) or another unit among them? "
            "these numbers are of the records: publish them nowhere, and take no bound from them",
            stacklevel=3,
        )

    def _count(self, name: str) -> str:
        return f"{self.moved[name]:,} of {self.rows:,} ({100 * self.moved[name] / self.rows:.3g} %)"


NOTHING_CLIPPED = Clipped()
"""Of records that were within their bounds as they came."""


def _differ(given: Tensor, kept: Tensor) -> int:
    return int((given != kept).sum())


def _bounds(name: str, schema: "TableSchema") -> tuple[float, float]:
    domain = schema.domain
    if name == schema.outcome:
        return domain.outcome_low, domain.outcome_high
    if name == schema.propensity_column and domain.known_propensity is not None:
        return domain.known_propensity.bounds
    place = domain.names.index(name)
    return float(domain.covariate_low[place]), float(domain.covariate_high[place])
