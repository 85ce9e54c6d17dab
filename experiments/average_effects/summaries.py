"""What the repeats say together, as csv files hold it and pages show it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from experiments.average_effects.designs import Design
from experiments.average_effects.runs import Line
from experiments.tables import Table, standard_error


@dataclass(frozen=True)
class Cell:
    """One row at one size and budget, over the repeats.

    Attributes:
        design: Name of the design.
        n: Records of a data set.
        row: Name of the row.
        epsilon: Budget as words, ``none`` where nothing is spent.
        repeats: Data sets.
        bias: Mean error.
        bias_error: Its standard error.
        mse: Mean squared error.
        mse_error: Its standard error.
        coverage: Share of intervals that hold the truth; nan where there are none.
        length: Mean length of intervals.
    """

    design: str
    n: int
    row: str
    epsilon: str
    repeats: int
    bias: float
    bias_error: float
    mse: float
    mse_error: float
    coverage: float
    length: float


class Cells(Table[Cell]):
    """All cells of one design."""

    kind = Cell

    def find(self, n: int, row: str, epsilon: str) -> Cell | None:
        """The cell of these keys, None if there is none."""
        return next((cell for cell in self.all if (cell.n, cell.row, cell.epsilon) == (n, row, epsilon)), None)

    def get(self, n: int, row: str, epsilon: float) -> Cell:
        """The cell of these keys, which must be there."""
        cell = self.find(n, row, f"{epsilon:g}")
        assert cell is not None, (n, row, epsilon)
        return cell

    @property
    def rows(self) -> list[str]:
        """Names of the rows, in order."""
        return list(dict.fromkeys(cell.row for cell in self.all))

    @property
    def sizes(self) -> list[int]:
        """Sizes, in order."""
        return list(dict.fromkeys(cell.n for cell in self.all))


def summarise(design: Design, lines: Iterable[Line]) -> Iterator[Cell]:
    """Cells of a design from what its rows found."""
    found: dict[tuple[int, str, str], list[tuple[float, float | None]]] = {}
    for line in lines:
        found.setdefault((line.n, line.row, line.epsilon), []).extend(zip(line.estimate, line.half, strict=True))
    for (n, row, epsilon), pairs in found.items():
        errors = [estimate - design.truth for estimate, _ in pairs]
        squares = [error**2 for error in errors]
        halves = [(abs(error), half) for error, (_, half) in zip(errors, pairs, strict=True) if half is not None]
        coverage = fmean(error <= half for error, half in halves) if halves else math.nan
        length = 2 * fmean(half for _, half in halves) if halves else math.nan
        means = (fmean(errors), standard_error(errors), fmean(squares), standard_error(squares))
        yield Cell(design.name, n, row, epsilon, len(pairs), *means, coverage, length)
