"""What the pages share: names of rows, their levels, and numbers as words."""

import math

from experiments.average_effects.cells import Cell

RUN = "Written by `python -m experiments.average_effects.tables`; what is what: [README](README.md).\n"
NONE = "-"
ROWS = {
    "literal": ("the paper's mechanism, as printed", "none holds"),
    "literal, note's interval": ("the same, variance with less noise", "none holds"),
    "certified, eta = 0.1": ("covariate balancing, eta = 0.1", "certified"),
    "certified, balancing loss, eta = 0.1": ("its balancing loss, always", "certified"),
    "certified, logistic loss, eta = 0.1": ("its logistic loss, always", "certified"),
    "LGPR": ("LGPR (Lee et al. 2019)", "certified"),
    "GR": ("GR (Guha & Reiter 2024)", "certified"),
    "difference in means": ("difference in means", "certified"),
    "no privacy, balanced": ("balanced weights, no privacy", "not private"),
    "no privacy, difference in means": ("difference in means, no privacy", "not private"),
}
"""Label and level by row; the level is that of the mechanism with noise from the system."""


def thousandths(value: float) -> str:
    """A mean squared error times 1000, to three digits."""
    return "-" if math.isnan(value) else f"{1000 * value:#.3g}".rstrip(".")


def mse(cell: Cell | None) -> str:
    """Mean squared error times 1000, and its standard error to one digit."""
    return NONE if cell is None else f"{thousandths(cell.mse)} ± {float(f'{1000 * cell.mse_error:.1g}'):g}"


def bias(cell: Cell | None) -> str:
    """Bias times 100."""
    return NONE if cell is None else f"{100 * cell.bias:+.2f}"


def coverage(cell: Cell | None) -> str:
    """Share of intervals that hold the truth, in percent."""
    return NONE if cell is None or math.isnan(cell.coverage) else f"{100 * cell.coverage:.1f}"


def length(cell: Cell | None) -> str:
    """Mean length of intervals."""
    return NONE if cell is None or math.isnan(cell.length) else f"{cell.length:#.3g}"
