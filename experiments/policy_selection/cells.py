"""Means over the repetitions, as csv files hold them and pages show them."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.cells import Table, standard_error

KEYS = ("row", "calibration", "mechanism", "epsilon", "level")


@dataclass(frozen=True)
class Cell:
    """One measure of one row on one population, over the repetitions.

    Attributes:
        data: The population's name.
        row: Name of the row.
        calibration: What noise is calibrated by, where rows have several.
        mechanism: Name of the mechanism, or empty.
        epsilon: Budget, or empty.
        level: Of the guarantee, or that of the nuisances.
        measure: What was measured.
        mean: Mean.
        error: Its standard error; nan of one repetition.
        smallest: Smallest value.
        largest: Largest value.
        first: Value of the first repetition, which anybody can repeat.
        repeats: Repetitions.
    """

    data: str
    row: str
    calibration: str
    mechanism: str
    epsilon: str
    level: str
    measure: str
    mean: float
    error: float
    smallest: float
    largest: float
    first: float
    repeats: int


class Cells(Table[Cell]):
    """All cells of one table."""

    kind = Cell

    def find(self, data: str, measure: str, **keys: str) -> Cell | None:
        """The first cell with these keys, others left open; None if there is none."""
        return next(iter(self.having(data, measure, **keys)), None)

    def having(self, data: str, measure: str, **keys: str) -> list[Cell]:
        """All cells with these keys."""
        return [
            cell
            for cell in self.all
            if (cell.data, cell.measure) == (data, measure) and all(getattr(cell, k) == v for k, v in keys.items())
        ]

    def rows(self, data: str, measure: str) -> list[str]:
        """Names of the rows that have a measure, in order."""
        return list(dict.fromkeys(cell.row for cell in self.having(data, measure)))


def summarise(data: str, repetitions: list[list[dict[str, Any]]]) -> Iterator[Cell]:
    """Cells of one population from the rows of its repetitions."""
    values: dict[tuple[str, ...], list[float]] = {}
    for entry in (entry for rows in repetitions for entry in rows):
        keys = tuple(_word(entry.get(key, "")) for key in KEYS)
        for measure in entry.keys() - set(KEYS):
            values.setdefault((*keys, measure), []).append(entry[measure])
    for place in sorted(values, key=_order(repetitions[0])):
        found = values[place]
        error = standard_error(found)
        row, calibration, mechanism, epsilon, level, measure = place
        what = (data, row, calibration, mechanism, epsilon, level, measure)
        yield Cell(*what, fmean(found), error, min(found), max(found), found[0], len(found))


def _order(rows: list[dict[str, Any]]) -> Any:
    """Cells stand as in the first repetition."""
    places: dict[tuple[str, ...], int] = {}
    for row in rows:
        for measure in row:
            places.setdefault((*(_word(row.get(key, "")) for key in KEYS), measure), len(places))
    return places.__getitem__


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
