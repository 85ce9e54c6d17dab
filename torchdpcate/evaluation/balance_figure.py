"""The figures of average effects and of subgroups: balance of the arms, estimates with their intervals."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate._text import shortened
from torchdpcate.errors import InputError
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, legend_below, one_panel, row_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchdpcate.release.average_effect import BalanceTable

CURATOR_ONLY = f"{NOT_FOR_PUBLICATION}: shows numbers without noise"
_MOST_FEATURES = 40
_TWO_SIDED = 1.96
_LARGEST_BALANCED = 0.1  # the usual mark for a difference that is small
_POINTS = {"before": ("C1", "o", -0.14), "after": ("C0", "D", 0.14)}
"""Colour, marker and place beside its row's line of either column."""


def balance_figure(
    table: "BalanceTable | None",
    *,
    nonprivate: "BalanceTable | None" = None,
    claim: str = "",
) -> "Figure":
    """Draw how far treated and controls differ in every feature, before and after weighting (a love plot).

    Points are released statistics with bars of 1.96 deviations of their noise; the band is what the fit is expected to
    leave after weighting, by public facts and released numbers alone. Rows are sorted by the largest difference, and
    if there are many the largest are shown.

    Args:
        table: From a release; None where it has none.
        nonprivate: The same without noise, drawn as hollow points; the figure then says that it is for the curator.
        claim: Guarantee, printed above.

    Returns:
        A matplotlib figure; the caller saves it.

    Raises:
        InputError: A table without numbers, or two tables of other features.
    """
    tables = [one for one in (table, nonprivate) if one is not None and one.columns()]
    if not tables:
        raise InputError("table: it holds no numbers; fit with loss=balancing")
    if len({tuple(one.names) for one in tables}) > 1:
        raise InputError("nonprivate: its features are not those of the table")
    shown, every = _largest(tables[0]), tables[0].names
    rows = np.arange(len(shown))
    figure, axes = one_panel((6.4, 1.5 + 0.3 * len(shown)))
    axes.axvline(0, color="0.5", lw=0.8, zorder=0)
    for mark in (-_LARGEST_BALANCED, _LARGEST_BALANCED):
        axes.axvline(mark, color="0.75", lw=0.8, ls=":", zorder=0)
    if table is not None:
        _draw_expected(axes, table, shown)
    for column, (colour, marker, place) in _POINTS.items():
        for source, size, fill, secret in ((table, 4, colour, ""), (nonprivate, 6, "none", ", without noise")):
            values = getattr(source, column, None)
            style: dict[str, Any] = {"color": colour, "mfc": fill, "ms": size, "lw": 1.2}
            if values is not None:
                own = np.asarray(values)[shown]
                axes.errorbar(own, rows + place, fmt=marker, label=f"{column} weighting{secret}", **style)
    row_names(axes, rows, [every[i] for i in shown])
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    left_out = f"; {len(every) - len(shown)} smaller ones not shown" if len(every) > len(shown) else ""
    axes.set_xlabel(f"mean of the treated minus mean of the controls, in {tables[0].unit}{left_out}", fontsize=9)
    axes.set_title("\n".join(filter(None, [claim, CURATOR_ONLY if nonprivate is not None else ""])), fontsize=9)
    legend_below(axes)
    return figure


def _largest(table: "BalanceTable") -> list[int]:
    """Return the rows that are shown, the largest difference first."""
    by = next(column for name in ("before", "after", "expected") if (column := getattr(table, name)) is not None)
    return np.argsort(-np.abs(np.asarray(by)), kind="stable")[:_MOST_FEATURES].tolist()


def _draw_expected(axes: "Axes", table: "BalanceTable", shown: list[int]) -> None:
    """Draw the band of what is expected after weighting, row by row."""
    if table.expected is None:
        return
    deviation = [0.0] * len(table.names) if table.expected_sd is None else table.expected_sd
    for place, i in enumerate(shown):
        low, high = (table.expected[i] + side * _TWO_SIDED * deviation[i] for side in (-1, 1))
        label = "expected after weighting, from public facts" if place == 0 else None
        axes.fill_betweenx([place - 0.4, place + 0.4], low, high, color="C0", alpha=0.15, lw=0, label=label)


_MOST_LINES = 60
_THOUSANDS = 1_000
_SIDE = 34  # letters of what a side speaks for
_BESIDE = 36  # letters of both sides that fit into a line above narrow axes
_WIDE = 100  # of a line below the figure
_LARGEST, _LEAST = 9.0, 4.0  # sides of the squares, in points


