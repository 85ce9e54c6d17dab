"""What is to be reached, cell by cell, and whether it was."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from experiments.defaults.methods import CONSTANT, DEFAULT, NONPRIVATE
from experiments.defaults.summaries import Cell, Cells

SLACK, SHARE = 1.1, 0.1  # of the constant's RMSE, and of the residual's scale
MSE = {  # design: mean squared error at (records, epsilon)
    (16_000, 1.0): (0.020, 0.004, 0.008, 0.08, 0.22),
    (4_000, 1.0): (0.030, 0.022, 0.010, 0.40, 0.45),
    (1_500, 1.0): (0.070, 0.11, 0.08, 0.65, 1.3),
    (4_000, 4.0): (0.020, 0.012, 0.006, 0.10, 0.30),
}
RATIOS = {  # RMSE over the constant's, epsilon = 1
    ("dataset2", 27_000): 0.12,
    ("dataset2", 9_000): 0.13,
    ("dataset2", 2_700): 0.25,
    ("dataset1", 27_000): 0.09,
    ("dataset1", 2_700): 0.30,
}
ACIC, ACIC_SIZE = 0.80, 4_322  # RMSEs, means over the ten surfaces
BESIDE_NONPRIVATE = 1.2  # RMSE over the non-private one's, n = 270,000, epsilon = 8

MET, NEAR, MISSED = "met", "within noise", "missed"


@dataclass(frozen=True)
class Verdict:
    """One cell's target and what was seen.

    Attributes:
        group: Name of the target.
        data: Name of the data.
        n: Records.
        epsilon: Budget.
        limit: At most.
        seen: What was seen.
        error: Its standard error; nan where unknown.
    """

    group: str
    data: str
    n: int
    epsilon: float
    limit: float
    seen: float
    error: float

    @property
    def word(self) -> str:
        """``met``, ``within noise`` (two standard errors less are within the limit) or ``missed``."""
        if self.seen <= self.limit:
            return MET
        return NEAR if self.seen - 2 * self.error <= self.limit else MISSED


def constants_cells(cells: Cells) -> Iterator[Verdict]:
    """In every cell: RMSE at most 1.1 times the private constant's and a tenth of the residual's scale."""
    for cell in cells:
        beside = cells.find(cell.data, cell.n, _epsilon(cell), CONSTANT) if cell.method == DEFAULT else None
        if beside is not None:
            scale = cell.scale or beside.scale
            limit, error = SLACK * beside.rmse + SHARE * scale, math.hypot(cell.rmse_error, SLACK * beside.rmse_error)
            yield Verdict("constant", cell.data, cell.n, float(cell.epsilon), limit, cell.rmse, error)


def design_cells(cells: Cells) -> Iterator[Verdict]:
    """Mean squared errors on Niu's designs; at 500 records the constant's."""
    for (n, epsilon), limits in MSE.items():
        for design, limit in zip("abcde", limits, strict=True):
            cell = cells.find(f"niu_{design}", n, epsilon, DEFAULT)
            if cell is not None:
                yield Verdict("designs", cell.data, n, epsilon, limit, cell.mse, cell.mse_error)
    for design in "abcde":
        cell, beside = (cells.find(f"niu_{design}", 500, 1.0, method) for method in (DEFAULT, CONSTANT))
        if cell is not None and beside is not None:
            error = math.hypot(cell.mse_error, beside.mse_error)
            yield Verdict("designs", cell.data, 500, 1.0, beside.mse, cell.mse, error)


def ratio_cells(cells: Cells) -> Iterator[Verdict]:
    """RMSEs over that of the private constant: Datasets 1 and 2, and ACIC's surfaces on average."""
    for (data, n), limit in RATIOS.items():
        cell, beside = (cells.find(data, n, 1.0, method) for method in (DEFAULT, CONSTANT))
        if cell is not None and beside is not None:
            yield Verdict("ratios", data, n, 1.0, limit, *_ratio(cell, beside))
    surfaces = [name for name in cells.names if name.startswith("acic_")]
    pairs = [[cells.find(name, ACIC_SIZE, 1.0, method) for method in (DEFAULT, CONSTANT)] for name in surfaces]
    both = [(cell, beside) for cell, beside in pairs if cell is not None and beside is not None]
    if both:
        means = [fmean(cell.rmse for cell in column) for column in zip(*both, strict=True)]
        errors = [math.hypot(*(cell.rmse_error for cell in column)) / len(column) for column in zip(*both, strict=True)]
        seen = means[0] / means[1]
        error = seen * math.hypot(errors[0] / means[0], errors[1] / means[1])
        yield Verdict("ratios", f"acic, {len(both)} surfaces", ACIC_SIZE, 1.0, ACIC, seen, error)


def large_cells(cells: Cells) -> Iterator[Verdict]:
    """At 270,000 records and epsilon = 8: RMSE over that of the non-private fit with the same features."""
    for name in cells.names:
        cell, beside = (cells.find(name, 270_000, 8.0, method) for method in (DEFAULT, NONPRIVATE))
        if cell is not None and beside is not None:
            yield Verdict("large", name, 270_000, 8.0, BESIDE_NONPRIVATE, *_ratio(cell, beside))


def all_cells(cells: Cells) -> list[Verdict]:
    """All targets that the cells say something of."""
    return [verdict for part in (design_cells, ratio_cells, large_cells, constants_cells) for verdict in part(cells)]


def _ratio(cell: Cell, beside: Cell) -> tuple[float, float]:
    """RMSE over another's, and its standard error."""
    if not beside.rmse:
        return math.inf, math.nan
    seen = cell.rmse / beside.rmse
    return seen, seen * math.hypot(cell.rmse_error / max(cell.rmse, 1e-300), beside.rmse_error / beside.rmse)


def _epsilon(cell: Cell) -> float:
    return float(cell.epsilon)
