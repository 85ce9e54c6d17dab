"""How far treated and controls differ before and after weighting, feature by feature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("before", "before_sd", "after", "after_sd", "expected", "expected_sd")
"""Columns of numbers."""


@dataclass(frozen=True)
class BalanceTable:
    """Differences of the arms' means of every feature, in units of half the feature's range.

    Attributes:
        names: What the features are called.
        before: Treated minus controls as they are; None where it was not asked for.
        before_sd: Deviation of the noise in it.
        after: Treated minus controls, weighted.
        after_sd: Deviation of the noise in it.
        expected: What the fit's shrinkage leaves after weighting, by public facts and released numbers.
        expected_sd: Deviation of what the fit's noise leaves.

    Raises:
        InputError: A column of another length than ``names``, or a number that is not finite.

    Example:
        >>> BalanceTable(["age"], before=[0.4], after=[0.02]).frame()
             before  after
        age     0.4   0.02
    """

    unit: ClassVar[str] = "half ranges"
    """Of all numbers."""

    names: Sequence[str]
    before: Sequence[float] | None = None
    before_sd: Sequence[float] | None = None
    after: Sequence[float] | None = None
    after_sd: Sequence[float] | None = None
    expected: Sequence[float] | None = None
    expected_sd: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Refuse columns that do not fit together."""
        for name, column in self.columns().items():
            if len(column) != len(self.names) or not all(map(math.isfinite, column)):
                raise InputError(f"{name}: give {len(self.names)} finite numbers, one a feature, or None")

    def columns(self) -> dict[str, Sequence[float]]:
        """Return the columns that are there, by name."""
        return {name: column for name in COLUMNS if (column := getattr(self, name)) is not None}

    def frame(self) -> "pd.DataFrame":
        """Return the columns that are there, with a row a feature."""
        import pandas as pd

        return pd.DataFrame(self.columns(), index=list(self.names), dtype=float)


class StandardisedBalance(BalanceTable):
    """The same in units of the feature's standard deviation over the records, which is the curator's."""

    unit: ClassVar[str] = "standard deviations"
