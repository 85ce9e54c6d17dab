"""What repeats say together: tables of cells, as csv files hold them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import stdev
from typing import ClassVar, Generic, Self, TypeVar

from experiments.rows import read_rows, write_rows

C = TypeVar("C")


class Table(Generic[C]):
    """All cells of a study; a subclass names their data class, and finds them by what makes them."""

    kind: ClassVar[type]
    digits: ClassVar[int] = 6

    def __init__(self, cells: Iterable[C]) -> None:
        self.all = list(cells)

    def __iter__(self) -> Iterator[C]:
        return iter(self.all)

    def write(self, path: Path) -> None:
        """Write a csv file."""
        write_rows(path, self.kind, self.all, self.digits)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a csv file."""
        return cls(read_rows(path, cls.kind))


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; not a number for a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
