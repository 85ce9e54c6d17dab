"""Figures: mean squared error against the number of records, and coverage against epsilon."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.average_effects.cells import Cells
from experiments.average_effects.designs import DESIGNS
from experiments.average_effects.pages import file_of
from experiments.average_effects.runs import EPSILONS, FREE

SHOWN = {
    "literal": ("the paper's, as printed (not private)", "C3", "--", "s"),
    "literal, note's interval": ("the same, variance with less noise", "C1", "--", "s"),
    "certified": ("covariate balancing (certified)", "C0", "-", "o"),
    "certified, outcome table": ("its outcome table (certified)", "C9", "-", "o"),
    "LGPR": ("LGPR", "C2", "-", "^"),
    "GR": ("GR", "C5", "-", "v"),
    "AIPW": ("doubly robust", "C4", "-", "D"),
    "difference in means": ("difference in means", "0.45", "-", "x"),
    "no privacy, balanced": ("balanced weights, no privacy", "black", ":", ""),
}
PUBLISHED = ("published", "C3", "", "*")


def row_of(design: str, name: str) -> str:
    """The row of a design that a line shows: certified ones at the printed mechanism's clip."""
    return f"{name}, eta = {DESIGNS[design].literal_eta:g}" if name.startswith("certified") else name


def draw_mse(folder: Path) -> None:
    """Mean squared error against N, a row of panels for each design, from the csv files."""
    drawing = Figure(figsize=(10.5, 10.0), layout="constrained")
    panels = drawing.subplots(len(DESIGNS), len(EPSILONS), sharex=True, sharey=True)
    for line, (name, design) in zip(panels, DESIGNS.items(), strict=True):
        cells = Cells.read(folder / file_of(name))
        for panel, epsilon in zip(line, EPSILONS, strict=True):
            for row, (label, colour, dash, mark) in SHOWN.items():
                if row == "literal, note's interval":
                    continue
                key = row_of(name, row)
                words = FREE if row.startswith("no privacy") else f"{epsilon:g}"
                found = [cell for n in cells.sizes if (cell := cells.find(n, key, words)) is not None]
                style: dict[str, Any] = {"color": colour, "ls": dash, "marker": mark, "ms": 4, "lw": 1.5}
                panel.plot([cell.n for cell in found], [cell.mse for cell in found], label=label, **style)
            panel.set(title=f"{design.title}, eps = {epsilon:g}", xscale="log", yscale="log")
            panel.title.set_fontsize(9)
            panel.grid(alpha=0.3, which="major")
            panel.set_xticks(cells.sizes, [f"{n:,}" for n in cells.sizes])
            panel.minorticks_off()
        line[0].set_ylabel("mean squared error")
    for panel in panels[-1]:
        panel.set_xlabel("records N")
    _legend(drawing, panels[0][0])
    drawing.savefig(folder / "mse.png", dpi=130)


def draw_coverage(folder: Path) -> None:
    """Coverage and length of 95 % intervals at the smallest size, from the csv files."""
    drawing = Figure(figsize=(10.5, 6.6), layout="constrained")
    panels = drawing.subplots(2, len(DESIGNS), sharex=True, sharey="row")
    for (upper, lower), (name, design) in zip(panels.T, DESIGNS.items(), strict=True):
        cells = Cells.read(folder / file_of(name))
        n, at = cells.sizes[0], np.arange(len(EPSILONS))
        shown = [row for row in SHOWN if not row.startswith("no privacy") and row != "LGPR"]
        for place, row in enumerate(shown):
            label, colour, _, mark = SHOWN[row]
            found = [cells.get(n, row_of(name, row), epsilon) for epsilon in EPSILONS]
            where = at + (place - len(shown) / 2 + 0.5) * 0.11
            style: dict[str, Any] = {"color": colour, "ls": "", "marker": mark, "ms": 5, "label": label}
            covered = np.array([cell.coverage for cell in found])
            bars = 1.96 * np.sqrt(covered * (1 - covered) / [cell.repeats for cell in found])
            upper.errorbar(where, covered, bars, lw=1, **style)
            lower.plot(where, [cell.length for cell in found], **style)
        upper.axhspan(0.93, 1.0, color="C2", alpha=0.1, lw=0)
        upper.axhline(0.95, color="black", ls=":", lw=1)
        upper.set(title=f"{design.title}, N = {n:,}", ylim=(0, 1.03))
        upper.title.set_fontsize(9)
        lower.set(yscale="log", xlabel="epsilon in all")
        lower.set_yticks([0.05, 0.1, 0.2, 0.5, 1.0], ["0.05", "0.1", "0.2", "0.5", "1"])
        lower.minorticks_off()
        lower.set_xticks(at, [f"{epsilon:g}" for epsilon in EPSILONS])
        for panel in (upper, lower):
            panel.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel("share of 95 % intervals\nthat hold the truth")
    panels[1][0].set_ylabel("mean length")
    _legend(drawing, panels[0][0])
    drawing.savefig(folder / "coverage.png", dpi=130)


def _legend(drawing: Figure, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    style: dict[str, Any] = {"ncols": 4, "frameon": False, "fontsize": 8.5}
    drawing.legend(list(entries.values()), list(entries), loc="outside lower center", **style)
