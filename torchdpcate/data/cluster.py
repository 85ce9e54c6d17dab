"""Clusters of a trial that assigns whole groups of records, and how much wider intervals are for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchdpcate.data.facts import check_entries, check_name, to_number
from torchdpcate.errors import InputError, MissingError

if TYPE_CHECKING:
    import pandas as pd

NEEDED = (
    "an interval must count clusters, whose own sums nobody paid for; in their place give public upper bounds of their "
    "records and of the correlation within them, as cluster: {name: school, size: 40, correlation: 0.05}"
)
"""What clusters without numbers lack."""
NO_INTERVALS = (
    "records come in clusters (cluster: in the domain), which intervals of this estimate do not count; task=subgroups "
    "and task=average_effect (SubgroupEffects) have intervals that do"
)
"""Why other releases have no intervals."""


@dataclass(frozen=True)
class Cluster:
    r"""What is public of the clusters that a trial assigned as a whole, such as schools.

    Where two records of one arm in a cluster have outcomes of a correlation of at most :math:`\rho` in size, and no
    cluster has more than m records, a sum of what records add has at most

    .. math:: \mathrm{var} \sum_i t_i \le \sum_i \mathrm{var}\, t_i + \rho \sum_c \sum_{i \ne j \in c}
        \sqrt{\mathrm{var}\, t_i\, \mathrm{var}\, t_j} \le (1 + (m - 1) \rho) \sum_i \mathrm{var}\, t_i

    which is the design effect (Donner & Klar 2000), by which intervals multiply the sampling variance. Privacy is by
    record, or by person, all the same.

    Attributes:
        name: The table's column that tells whose cluster a record is in; it is read to check that none is larger than
            ``size``, and for nothing else.
        size: m, a public upper bound of the records of a cluster; None where it is not known.
        correlation: rho, a public upper bound; None where it is not known.

    Raises:
        InputError: A size that is no positive integer, a correlation outside [0, 1], or one of them without the other.

    Example:
        >>> round(Cluster("school", 40, 0.05).design_effect, 6)
        2.95
    """

    name: str
    size: int | None = None
    correlation: float | None = None

    def __post_init__(self) -> None:
        check_name("cluster", self.name)
        if (self.size is None) != (self.correlation is None):
            raise InputError(f"cluster {self.name!r}: give size and correlation, or neither: {NEEDED}")
        if self.size is None or self.correlation is None:
            return
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise InputError(f"size of cluster {self.name!r} is {self.size!r}; give a positive integer")
        rho = to_number(f"correlation of cluster {self.name!r}", self.correlation)
        if not 0 <= rho <= 1:
            raise InputError(f"correlation of cluster {self.name!r} is {rho:g}; give a number from 0 to 1")
        object.__setattr__(self, "correlation", rho)

    @classmethod
    def of(cls, entry: Any) -> "Cluster":
        """Return the clusters that a domain file states: a column's name, or its ``name``, ``size``, ``correlation``.

        Raises:
            InputError: Other entries, or see the class.
        """
        if not isinstance(entry, Mapping):
            return cls(str(entry))
        check_entries(entry, "cluster", {"name"}, {"size", "correlation"})
        return cls(str(entry["name"]), entry.get("size"), entry.get("correlation"))

    def entry(self) -> Any:
        """Return what a domain file has for it."""
        if self.size is None:
            return self.name
        return {"name": self.name, "size": self.size, "correlation": self.correlation}

    @property
    def _known(self) -> tuple[int, float]:
        """Size and correlation."""
        if self.size is None or self.correlation is None:
            raise MissingError(f"cluster {self.name!r}: {NEEDED}")
        return self.size, self.correlation

    @property
    def design_effect(self) -> float:
        """By what intervals multiply the sampling variance.

        Raises:
            MissingError: Size and correlation are not known.
        """
        size, correlation = self._known
        return 1 + (size - 1) * correlation

    @property
    def assumption(self) -> str:
        """What intervals rest on, in words.

        Raises:
            MissingError: Size and correlation are not known.
        """
        size, correlation = self._known
        return (
            f"clusters ({self.name}) were randomised as a whole, are many and independent, and have at most "
            f"{size} records each, whose outcomes, times their weights, are correlated by at most "
            f"{correlation:g} in size"
        )

    def sizes(self, column: "pd.Series") -> dict[str, int]:
        """Return how many records each named cluster has; a missing name is a cluster of its own, and in none of them.

        Args:
            column: Whose cluster each record is in.
        """
        names = column.where(column.isna(), column.astype(str).str.strip())
        return {str(name): int(size) for name, size in names.value_counts().items()}

    def check(self, sizes: Mapping[str, int]) -> None:
        """Refuse a table in which a cluster is larger than stated.

        Args:
            sizes: Of the clusters of all records, as ``sizes`` returns them.

        Raises:
            InputError: There is one; how large it is is not said, for a bound is no record's to tell.
        """
        if self.size is not None and max(sizes.values(), default=0) > self.size:
            raise InputError(
                f"column {self.name!r} has a cluster of more than size = {self.size} records; give a bound that is "
                "public, such as by a register of all clusters, and take none from the table"
            )