def forest_figure(
    table: "pd.DataFrame",
    *,
    texts: Sequence[str] = (),
    simultaneous: np.ndarray | None = None,
    nonprivate: Sequence[float] | None = None,
    truth: Sequence[float] | None = None,
    dominated: Sequence[bool] | None = None,
    pooled: Sequence[bool] | None = None,
    level: float = 0.95,
    label: str = "effect on the outcome",
    speaks: Sequence[str] = (),
    bands: str = "",
    claim: str = "",
    assumptions: str = "",
) -> "Figure":
    """Draw estimates with their intervals, one line below the other (a forest plot).

    Thick lines are pointwise intervals, thin ones hold all effects at once. The area of a square grows with the number
    of records, by the released counts.

    Args:
        table: One row a line: ``line``, ``estimate``, ``low``, ``high``, ``records``, ``group``.
        texts: What is written at the right of each line.
        simultaneous: Ends of simultaneous intervals [lines, 2]; None draws none.
        nonprivate: Effects without noise [lines], drawn hollow; the figure then says that it is for the curator.
        truth: True effects [lines], where they are known; they are the curator's too.
        dominated: Whether noise dominates a line [lines], whose interval is the full range: drawn dotted, beyond the
            axis where others end before it; None for none.
        pooled: Whether a line is the mean of those above it, drawn as a diamond; None for none.
        level: Probability of the intervals.
        label: Of the axis.
        speaks: Which arms effects below zero, and above it, speak for; empty where that is not known.
        bands: What bars hold that are no intervals; empty of intervals.
        claim: Guarantee, printed above.
        assumptions: What the intervals rest on, printed below.

    Returns:
        A matplotlib figure; the caller saves it.

    Raises:
        InputError: No lines.
    """
    if not len(table):
        raise InputError("table: give at least one line")
    shown = table.head(_MOST_LINES)
    places, headings = _places(shown["group"].tolist(), shown["line"].tolist())
    below = textwrap.wrap(f"they hold the effects if {assumptions}", _WIDE) if assumptions else []
    left_out = len(table) - len(shown)
    lines = len(shown) + len(headings)
    figure, axes = one_panel((7.4, 1.5 + 0.3 * lines + 0.17 * len(below)))
    axes.axvline(0, color="0.6", lw=0.8, zorder=0)
    noise_alone = np.zeros(len(shown), bool) if dominated is None else np.asarray(dominated)[: len(shown)]
    wide = shown[["low", "high"]].to_numpy() if simultaneous is None else np.asarray(simultaneous)[: len(shown)]
    each = bands or f"{level:.0%} interval{', of each line by itself' if simultaneous is not None else ''}"
    at_once = f"{level:.0%} interval of all lines at once" if simultaneous is not None else ""
    _draw_intervals(axes, shown, np.asarray(places), wide, noise_alone, each, at_once)
    _draw_others(axes, places, len(shown), nonprivate, truth)
    for place, estimate, mean in zip(places, shown["estimate"], pooled or (), strict=False):
        if mean:  # over its square
            axes.scatter([estimate], [place], marker="D", s=150, color="white", zorder=4)
            axes.scatter([estimate], [place], marker="D", s=80, color="C0", zorder=4)
    style: dict[str, Any] = {"va": "center", "fontsize": 7.5, "annotation_clip": False}
    for place, text in zip(places, texts, strict=False):
        axes.annotate(text, (1.02, place), xycoords=("axes fraction", "data"), **style)
    ticks = [*places, *(place for place, _ in headings)]
    names = [*shown["line"], *(name for _, name in headings)]
    row_names(axes, ticks, names)
    for tick, place in zip(axes.get_yticklabels(), ticks, strict=True):
        tick.set_fontweight("bold" if place in dict(headings) else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(lines - 0.4, -0.7)
    axes.locator_params(axis="x", nbins=6)
    if max(map(abs, axes.get_xlim())) >= _THOUSANDS:
        axes.xaxis.set_major_formatter("{x:,.10g}")
    more = [f"{left_out} further lines are not shown"] if left_out else []
    axes.set_xlabel("\n".join([*textwrap.wrap(label, _WIDE), *more, *below]), fontsize=8)
    secret = nonprivate is not None or truth is not None
    title = "\n".join(filter(None, [claim, CURATOR_ONLY if secret else ""]))
    sides = [shortened(f"speaks for {words}", _SIDE) for words in speaks]
    above = 11 if sum(map(len, sides)) > _BESIDE else 0  # points of a line, which the second is above the first
    axes.set_title(title, fontsize=9, pad=18 + above if speaks else 6)
    for at, said in enumerate(sides):
        said = f"{said} \N{RIGHTWARDS ARROW}" if at else f"\N{LEFTWARDS ARROW} {said}"
        beside: dict[str, Any] = {"xytext": (0, 2 + at * above), "textcoords": "offset points", "va": "bottom"}
        axes.annotate(said, (at, 1), xycoords="axes fraction", ha="right" if at else "left", fontsize=8, **beside)
    if axes.get_legend_handles_labels()[0]:
        legend_below(axes, columns=1 if bands else 2)
    return figure


def _draw_intervals(
    axes: "Axes",
    table: "pd.DataFrame",
    places: np.ndarray,
    wide: np.ndarray,
    noise_alone: np.ndarray,
    each: str,
    at_once: str,
) -> None:
    """Draw estimates and intervals; those of cells that noise dominates are dotted, and do not stretch the axis."""
    low, high, estimate = (table[name].to_numpy() for name in ("low", "high", "estimate"))
    known = ~noise_alone
    if at_once and known.any():
        axes.hlines(places[known], *wide[known].T, color="C0", lw=0.9, label=at_once)
    if known.any():
        if np.isfinite(low[known]).any():
            axes.hlines(places[known], low[known], high[known], color="C0", lw=2.8, label=each)
        drawn = np.column_stack([wide[known], estimate[known]])
        least, most = np.nanmin(drawn), np.nanmax(drawn)
        margin = 0.06 * max(most - least, 1e-12)
        axes.set_xlim(min(least, 0.0) - margin, max(most, 0.0) + margin)
    if noise_alone.any():
        left, right = axes.get_xlim()
        full = (np.nan_to_num(ends[noise_alone], neginf=left, posinf=right) for ends in (low, high))
        axes.hlines(places[noise_alone], *full, color="0.45", lw=1.2, ls=":", label="full range: noise dominates")
    sizes = _sizes(np.nan_to_num(table["records"].to_numpy()))
    axes.scatter(estimate[known], places[known], s=sizes[known] ** 2, marker="s", color="C0", zorder=3)


def _places(groups: Sequence[str], titles: Sequence[str]) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the place of each line, and those of the groups' names; left out of one group, and above its own name."""
    places: list[int] = []
    headings: list[tuple[int, str]] = []
    several, line, last = len(set(groups)) > 1, 0, None
    for name, title in zip(groups, titles, strict=True):
        if several and name not in (last, title):
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
