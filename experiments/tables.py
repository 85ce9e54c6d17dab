"""Tables of a study: of what repeats say together, as csv files hold them, and as text for a person."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import stdev
from typing import ClassVar, Generic, Self, TypeVar

from experiments.csv_files import read_rows, write_rows

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


def paragraph(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def table(lines: list[list[str]]) -> str:
    """A table, its head first."""
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([shown[0], "| --- " * len(lines[0]) + "|", *shown[1:]]) + "\n"
