"""The table of all cells, and figures of error against epsilon, from table.csv."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.defaults.formats import NONE, TITLES, number, published, squared, with_error
from experiments.defaults.methods import BLOCKS, CONSTANT, DEFAULT, NONPRIVATE, PLUG_IN, ZERO
from experiments.defaults.runs import EPSILONS
from experiments.defaults.summaries import Cell, Cells
from experiments.tables import paragraph, table

ORDER = (DEFAULT, CONSTANT, ZERO, NONPRIVATE, PLUG_IN, BLOCKS)
LINES: dict[str, dict[str, Any]] = {
    DEFAULT: {"color": "C0", "marker": "o"},
    CONSTANT: {"color": "C1", "marker": "s"},
    ZERO: {"color": "0.6", "ls": "--"},
    NONPRIVATE: {"color": "black", "ls": ":"},
    PLUG_IN: {"color": "C4", "marker": "v"},
    BLOCKS: {"color": "C3", "marker": "^"},
}
ABOUT = (
    "Mean over the seeds ± its standard error; root mean squared error of the effect at held-out points in the "
    "outcome's units, for Niu's designs the mean squared error. LaLonde: error of the mean effect of the treated "
    "against the experiment's 1,794 dollars, itself known to 671. Default: `RLearner(schema, PrivacyBudget(epsilon, "
    "1e-5))`, and nothing else said. Private constant: the same plan with a constant head, and the whole budget. "
    "Requested: what the default's plan requested most often, by the seeds. Noise is from fixed seeds, so that runs "
    "can be repeated: nothing made here is private."
)


def cells_page(cells: Cells) -> str:
    """Return the table of every cell, as text."""
    parts = ["# Errors at default settings, every cell\n", paragraph(ABOUT)]
    for name in cells.names:
        what = "mean squared error" if squared(name) else "root mean squared error"
        parts += [f"## {name}: {what}\n", table(list(_lines(cells, name)))]
    return "\n".join(parts)


def _lines(cells: Cells, name: str) -> Iterator[list[str]]:
    yield ["records", "row", "seeds", *(f"eps = {e:g}" for e in EPSILONS)]
    for n in cells.sizes(name):
        for method in ORDER:
            found = [cells.find(name, n, e, method) for e in EPSILONS]
            if any(found):
                most = max(cell.seeds for cell in found if cell)
                yield [f"{n:,}", TITLES[method], f"{most}", *(_shown(cell) for cell in found)]
        values = [published().get((name, n, e)) for e in EPSILONS]
        if any(values):
            yield [f"{n:,}", TITLES["published"], "5", *(NONE if v is None else number(v) for v in values)]
        requested = [cells.find(name, n, e, DEFAULT) for e in EPSILONS]
        if any(cell and cell.form for cell in requested):
            yield [f"{n:,}", "requested", "", *(cell.form if cell else NONE for cell in requested)]


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return NONE
    return with_error(*((cell.mse, cell.mse_error) if squared(cell.data) else (cell.rmse, cell.rmse_error)))


def draw(cells: Cells, groups: dict[str, dict[str, str]], folder: Path) -> list[Path]:
    """Draw RMSE against epsilon, one file a group of data: a row of panels a data set, a panel a size.

    Args:
        cells: All cells.
        groups: Titles of data by name, by the file's name.
        folder: Of the files.
    """
    paths = []
    for file, titles in groups.items():
        present = {name: title for name, title in titles.items() if name in cells.names}
        if not present:
            continue
        columns = max(len(cells.sizes(name)) for name in present)
        size = (2.3 * columns + 0.8, 2.0 * len(present) + 0.8)
        drawing = Figure(figsize=size, layout="constrained")
        panels = drawing.subplots(len(present), columns, sharex=True, squeeze=False, sharey="row")
        for row, (name, title) in zip(panels, present.items(), strict=True):
            for panel in row[len(cells.sizes(name)) :]:
                panel.set_visible(False)
            for panel, n in zip(row, cells.sizes(name), strict=False):
                _panel(panel, cells, name, n)
                panel.set_title(f"{title}, n = {n:,}", fontsize=8.5)
            row[0].set_ylabel("RMSE")
        for panel in panels[-1]:
            panel.set_xlabel("epsilon")
        drawn = [panel.get_legend_handles_labels() for panel in panels.flat]
        lines = {label: line for handles, labels in drawn for line, label in zip(handles, labels, strict=True)}
        drawing.legend(
            list(lines.values()), list(lines), loc="outside lower center", ncols=6, frameon=False, fontsize=8.5
        )
        paths.append(folder / f"{file}.png")
        drawing.savefig(paths[-1], dpi=110)
    return paths


def _panel(panel: Any, cells: Cells, name: str, n: int) -> None:
    for method in ORDER:
        found = [(e, cell) for e in EPSILONS if (cell := cells.find(name, n, e, method)) is not None]
        if not found or all(cell.rmse == 0 for _, cell in found):
            continue
        where, mean = [e for e, _ in found], [cell.rmse for _, cell in found]
        error = [0.0 if math.isnan(cell.rmse_error) else cell.rmse_error for _, cell in found]
        panel.errorbar(where, mean, error, lw=1.3, ms=3, capsize=2, label=TITLES[method], **LINES[method])
    panel.set(xscale="log", yscale="log")
    panel.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    panel.minorticks_off()
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
