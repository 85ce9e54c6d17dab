"""Error against the number of records: a row of panels for each design, a panel for each budget."""

from collections.abc import Sequence
from pathlib import Path

from experiments.frame.table import Row, Summary
from experiments.niu.methods import BEST, CONSTANT, DEFAULT, LEARNERS, NO_BUDGET, private

EPSILONS = ("1", "4", "16")
STYLES = {
    DEFAULT: {"color": "C0", "marker": "o", "linewidth": 1.8},
    CONSTANT: {"color": "C0", "marker": "s", "linewidth": 1.0, "alpha": 0.6},
    NO_BUDGET: {"color": "0.4", "linestyle": ":", "linewidth": 1.5},
    BEST: {"color": "black", "linestyle": "--", "linewidth": 1.0},
}
COLORS = dict(zip(LEARNERS, ("C1", "C2", "C3"), strict=True))


def draw(path: Path, rows: Sequence[Row], found: Sequence[Summary]) -> None:
    """Draw ours, DP-EBM with public bounds, the published learners and the best constant.

    Args:
        path: Of the png.
        rows: Whose published numbers are drawn.
        found: What was found.
    """
    designs = sorted({one.place.setting for one in found})
    epsilons = [one for one in EPSILONS if any(other.place.epsilon == one for other in found)]
    if not designs or not epsilons:
        return
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(max(9.0, 3.4 * len(epsilons)), 2.5 * len(designs) + 1.0), layout="constrained")
    panels = drawing.subplots(len(designs), len(epsilons), sharex=True, sharey="row", squeeze=False)
    for line, design in zip(panels, designs, strict=True):
        for panel, epsilon in zip(line, epsilons, strict=True):
            for label, (points, style) in _lines(design, epsilon, rows, found).items():
                panel.plot(*zip(*sorted(points), strict=True), label=label, markersize=3, **style)
            panel.set_title(f"design {design}, epsilon = {epsilon}", fontsize=9)
            panel.set(xscale="log", yscale="log")
            panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("records")
    drawing.supylabel("mean squared error of the effect")
    named = {}
    for panel in panels.flat:
        handles, names = panel.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    drawing.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    drawing.savefig(path, dpi=100)


Line = tuple[list[tuple[int, float]], dict[str, object]]
"""Points (records, error), and how they are drawn."""


def _lines(design: str, epsilon: str, rows: Sequence[Row], found: Sequence[Summary]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    here = [one for one in found if one.place.table == private(design) and one.mean > 0]
    for label, style in STYLES.items():
        budget = "inf" if label in (NO_BUDGET, BEST) else epsilon
        points = [one for one in here if one.method == label and one.place.epsilon == budget]
        if points:
            lines[label] = [(int(one.place.n), one.mean) for one in points], style
    for learner, color in COLORS.items():
        points = [one for one in here if one.place.variant == learner and one.place.epsilon == epsilon]
        if points:
            style = {"color": color, "linestyle": "-", "linewidth": 1.0, "alpha": 0.6}
            lines[f"{learner} of DP-EBM, public bounds"] = [(int(one.place.n), one.mean) for one in points], style
        own = [row for row in rows if row.place.table == private(design) and row.place.variant == learner]
        printed = [
            (int(row.place.n), row.published.value)
            for row in own
            if row.published is not None and row.place.epsilon == epsilon
        ]
        if printed:
            lines[f"{learner} of DP-EBM, published"] = printed, {"color": color, "linestyle": "--", "marker": "x"}
    return lines
