"""What the seeds say together, one line a data set, size, budget and method; as table.csv holds it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from experiments.defaults.runs import NONE, Row
from experiments.tables import Table, standard_error


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
        form: What was requested most often.
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
    form: str
    seconds: float


class Cells(Table[Cell]):
    """All cells of the study."""

    kind = Cell
    digits = 5

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
    rungs = [row.form for row in rows]
    means = [fmean(getattr(row, name) for row in rows) for name in ("bias", "deviation", "scale", "planned")]
    error = (fmean(mse), standard_error(mse), fmean(roots), standard_error(roots))
    seconds = fmean(row.seconds for row in rows)
    key = (first.data, first.n, first.epsilon, first.method)
    return Cell(*key, len(rows), *error, *means, max(rungs, key=rungs.count), seconds)  # type: ignore[arg-type]
