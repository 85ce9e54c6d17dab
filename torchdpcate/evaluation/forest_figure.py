"""The forest plot of effects in subgroups: one line a cell, those of a partition together."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.errors import InputError
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, finish, one_panel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURATOR_ONLY = f"{NOT_FOR_PUBLICATION}: shows numbers without noise"
_MOST_CELLS = 60
_LETTERS = 100  # of a line below the figure
_LARGEST, _LEAST = 9.0, 4.0  # sides of the squares, in points


def forest_figure(
    table: "pd.DataFrame",
    *,
    simultaneous: np.ndarray | None = None,
    nonprivate: Sequence[float] | None = None,
    truth: Sequence[float] | None = None,
    dominated: Sequence[bool] | None = None,
    level: float = 0.95,
    outcome: str = "the outcome",
    claim: str = "",
    assumptions: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw the effects of subgroups with their intervals, one cell below the other.

    Thick lines are pointwise intervals, thin ones hold all effects at once. The area of a square grows with the number
    of records, by the released counts.

    Args:
        table: One row a cell: ``cell``, ``estimate``, ``low``, ``high``, ``records``, ``partition``.
        simultaneous: Ends of simultaneous intervals [cells, 2]; None draws none.
        nonprivate: Effects without noise [cells], drawn hollow; the figure then says that it is for the curator.
        truth: True effects [cells], where they are known; they are the curator's too.
        dominated: Whether noise dominates a cell [cells], whose interval is the full range: drawn dotted, beyond the
            axis where others end before it; None for none.
        level: Probability of the intervals.
        outcome: Name of the outcome.
        claim: Guarantee, printed above.
        assumptions: What the intervals rest on, printed below.
        ax: Axes to draw on; None makes a figure.

    Returns:
        A matplotlib figure; the caller saves it.

    Raises:
        InputError: No cells.
    """
    if not len(table):
        raise InputError("table: give at least one cell")
    shown = table.head(_MOST_CELLS)
    places, headings = _places(shown["partition"].tolist())
    below = textwrap.wrap(f"they hold the effects if {assumptions}", _LETTERS) if assumptions else []
    left_out = len(table) - len(shown)
    lines = len(shown) + len(headings)
    figure, axes = one_panel(ax, (7.4, 1.5 + 0.3 * lines + 0.17 * len(below)))
    axes.axvline(0, color="0.6", lw=0.8, zorder=0)
    noise_alone = np.zeros(len(shown), bool) if dominated is None else np.asarray(dominated)[: len(shown)]
    wide = shown[["low", "high"]].to_numpy() if simultaneous is None else np.asarray(simultaneous)[: len(shown)]
    _draw_intervals(axes, shown, np.asarray(places), wide, noise_alone, level, simultaneous is not None)
    _draw_others(axes, places, len(shown), nonprivate, truth)
    _write_numbers(axes, shown, places, noise_alone)
    ticks = [*places, *(place for place, _ in headings)]
    names = [*shown["cell"], *(name for _, name in headings)]
    axes.set_yticks(ticks, names, parse_math=False, fontsize=8)
    for label, place in zip(axes.get_yticklabels(), ticks, strict=True):
        label.set_fontweight("bold" if place in dict(headings) else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(lines - 0.4, -0.7)
    axes.locator_params(axis="x", nbins=6)
    more = [f"{left_out} further cells are not shown"] if left_out else []
    axes.set_xlabel("\n".join([f"effect on {outcome}, with {level:.0%} intervals", *more, *below]), fontsize=8)
    secret = nonprivate is not None or truth is not None
    axes.set_title("\n".join(filter(None, [claim, CURATOR_ONLY if secret else ""])), fontsize=9, parse_math=False)
    finish(axes, ax is None, columns=4)
    return figure


def _draw_intervals(
    axes: "Axes",
    table: "pd.DataFrame",
    places: np.ndarray,
    wide: np.ndarray,
    noise_alone: np.ndarray,
    level: float,
    both: bool,
) -> None:
    """Draw estimates and intervals; those of cells that noise dominates are dotted, and do not stretch the axis."""
    low, high, estimate = (table[name].to_numpy() for name in ("low", "high", "estimate"))
    known = ~noise_alone
    if both and known.any():
        label = f"{level:.0%}, all cells at once"
        axes.hlines(places[known], *wide[known].T, color="C0", lw=0.9, label=label)
    if known.any():
        axes.hlines(places[known], low[known], high[known], color="C0", lw=2.8, label=f"{level:.0%}, each cell")
        least, most = wide[known, 0].min(), wide[known, 1].max()
        margin = 0.06 * max(most - least, 1e-12)
        axes.set_xlim(min(least, 0.0) - margin, max(most, 0.0) + margin)
    if noise_alone.any():
        ends = low[noise_alone], high[noise_alone]
        axes.hlines(places[noise_alone], *ends, color="0.6", lw=1.2, ls=":", label="full range: noise dominates")
    sizes = _sizes(table["records"].to_numpy())
    axes.scatter(estimate[known], places[known], s=sizes[known] ** 2, marker="s", color="C0", zorder=3)


def _places(partitions: Sequence[str]) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the line of each cell, and the lines of the partitions' names; of one partition its name is left out."""
    places: list[int] = []
    headings: list[tuple[int, str]] = []
    several, line, last = len(set(partitions)) > 1, 0, None
    for name in partitions:
        if several and name != last:
            headings.append((line, name))
            line += 1
        places.append(line)
        line, last = line + 1, name
    return places, headings


def _sizes(records: np.ndarray) -> np.ndarray:
    share = np.sqrt(np.clip(records, 0, None) / max(float(records.max()), 1.0))
    return _LEAST + (_LARGEST - _LEAST) * share


def _draw_others(
    axes: "Axes", places: list[int], count: int, nonprivate: Sequence[float] | None, truth: Sequence[float] | None
) -> None:
    """Draw what only the curator sees."""
    if nonprivate is not None:
        axes.scatter(
            list(nonprivate)[:count], places, marker="o", s=36, fc="none", ec="0.35", zorder=4, label="no noise"
        )
    if truth is not None:
        axes.scatter(list(truth)[:count], places, marker="|", s=120, color="black", zorder=4, label="truth")


def _write_numbers(axes: "Axes", table: "pd.DataFrame", places: list[int], noise_alone: np.ndarray) -> None:
    """Write estimate and interval at the right of each line."""
    rows = zip(places, table["estimate"], table["low"], table["high"], noise_alone, strict=True)
    for place, estimate, low, high, nothing in rows:
        text = "not known" if nothing else f"{_short(estimate)} [{_short(low)}, {_short(high)}]"
        axes.annotate(
            text, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=7.5, annotation_clip=False
        )


def _short(value: float) -> str:
    """Write a number with three digits, and thousands as they are."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
