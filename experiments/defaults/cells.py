"""What the seeds say together, one line a data set, size, budget and method; as table.csv holds it."""

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from experiments.defaults.runs import NONE, Row


@dataclass(frozen=True)
class Cell:
    """One method at one size and budget, over the seeds.

    Attributes:
        data: Name of the source.
        n: Records.
        epsilon: Budget as words, ``none`` where nothing is spent.
        method: Name of the method.
        seeds: Runs.
        mse: Mean over the seeds of the mean squared error.
        mse_error: Its standard error; nan for one seed.
        rmse: Mean over the seeds of the root of the mean squared error.
        rmse_error: Its standard error.
        bias: Mean error.
        deviation: Mean standard deviation of the outcome.
        scale: Mean of the residual's scale S.
        planned: Mean of the planned noise.
        rung: What was asked for most often.
        seconds: Mean processor time.
    """

    data: str
    n: int
    epsilon: str
    method: str
    seeds: int
    mse: float
    mse_error: float
    rmse: float
    rmse_error: float
    bias: float
    deviation: float
    scale: float
    planned: float
    rung: str
    seconds: float


class Cells:
    """All cells of the study."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.all = list(cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.all)

    @cached_property
    def _by_key(self) -> dict[tuple[str, int, str, str], Cell]:
        return {(cell.data, cell.n, cell.epsilon, cell.method): cell for cell in self.all}

    def find(self, data: str, n: int, epsilon: float | None, method: str) -> Cell | None:
        """The cell of these keys, at no budget where the method has none; None if it is not there."""
        words = NONE if epsilon is None else f"{epsilon:g}"
        return self._by_key.get((data, n, words, method)) or self._by_key.get((data, n, NONE, method))

    @property
    def names(self) -> list[str]:
        """Names of the data, in order."""
        return list(dict.fromkeys(cell.data for cell in self.all))

    def sizes(self, data: str) -> list[int]:
        """Numbers of records that were tried, in order."""
        return sorted({cell.n for cell in self.all if cell.data == data})

    def write(self, path: Path) -> None:
        """Write a csv file."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Cell)], lineterminator="\n")
            writer.writeheader()
            for cell in self.all:
                writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in asdict(cell).items()})

    @classmethod
    def read(cls, path: Path) -> "Cells":
        """Read a csv file."""
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        return cls(Cell(**{f.name: f.type(line[f.name]) for f in fields(Cell)}) for line in lines)  # type: ignore[operator]

    @classmethod
    def of(cls, rows: Iterable[Row], order: Iterable[str]) -> "Cells":
        """Cells from runs, data in the order given."""
        found: dict[tuple[str, int, str, str], list[Row]] = {}
        for row in rows:
            found.setdefault((row.data, row.n, row.epsilon, row.method), []).append(row)
        place = {name: i for i, name in enumerate(order)}
        keys = sorted(found, key=lambda k: (place[k[0]], k[1], k[2] != NONE, float(k[2].replace(NONE, "0")), k[3]))
        return cls(_cell(found[key]) for key in keys)


def _cell(rows: list[Row]) -> Cell:
    first, mse, roots = rows[0], [row.mse for row in rows], [math.sqrt(row.mse) for row in rows]
    rungs = [row.rung for row in rows]
    means = [fmean(getattr(row, name) for row in rows) for name in ("bias", "deviation", "scale", "planned")]
    error = (fmean(mse), _error(mse), fmean(roots), _error(roots))
    seconds = fmean(row.seconds for row in rows)
    key = (first.data, first.n, first.epsilon, first.method)
    return Cell(*key, len(rows), *error, *means, max(rungs, key=rungs.count), seconds)  # type: ignore[arg-type]


def _error(values: list[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
