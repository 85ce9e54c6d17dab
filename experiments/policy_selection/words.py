"""What the pages share: names of learners, and numbers as words."""

from collections.abc import Callable

from experiments.policy_selection.cells import Cell, Cells

RUN = "Written by `python -m experiments.policy_selection.tables --acic x.csv`; what is what: [README](README.md).\n"
LEARNERS = {
    "truth": "the truth, known",
    "constants": "constants, 1/2 each",
    "frozen trees": "boosted trees, of other people",
    "ridge 50": "ridge, lambda = 50 (the paper's control)",
    "ridge, smallest": "ridge, the smallest without extra noise",
    "ridge, private target": "ridge, the library's default: private target",
    "ridge 1": "ridge, lambda = 1",
    "ridge 0.01": "ridge, lambda = 0.01",
    "boosted trees": "boosted trees",
    "deep tree": "one deep tree",
    "10 neighbours": "10 nearest neighbours",
    "1 neighbour": "nearest neighbour",
}
REGIMES = {
    "fixed": "fixed",
    "frozen": "frozen",
    "stability": "learned, certificate",
    "none": "learned, no certificate",
}


def getter(cells: Cells, data: str, row: str, **keys: str) -> Callable[[str], Cell]:
    """The measures of one row, which must be there."""

    def get(measure: str) -> Cell:
        cell = cells.find(data, measure, row=row, **keys)
        assert cell is not None, (data, row, measure)
        return cell

    return get


def both(cell: Cell) -> str:
    """Mean and standard error."""
    return f"{cell.mean:.3g} ± {cell.error:.1g}"


def regret(cell: Cell) -> str:
    """The same of a regret."""
    return f"{cell.mean:.4f} ± {cell.error:.4f}"


def width(cell: Cell) -> str:
    """A public spread, or the mean of one that follows from what was released or sampled."""
    return f"{cell.mean:.3g}" if cell.smallest == cell.largest else f"{cell.mean:.3g} on average"


def fixed(cell: Cell | None) -> str:
    """A public number, if there is one."""
    return "-" if cell is None else large(cell.mean)


def large(value: float) -> str:
    """A number that may be large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def repeats(cells: Cells, data: str, measure: str) -> str:
    """How often it was repeated."""
    return f"{cells.having(data, measure)[0].repeats} repetitions"
