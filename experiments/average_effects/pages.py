"""The page of the confounded design, from its csv files alone."""

import math
from collections.abc import Callable
from pathlib import Path

from experiments.average_effects.references import NOTE_MSE
from experiments.average_effects.runs import EPSILONS, FREE
from experiments.average_effects.summaries import Cell, Cells
from experiments.tables import paragraph, table

Shown = Callable[[Cell | None], str]
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
CONFOUNDED_CSV, COVERAGE_CSV = "confounded.csv", "coverage.csv"


def page(folder: Path) -> str:
    """Errors, factors and intervals where adjustment matters."""
    cells = Cells.read(folder / CONFOUNDED_CSV)
    parts = ["# The confounded design, where adjustment matters\n", RUN, paragraph(_CONFOUNDED)]
    parts += ["## Mean squared error of the printed mechanism over the certified one's\n", paragraph(_FACTORS)]
    parts += [
        table(_factors(cells)),
        "## Errors\n",
        paragraph(_MSE),
        *_tables(cells, "1000 MSE", mse, "100 bias", bias),
    ]
    parts += ["## Intervals\n", paragraph(_INTERVALS), *_tables(cells, "covered, %", coverage, "length", length)]
    more = Cells.read(folder / COVERAGE_CSV)
    return "\n".join([*parts, "## Coverage by more repeats\n", paragraph(_MORE), table(_coverage(more))])


def _tables(cells: Cells, left: str, one: Shown, right: str, other: Shown) -> list[str]:
    """A table for each size; rows without numbers are left out."""
    heads = [f"{what}, eps = {e:g}" for what in (left, right) for e in EPSILONS]
    parts = []
    for n in cells.sizes:
        lines = [["mechanism", "guarantee", *heads]]
        for row in cells.rows:
            free = cells.find(n, row, FREE)
            found = [free or cells.find(n, row, f"{e:g}") for e in EPSILONS]
            numbers = [*map(one, found), *map(other, found)]
            repeated = row.startswith("literal,") and one is mse
            if not repeated and any(number != NONE for number in numbers):
                lines.append([*ROWS[row], *numbers])
        repeats = max(cell.repeats for cell in cells if cell.n == n)
        parts += [f"### N = {n:,}, {repeats} repeats\n", table(lines)]
    return parts


def _factors(cells: Cells) -> list[list[str]]:
    rows = ("certified, eta = 0.1", "certified, balancing loss, eta = 0.1", "certified, logistic loss, eta = 0.1")
    lines = [["N", "certified", *(f"eps = {e:g}" for e in EPSILONS), *(f"note, eps = {e:g}" for e in EPSILONS)]]
    for n in cells.sizes:
        for row in rows:
            ours = [f"{cells.get(n, 'literal', e).mse / cells.get(n, row, e).mse:.1f}" for e in EPSILONS]
            pairs = zip(NOTE_MSE["literal"].get(n, ()), NOTE_MSE.get(row, {}).get(n, ()), strict=False)
            note = [f"{literal / own:.1f}" for literal, own in pairs]
            lines.append([f"{n:,}", ROWS[row][0], *ours, *(note or [NONE] * 3)])
    return lines


def _coverage(cells: Cells) -> list[list[str]]:
    lines = [["N", "mechanism", "repeats", *(f"covered, %, eps = {e:g}" for e in EPSILONS)]]
    for n in cells.sizes:
        for row in cells.rows:
            found = [cells.get(n, row, e) for e in EPSILONS]
            errors = [100 * math.sqrt(cell.coverage * (1 - cell.coverage) / cell.repeats) for cell in found]
            shown = [f"{coverage(cell)} ± {error:.1f}" for cell, error in zip(found, errors, strict=True)]
            lines.append([f"{n:,}", ROWS[row][0], f"{found[0].repeats:,}", *shown])
    return lines


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


_MSE = (
    "Mean squared error times 1000 ± its standard error, and bias times 100, over the repeats. All rows of a column "
    "have the same total epsilon; rows without privacy have none. *None holds*: the density is no mechanism for any "
    "epsilon, whatever it is run with. **Noise is from fixed seeds, so nothing here is private**; the level is that "
    "of the same mechanism with noise from the system."
)
_INTERVALS = (
    "Share of the nominal 95 % intervals that hold the truth (300 repeats: 95 % shows as 92.4 to 97.3 in nineteen "
    "studies of twenty), and their mean length. LGPR has no interval. The paper's mechanism has two lines, for "
    "our material does not say how much noise its variance gets: with the first line's its lengths are the "
    "published ones, with the second's they are near the theory note's."
)
_CONFOUNDED = (
    "Not a table of the paper, whose scenario 1 needs no adjustment, but the theory note's design (section 6): four "
    "covariates decide who is treated and who has the outcome, and the plain difference in means is off by 0.0905, "
    "half of the effect of 0.1696. Both mechanisms clip propensities at 0.1."
)
_FACTORS = (
    "How many times larger the printed mechanism's error is at the same nominal epsilon; the note's: its section 6."
)

_MORE = "The same intervals of the default mechanism with more data sets and noise of their own, ± standard error."
