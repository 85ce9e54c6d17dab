"""The figure that most studies need: a metric against epsilon, a panel for each law or size."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.frame.study import NO_PRIVACY
from experiments.frame.table import Row, Summary

MOST_TICKS = 7


def draw_lines(
    path: Path,
    rows: Sequence[Row],
    found: Sequence[Summary],
    panel: Callable[[Summary | Row], str | None],
    line: Callable[[Summary], str | None],
    axis: str,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Draw means against epsilon with bars of two standard errors, and what is published as crosses.

    Args:
        path: Of the png.
        rows: Whose published numbers are drawn.
        found: What is drawn as lines; without privacy, as a horizontal line.
        panel: Title of the panel that something belongs to; None leaves it out.
        line: Label of the line that a finding belongs to; None leaves it out.
        axis: Label of the values.
        labels: Other words for labels of the legend.
    """
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(title for one in found if line(one) is not None and (title := panel(one)) is not None))
    if not titles:
        return
    legend = list(dict.fromkeys(label for one in found if panel(one) and (label := line(one)) is not None))
    across = min(3, len(titles)) if len(titles) != 4 else 2
    down = -(-len(titles) // across)
    drawing = Figure(figsize=(3.8 * across, 3.1 * down + 1.0), layout="constrained")
    panels = list(drawing.subplots(down, across, sharey=True, squeeze=False).flat)
    for place, title in zip(panels, titles, strict=False):
        for k, label in enumerate(legend):
            points = [one for one in found if panel(one) == title and line(one) == label]
            private = sorted((float(one.place.epsilon), one) for one in points if one.place.epsilon != NO_PRIVACY)
            style = {"color": f"C{k % 10}", "label": (labels or {}).get(label, label)}
            if private:
                spread = [0.0 if math.isnan(one.error) else 2 * one.error for _, one in private]
                budgets, means = [epsilon for epsilon, _ in private], [one.mean for _, one in private]
                place.errorbar(budgets, means, spread, marker="o", markersize=3, linewidth=1.2, **style)
            elif points:
                place.axhline(points[0].mean, linestyle="--", linewidth=1, **style)
        marks = [row for row in rows if panel(row) == title and row.published is not None]
        marks = [row for row in marks if _is_number(row.place.epsilon) and row.place.epsilon != NO_PRIVACY]
        if marks:
            values = [row.published.value for row in marks if row.published is not None]
            place.plot([float(row.place.epsilon) for row in marks], values, "kx", markersize=5, label="published")
        place.set(title=title, xlabel="epsilon", xscale="log")
        drawn = sorted({float(one.place.epsilon) for one in found if panel(one) == title and line(one) is not None})
        drawn = [epsilon for epsilon in drawn if math.isfinite(epsilon)]
        if 0 < len(drawn) <= MOST_TICKS:  # a logarithmic axis of its own labels them over each other
            place.set_xticks(drawn, [f"{epsilon:g}" for epsilon in drawn])
            place.minorticks_off()
        place.grid(alpha=0.3)
    for place in panels[len(titles) :]:
        place.remove()
    drawing.supylabel(f"{axis} (bars: two standard errors)")
    named = {}
    for place in panels[: len(titles)]:
        handles, names = place.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    drawing.legend(named.values(), named.keys(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    drawing.savefig(path, dpi=110)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
