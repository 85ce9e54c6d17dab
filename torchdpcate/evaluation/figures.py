"""The figures of one run: effect against one covariate or the coefficients of a rule, for reader and curator."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = "noise band of the second stage alone (no confidence interval)"
"""What the band of released effects holds: neither the noise of the nuisances nor sampling."""
INTERVAL = "confidence interval of the effect's best linear projection, all noise and sampling"
"""What the interval of a composed effect holds."""
NOT_FOR_PUBLICATION = "curator's, not for publication"
"""What every figure says that shows more than releases do."""
CURATOR_ONLY = f"{NOT_FOR_PUBLICATION}: shows non-private curves"
REFERENCES: dict[str, dict[str, Any]] = {
    "truth": {"color": "black", "ls": "--", "lw": 1.5},
    "non-private": {"color": "0.45", "ls": "-", "lw": 1.5},
    "head without noise": {"color": "C1", "ls": "-", "lw": 1.5},
    "plug-in": {"color": "C2", "ls": ":", "lw": 1.5},
}
"""How curves that are no release's are drawn, by name."""
_MOST_BARS = 30
_LETTERS = 110  # of a line below a figure


def effect_figure(
    grid: np.ndarray,
    released: np.ndarray,
    band: np.ndarray | None,
    *,
    covariate: str,
    others: Mapping[str, np.ndarray] | None = None,
    level: float = 0.95,
    claim: str = "",
    holds: str = BAND,
    place: str = "mid-range",
    holds_if: str = "",
) -> "Figure":
    """Draw effects against one covariate: a curve, or points with bars where it has two levels.

    Args:
        grid: Values of the covariate, [m].
        released: Released effects, [m].
        band: Noise band of the second stage or interval [m, 2], or None where there is neither.
        covariate: Name of the covariate.
        others: Further curves by name, such as the truth or the non-private effect; the figure then says
            that it is for the curator alone.
        level: Probability of the band.
        claim: Guarantee, printed under the title.
        holds: What the band holds, ``BAND`` or ``INTERVAL``.
        place: Where the other covariates are.
        holds_if: What intervals rest on, printed below.

    Returns:
        A matplotlib figure; the caller saves it.
    """
    figure, axes = new_figure()
    points = len(grid) == 2
    axes.plot(grid, released, color="C0", lw=2, label="released", marker="o", ls="" if points else "-", ms=6 * points)
    label = f"{level:.0%} {holds}"
    if band is not None and points:
        axes.vlines(grid, band[:, 0], band[:, 1], color="C0", alpha=0.5, lw=2, label=label)
    elif band is not None:
        axes.fill_between(grid, band[:, 0], band[:, 1], color="C0", alpha=0.15, lw=0, label=label)
    for name, values in (others or {}).items():
        style = REFERENCES.get(name, {"color": "C3"}) | ({"ls": "", "marker": "x"} if points else {})
        axes.plot(grid, values, label=name, **style)
    if points:
        axes.set_xticks(list(grid))
        axes.margins(x=0.5)
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    below = textwrap.wrap(f"intervals hold it if {holds_if}", _LETTERS) if holds_if else []
    axes.set_xlabel(f"{covariate} (other covariates at {place})", parse_math=False)
    if below:
        figure.supxlabel("\n".join(below), fontsize=7)
    axes.set_ylabel("treatment effect")
    axes.set_title("\n".join(filter(None, [claim, CURATOR_ONLY if others else ""])), fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return figure


def rule_figure(names: Sequence[str], coefficients: np.ndarray, *, claim: str = "") -> "Figure":
    """Draw the coefficients of a linear rule, the largest ones if there are many.

    Args:
        names: Names of the features.
        coefficients: Released coefficients of features of one scale, [p].
        claim: Guarantee, printed above.

    Returns:
        A matplotlib figure; the caller saves it.
    """
    largest = np.argsort(-np.abs(coefficients), kind="stable")[:_MOST_BARS]
    shown = np.sort(largest)[::-1]  # matplotlib counts from below
    figure, panels = new_grid(1, 1, (6.0, 1.0 + 0.28 * len(shown)))
    axes, values = panels[0], coefficients[shown]
    axes.barh(range(len(shown)), values, color=np.where(values > 0, "C0", "C1"), height=0.7)
    axes.axvline(0, color="0.5", lw=0.8)
    axes.set_yticks(range(len(shown)), [names[i] for i in shown], parse_math=False, fontsize=8)
    axes.margins(y=0.02)
    left_out = f"; {len(names) - len(shown)} smaller ones not shown" if len(names) > len(shown) else ""
    axes.set_xlabel(f"coefficient of the covariate scaled to [-1, 1]{left_out}", fontsize=9)
    axes.set_title("\n".join(filter(None, [claim, "treat where the sum is positive"])), fontsize=9)
    return figure


def save_figure(figure: "Figure", path: Path, mode: int | None = None) -> None:
    """Write a figure as PNG, atomically; ``mode`` are its permissions, None for those of any new file."""
    from torchdpcate._files import atomic_path

    with atomic_path(path, mode) as temporary:
        figure.savefig(temporary, dpi=150, bbox_inches="tight", format="png")


def new_figure() -> tuple["Figure", "Axes"]:
    """Return a figure with one pair of axes."""
    figure, grid = new_grid(1, 1, (6.0, 3.8))
    return figure, grid[0]


def new_grid(rows: int, columns: int, size: tuple[float, float], **settings: Any) -> tuple["Figure", list["Axes"]]:
    """Return a figure of this size in inches with its panels, row by row.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        size: Width and height.
        settings: Of matplotlib's ``Figure.subplots``.
    """
    # The object interface needs no display and leaves pyplot's global state alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **settings).flatten().tolist()
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels
