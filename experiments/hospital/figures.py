"""Errors by family: a panel for each size and budget, a mark for each method."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.defaults.hospital_laws import FAMILIES
from experiments.frame.study import NO_PRIVACY
from experiments.frame.table import Summary
from experiments.hospital.groups import EFFECTS, GROUPS
from experiments.hospital.measured import ERROR

LABELS = {EFFECTS: "mean squared error over the effect's variance"}
OTHERS = "absolute error in sd of the outcome"
MOST = 100.0  # where larger errors are drawn


def draw_errors(path: Path, part: str, found: Sequence[Summary]) -> None:
    """Draw the errors of one part; those without privacy stand in the panels of all budgets, hollow.

    Errors above ``MOST`` are drawn at it.

    Args:
        path: Of the png.
        part: Effects or averages.
        found: All means.
    """
    own = [one for one in found if (one.place.table, one.place.metric) == (part, ERROR) and one.mean > 0]
    sizes = sorted({int(one.place.n) for one in own})
    budgets = sorted({one.place.epsilon for one in own} - {NO_PRIVACY}, key=float)
    families = [name for name in FAMILIES if any(one.place.setting == name for one in own)]
    methods = [name for group in GROUPS.values() if group.part == part for name in group.methods]
    if not sizes or not budgets:
        return
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(max(8.0, 5.5 * len(budgets)), 3.4 * len(sizes) + 1.0), layout="constrained")
    panels = drawing.subplots(len(sizes), len(budgets), sharex=True, sharey=True, squeeze=False)
    for line, n in zip(panels, sizes, strict=True):
        for panel, epsilon in zip(line, budgets, strict=True):
            for k, method in enumerate(methods):
                here = [one for one in own if one.method == method and int(one.place.n) == n]
                here = [one for one in here if one.place.epsilon in (epsilon, NO_PRIVACY)]
                if here:
                    free = here[0].place.epsilon == NO_PRIVACY
                    panel.errorbar(
                        [families.index(one.place.setting) + 0.08 * (k - len(methods) / 2) for one in here],
                        [min(one.mean, MOST) for one in here],
                        [0.0 if math.isnan(one.error) or one.mean > MOST else one.error for one in here],
                        fmt="o",
                        color=f"C{k}",
                        markersize=4,
                        markerfacecolor="white" if free else f"C{k}",
                        label=method,
                    )
            panel.set(title=f"n = {n:,}, epsilon = {epsilon}", yscale="log")
            panel.set_xticks(range(len(families)), families, rotation=30, ha="right")
            panel.grid(alpha=0.3)
    drawing.supylabel(LABELS.get(part, OTHERS), fontsize=9)
    named: dict[str, Any] = {}
    for panel in panels.flat:
        handles, names = panel.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    drawing.legend(list(named.values()), list(named), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    drawing.savefig(path, dpi=90)
