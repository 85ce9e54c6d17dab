"""Figures: mean squared error against the number of records, and coverage against epsilon."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.average_effects.designs import CONFOUNDED
from experiments.average_effects.pages import CONFOUNDED_CSV
from experiments.average_effects.runs import EPSILONS, FREE
from experiments.average_effects.summaries import Cells

SHOWN = {
    "literal": ("the paper's, as printed (not private)", "C3", "--", "s"),
    "literal, note's interval": ("the same, variance with less noise", "C1", "--", "s"),
    "certified": ("covariate balancing (certified)", "C0", "-", "o"),
    "LGPR": ("LGPR", "C2", "-", "^"),
    "GR": ("GR", "C5", "-", "v"),
    "difference in means": ("difference in means", "0.45", "-", "x"),
    "no privacy, balanced": ("balanced weights, no privacy", "black", ":", ""),
}


def row_of(name: str) -> str:
    """The row that a line shows: certified ones at the printed mechanism's clip."""
    return f"{name}, eta = {CONFOUNDED.literal_eta:g}" if name.startswith("certified") else name


def draw_mse(folder: Path) -> None:
    """Mean squared error against N, from the csv file."""
    drawing = Figure(figsize=(10.5, 4.4), layout="constrained")
    panels = drawing.subplots(1, len(EPSILONS), sharex=True, sharey=True)
    cells = Cells.read(folder / CONFOUNDED_CSV)
    for panel, epsilon in zip(panels, EPSILONS, strict=True):
        for row, (label, colour, dash, mark) in SHOWN.items():
            if row == "literal, note's interval":
                continue
            words = FREE if row.startswith("no privacy") else f"{epsilon:g}"
            found = [cell for n in cells.sizes if (cell := cells.find(n, row_of(row), words)) is not None]
            style: dict[str, Any] = {"color": colour, "ls": dash, "marker": mark, "ms": 4, "lw": 1.5}
            panel.plot([cell.n for cell in found], [cell.mse for cell in found], label=label, **style)
        panel.set(title=f"epsilon = {epsilon:g}", xscale="log", yscale="log", xlabel="records N")
        panel.grid(alpha=0.3, which="major")
        panel.set_xticks(cells.sizes, [f"{n:,}" for n in cells.sizes])
        panel.minorticks_off()
    panels[0].set_ylabel("mean squared error")
    _legend(drawing, panels[0])
    drawing.savefig(folder / "mse.png", dpi=130)


def draw_coverage(folder: Path) -> None:
    """Coverage and length of 95 % intervals at the smallest size, from the csv file."""
    drawing = Figure(figsize=(10.5, 4.4), layout="constrained")
    left, right = drawing.subplots(1, 2, sharex=True)
    cells = Cells.read(folder / CONFOUNDED_CSV)
    n, at = cells.sizes[0], np.arange(len(EPSILONS))
    shown = [row for row in SHOWN if not row.startswith("no privacy") and row != "LGPR"]
    for place, row in enumerate(shown):
        label, colour, _, mark = SHOWN[row]
        found = [cells.get(n, row_of(row), epsilon) for epsilon in EPSILONS]
        where = at + (place - len(shown) / 2 + 0.5) * 0.11
        style: dict[str, Any] = {"color": colour, "ls": "", "marker": mark, "ms": 5, "label": label}
        covered = np.array([cell.coverage for cell in found])
        bars = 1.96 * np.sqrt(covered * (1 - covered) / [cell.repeats for cell in found])
        left.errorbar(where, covered, bars, lw=1, **style)
        right.plot(where, [cell.length for cell in found], **style)
    left.axhspan(0.93, 1.0, color="C2", alpha=0.1, lw=0)
    left.axhline(0.95, color="black", ls=":", lw=1)
    left.set(ylim=(0, 1.03), ylabel="share of 95 % intervals that hold the truth")
    right.set(yscale="log", ylabel="mean length")
    right.set_yticks([0.05, 0.1, 0.2, 0.5, 1.0], ["0.05", "0.1", "0.2", "0.5", "1"])
    right.minorticks_off()
    for panel in (left, right):
        panel.set_xticks(at, [f"{epsilon:g}" for epsilon in EPSILONS])
        panel.set(xlabel="epsilon in all", title=f"N = {n:,}")
        panel.grid(axis="y", alpha=0.3)
    _legend(drawing, left)
    drawing.savefig(folder / "coverage.png", dpi=130)


def _legend(drawing: Figure, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    style: dict[str, Any] = {"ncols": 4, "frameon": False, "fontsize": 8.5}
    drawing.legend(list(entries.values()), list(entries), loc="outside lower center", **style)
