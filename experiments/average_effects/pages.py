"""The pages of the tables, from their csv files alone."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.average_effects.cells import Cell, Cells
from experiments.average_effects.check_page import check
from experiments.average_effects.designs import DESIGNS
from experiments.average_effects.references import (
    NOTE_MSE,
    PUBLISHED_LENGTH,
    PUBLISHED_LGPR_BIAS,
    PUBLISHED_MSE,
    Numbers,
)
from experiments.average_effects.runs import EPSILONS, FREE
from experiments.average_effects.words import NONE, ROWS, RUN, bias, coverage, length, mse, printed
from experiments.words import paragraph, table

Shown = Callable[[Cell | None], str]
PUBLISHED = "published (the paper)"
COVERAGE = "coverage"
FIRST, SECOND = "scenario 1", "scenario 2"


def file_of(design: str) -> str:
    """Name of a design's csv file."""
    return f"{design.replace(' ', '_')}.csv"


def table3(folder: Path) -> str:
    """Errors in scenario 1."""
    return _errors(folder, FIRST, 3, f"{_MSE} {_NOTHING_ELSE}", PUBLISHED_MSE)


def table4(folder: Path) -> str:
    """Intervals in scenario 1."""
    return _intervals(folder, FIRST, 4, f"{_INTERVALS} {_NOTHING_ELSE}", PUBLISHED_LENGTH)


def table5(folder: Path) -> str:
    """Errors in scenario 2."""
    return _errors(folder, SECOND, 5, f"{_MSE} {_SECOND}", {})


def table6(folder: Path) -> str:
    """Intervals in scenario 2."""
    return _intervals(folder, SECOND, 6, f"{_INTERVALS} {_SECOND}", {})


def confounded(folder: Path) -> str:
    """Errors, factors and intervals where adjustment matters."""
    cells = Cells.read(folder / file_of("confounded"))
    parts = ["# The confounded design, where adjustment matters\n", RUN, paragraph(_CONFOUNDED)]
    parts += ["## Mean squared error of the printed mechanism over the certified one's\n", paragraph(_FACTORS)]
    parts += [table(_factors(cells)), "## Errors\n", paragraph(_MSE), *_error_tables(cells, {})]
    parts += ["## Intervals\n", paragraph(_INTERVALS), *_interval_tables(cells, {})]
    more = Cells.read(folder / file_of(COVERAGE))
    return "\n".join([*parts, "## Coverage by more repeats\n", paragraph(_MORE), table(_coverage(more))])


def _errors(folder: Path, design: str, number: int, about: str, published: Numbers) -> str:
    cells = Cells.read(folder / file_of(design))
    title = f"# Table {number}: errors. {DESIGNS[design].title}\n"
    return "\n".join([title, RUN, paragraph(about), *_error_tables(cells, published)])


def _intervals(folder: Path, design: str, number: int, about: str, published: Numbers) -> str:
    cells = Cells.read(folder / file_of(design))
    title = f"# Table {number}: 95 % intervals. {DESIGNS[design].title}\n"
    return "\n".join([title, RUN, paragraph(about), *_interval_tables(cells, published)])


def _error_tables(cells: Cells, published: Numbers) -> list[str]:
    first = {n: [printed(value) for value in published[n]] for n in published}
    return _tables(cells, "1000 MSE", mse, "100 bias", bias, first)


def _interval_tables(cells: Cells, published: Numbers) -> list[str]:
    first = {n: [*[NONE] * 3, *(f"{value:.2f}" for value in published[n])] for n in published}
    return _tables(cells, "covered, %", coverage, "length", length, first)


def _tables(
    cells: Cells, left: str, one: Shown, right: str, other: Shown, published: Mapping[int, list[str]]
) -> list[str]:
    """A table for each size, the published line first where there is one; rows without numbers are left out."""
    heads = [f"{what}, eps = {e:g}" for what in (left, right) for e in EPSILONS]
    parts = []
    for n in cells.sizes:
        lines = [["mechanism", "guarantee", *heads]]
        if n in published:
            lines.append([PUBLISHED, NONE, *published[n], *[NONE] * (6 - len(published[n]))])
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
    notes = NOTE_MSE["confounded"]
    for n in cells.sizes:
        for row in rows:
            ours = [f"{cells.get(n, 'literal', e).mse / cells.get(n, row, e).mse:.1f}" for e in EPSILONS]
            pairs = zip(notes["literal"].get(n, ()), notes.get(row, {}).get(n, ()), strict=False)
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
_NOTHING_ELSE = (
    "The published line has what the theory note carries of the paper, mean squared errors at N = 5,000 and 10,000 "
    "and lengths at N = 5,000. **No other published cell of this table is at hand**: not the larger samples, not bias "
    f"or coverage, not the peers, of which we only know that LGPR's bias was {PUBLISHED_LGPR_BIAS} of the effect "
    "(6.2 in this table's unit). The design is our reading of a few words; the paper's own may differ."
)
_SECOND = (
    "**No published cell of this table is at hand**, nor the paper's second scenario: this one, where no logistic "
    "regression fits the propensity, is ours."
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

PAGES: dict[str, Callable[[Path], str]] = {
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "table6": table6,
    "confounded": confounded,
    "check": check,
}


def write_page(folder: Path, name: str) -> None:
    """Write one page from the csv files, keeping its reading as it stands."""
    path = folder / f"{name}.md"
    kept = path.read_text(encoding="utf-8").partition("## Reading it")[2] if path.exists() else ""
    path.write_text(PAGES[name](folder) + (f"\n## Reading it{kept}" if kept else ""), encoding="utf-8")
