"""The figures of one run, for reader and curator: effects, answers at queries, decisions, coefficients of a rule."""

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate._text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = "noise band of the second stage alone (no confidence interval)"
"""What the band of released effects holds: neither the noise of the nuisances nor sampling."""
OF_REGRESSION = "noise and sampling of the effect's regression alone (no confidence interval)"
"""What the band of a composition's effect without intervals holds: its nuisances err too."""
INTERVAL = "confidence interval of the effect that the released function can follow, noise and sampling"
OF_AVERAGE = "confidence interval of the average effect, noise and sampling; a person's may differ"
"""What the interval of a composed effect holds."""
FEW = "few records: over two released spreads from the released mean"
"""What is shaded."""
NOT_FOR_PUBLICATION = "curator's, not for publication"
"""What every figure says that shows more than releases do."""
_MOST_BARS = 30
_SEEN = 0.02  # of an axis: less is not shaded
_TICKS = 5  # of a number, at most: long ones would touch
_LETTER, _LINE, _INCHES, _CUT = 0.1, 0.25, 0.85, 18  # inches of a letter and a line, share of axes, letters of a name
_AXIS, _ROW = 30, 70  # letters of a line beside an axis, and of the name of a row
_LETTERS, _NARROW = 110, 50  # of a line below a figure, and on axes beside others


@dataclass(frozen=True, eq=False)
class EffectPanel:
    """Effects against one covariate: a curve, or points with bars where it has levels.

    Attributes:
        covariate: Name of the covariate.
        grid: Its values, [m].
        released: Released effects, [m].
        band: Noise band of the second stage or interval [m, 2], or None where there is neither.
        levels: What the values are called, if they are levels.
        place: Where the other covariates are; empty where there are none.
        common: Values beyond which few records lie, by what is public; None where nothing is known of it.
        title: What the effect is of, where there are several; empty for one.
    """

    covariate: str
    grid: np.ndarray
    released: np.ndarray
    band: np.ndarray | None = None
    levels: Sequence[str] = ()
    place: str = "at mid-range"
    common: tuple[float, float] | None = None
    title: str = ""

    def draw(self, axes: "Axes", label: str) -> None:
        """Draw it; the band is called ``label``."""
        grid, band, points = self.grid, self.band, bool(self.levels)
        style = {"marker": "o", "ls": "", "ms": 6} if points else {"ls": "-"}
        axes.plot(grid, self.released, color="C0", lw=2, label="released", **style)
        if band is not None and points:
            axes.vlines(grid, band[:, 0], band[:, 1], color="C0", alpha=0.5, lw=2, label=label)
        elif band is not None:
            axes.fill_between(grid, band[:, 0], band[:, 1], color="C0", alpha=0.15, lw=0, label=label)
        _along(axes, grid, self.levels, self.covariate)
        if self.common is not None:
            few = FEW
            for low, high in ((grid[0], self.common[0]), (self.common[1], grid[-1])):
                if high - low > _SEEN * np.ptp(grid):
                    axes.axvspan(low, high, color="0.9", lw=0, zorder=-1, label=few)
                    few = "_"
        axes.axhline(0, color="0.7", lw=0.8, zorder=0)
        if self.title:
            axes.set_title(textwrap.fill(self.title, _NARROW), fontsize=8)


def _along(axes: "Axes", grid: np.ndarray, levels: Sequence[str], covariate: str) -> None:
    """Write on the axis of a covariate its levels, or some of its numbers, and its name."""
    if levels:
        level_ticks(axes, grid, levels)
        axes.set_xlim(grid[0] - 0.5, grid[-1] + 0.5)
    else:
        axes.locator_params(axis="x", nbins=_TICKS)
    axes.set_xlabel(textwrap.fill(covariate, _NARROW))


def effect_panels(
    panels: Sequence[EffectPanel],
    *,
    level: float = 0.95,
    claim: str = "",
    holds: str = BAND,
    assumptions: str = "",
    label: str = "treatment effect",
) -> "Figure":
    """Draw effects, a panel a covariate.

    Args:
        panels: What is drawn, from left to right.
        level: Probability of the bands.
        claim: Guarantee, printed above.
        holds: What the bands hold, ``BAND``, ``INTERVAL`` or ``OF_AVERAGE``.
        assumptions: What intervals rest on, printed below.
        label: Of the axis of effects.

    Returns:
        A matplotlib figure; the caller saves it.
    """
    figure, axes = new_grid(1, len(panels), (max(6.0, 0.8 + 3.2 * len(panels)), 4.2), sharey=True)
    for panel, own in zip(panels, axes, strict=True):
        panel.draw(own, f"{level:.0%} {holds}")
    axes[0].set_ylabel(textwrap.fill(label, _AXIS))
    wide = _LETTERS * max(1, len(panels) // 2)
    rests = textwrap.fill(f"intervals hold it if {assumptions}", wide) if assumptions else ""
    found = {label: handle for own in axes for handle, label in zip(*own.get_legend_handles_labels(), strict=True)}
    place = "\n".join(dict.fromkeys(f"(other covariates {panel.place})" for panel in panels if panel.place))
    if len(panels) == 1:
        axes[0].set_title(claim, fontsize=9)
        axes[0].set_xlabel(f"{panels[0].covariate} {place}".strip())
        if rests:
            figure.supxlabel(rests, fontsize=7)
        axes[0].legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    else:
        figure.suptitle(claim, fontsize=9)
        style: dict[str, Any] = {"fontsize": 8, "frameon": False, "loc": "outside lower center"}
        below = "\n".join(filter(None, [place, rests]))
        figure.legend(found.values(), found.keys(), title=below, title_fontsize=8, **style)
    return figure


def level_ticks(axes: "Axes", places: np.ndarray, levels: Sequence[str]) -> None:
    """Write the names of levels below an axis so that they do not overlap: turned and cut where they are long.

    Args:
        axes: Whose own width decides.
        places: Where the levels are, [k].
        levels: Their names; of more than fit every second or third is written.
    """
    room = _INCHES * figure_of(axes).get_figwidth() * axes.get_position().width / len(levels)
    longest = max(map(len, levels))
    if longest * _LETTER <= room:
        axes.set_xticks(list(places), levels)
        return
    step = math.ceil(_LINE / room)
    names = [shortened(name, _CUT) for name in levels]
    style: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor", "fontsize": 8}
    axes.set_xticks(list(places)[::step], names[::step], **style)


def row_names(axes: "Axes", places: Iterable[float], names: Iterable[str]) -> None:
    """Write names beside the rows of an axis, long ones cut.

    Args:
        axes: Whose rows they are.
        places: Where the rows are, [k].
        names: Their names, of one line or several.
    """
    axes.set_yticks(list(places), [shortened(name, _ROW) for name in names], fontsize=8)


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
    figure, axes = one_panel((6.0, 1.0 + 0.28 * len(shown)))
    values = coefficients[shown]
    axes.barh(range(len(shown)), values, color=np.where(values > 0, "C0", "C1"), height=0.7)
    axes.axvline(0, color="0.5", lw=0.8)
    row_names(axes, range(len(shown)), [names[i] for i in shown])
    axes.margins(y=0.02)
    left_out = f"; {len(names) - len(shown)} smaller ones not shown" if len(names) > len(shown) else ""
    axes.set_xlabel(f"coefficient of the covariate scaled to [-1, 1]{left_out}", fontsize=9)
    axes.set_title("\n".join(filter(None, [claim, "treat where the sum is positive"])), fontsize=9)
    return figure


def save_figure(figure: "Figure", path: Path, mode: int | None = None) -> None:
    """Write a figure as PNG, atomically; ``mode`` are its permissions, None for those of any new file."""
    from torchdpcate._files import atomic_path

    with atomic_path(path, mode) as temporary:
        temporary.write_bytes(png_of(figure))


def png_of(figure: "Figure") -> bytes:
    """Return a figure as PNG."""
    written = io.BytesIO()
    figure.savefig(written, dpi=150, bbox_inches="tight", format="png")
    return written.getvalue()


def one_panel(size: tuple[float, float]) -> tuple["Figure", "Axes"]:
    """Return a new figure of this size in inches with one pair of axes."""
    figure, grid = new_grid(1, 1, size)
    return figure, grid[0]


def figure_of(axes: "Axes") -> "Figure":
    """Return the figure of axes, that of a part of it included."""
    figure: Any = axes.figure
    while figure.figure is not figure:
        figure = figure.figure
    return figure


def legend_below(axes: "Axes", columns: int = 2) -> None:
    """Draw the legend of axes below their figure."""
    figure_of(axes).legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def entry(name: object) -> str:
    """Return a name as an entry of a legend, from which matplotlib leaves out what begins with an underscore.

    Example:
        >>> entry("_dose"), entry("dose")
        (' _dose', 'dose')
    """
    return f" {name}" if str(name).startswith("_") else str(name)


def new_grid(rows: int, columns: int, size: tuple[float, float], **settings: Any) -> tuple["Figure", list["Axes"]]:
    """Return a figure of this size in inches with its panels, row by row.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        size: Width and height.
        settings: Of matplotlib's ``Figure.subplots``.
    """
    # The object interface needs no display and leaves pyplot's global state alone.
    from torchdpcate.evaluation.plain_figure import PlainFigure

    figure = PlainFigure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **settings).flatten().tolist()
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def answers_figure(
    answers: np.ndarray,
    band: np.ndarray | None = None,
    *,
    against: np.ndarray | None = None,
    covariate: str = "",
    levels: Sequence[str] = (),
    level: float = 0.95,
    claim: str = "",
) -> "Figure":
    """Draw effects at queries: the smallest first, or against one covariate.

    Args:
        answers: Released effects, [d].
        band: Noise band of the second stage [d, 2]; None where there is none.
        against: Values of the covariate [d], positions where it has levels; None orders the queries by their effect.
        covariate: Its name.
        levels: What its values are called, if they are levels.
        level: Probability of the bands.
        claim: Guarantee, printed above.

    Returns:
        A matplotlib figure; the caller saves it.

    Example:
        >>> answers_figure(np.array([0.3, -0.1])).axes[0].lines[0].get_ydata().tolist()
        [-0.1, 0.3]
    """
    figure, axes = one_panel((6.0, 4.2))
    order = np.argsort(answers, kind="stable")
    place = np.arange(1, len(order) + 1) if against is None else np.asarray(against, dtype=float)[order]
    axes.plot(place, answers[order], ".", color="C0", ms=max(3.0, min(8.0, 200 / len(order))), label="released")
    if band is not None:
        axes.vlines(place, *band[order].T, color="C0", alpha=0.35, lw=1.2, label=f"{level:.0%} {BAND}")
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    if levels:
        level_ticks(axes, np.arange(len(levels)), levels)
    elif against is None:
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("queries, the smallest effect first" if against is None else covariate)
    axes.set_ylabel("treatment effect")
    axes.set_title(claim, fontsize=9)
    legend_below(axes)
    return figure


_COLOURS = ("#0072B2", "0.88", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


@dataclass(frozen=True, eq=False)
class DecisionPanel:
    """Shares of actions against one covariate: areas, or bars where it has levels.

    Attributes:
        covariate: Name of the covariate.
        grid: Its values, [m].
        shares: Share of each action at each value, [m, K]; rows add up to 1.
        levels: What the values are called, if they are levels.
        place: Where the other covariates are; empty where there are none.
    """

    covariate: str
    grid: np.ndarray
    shares: np.ndarray
    levels: Sequence[str] = ()
    place: str = ""

    def draw(self, axes: "Axes", actions: Sequence[str]) -> None:
        """Draw it; ``actions`` are the actions' names."""
        tops = self.shares.cumsum(1)
        for k, name in enumerate(actions):
            low, colour = tops[:, k] - self.shares[:, k], _COLOURS[k % len(_COLOURS)]
            if self.levels:
                axes.bar(self.grid, self.shares[:, k], 0.7, low, color=colour, lw=0, label=entry(name))
            else:
                axes.fill_between(self.grid, low, tops[:, k], color=colour, lw=0, label=entry(name))
        if not self.levels:
            axes.set_xlim(self.grid[0], self.grid[-1])
        axes.set_ylim(0, 1)
        _along(axes, self.grid, self.levels, self.covariate)


def decision_figure(
    panels: Sequence[DecisionPanel],
    actions: Sequence[str],
    *,
    title: str = "",
    claim: str = "",
) -> "Figure":
    """Draw which share of people gets which action, a panel a covariate.

    Args:
        panels: What is drawn, from left to right.
        actions: Names of the K actions, the lowest area first.
        title: What decides.
        claim: Guarantee, printed above.

    Returns:
        A matplotlib figure; the caller saves it.

    Example:
        >>> panel = DecisionPanel("age", np.array([20.0, 60.0]), np.array([[1.0, 0.0], [0.25, 0.75]]))
        >>> decision_figure([panel], ["treat", "do not treat"]).axes[0].get_xlabel()
        'age'
    """
    figure, axes = new_grid(1, len(panels), (max(6.0, 0.8 + 3.2 * len(panels)), 4.0), sharey=True)
    for panel, one in zip(panels, axes, strict=True):
        panel.draw(one, actions)
    axes[0].set_ylabel("share of people")
    place = "\n".join(dict.fromkeys(f"(other covariates {panel.place})" for panel in panels if panel.place))
    above = "\n".join(filter(None, [claim, title]))
    if len(panels) == 1:
        axes[0].set_xlabel(f"{panels[0].covariate} {place}".strip())
        axes[0].set_title(above, fontsize=9)
    else:
        figure.supxlabel(place, fontsize=8)
        figure.suptitle(above, fontsize=9)
    legend_below(axes[0], columns=4)
    return figure


_SIZE = (4.4, 3.0)  # inches: words stay readable where a telephone shrinks the picture
_FIXED: Any = {"svg.hashsalt": "torchdpcate", "svg.fonttype": "none", "font.family": "sans-serif"}


def svg_of(figure: "Figure", whole: bool = False) -> bytes:
    """Return a figure as SVG, without a date, its words as text.

    Args:
        figure: The figure.
        whole: Whether the picture grows where words reach beyond the figure, which takes twice as long.
    """
    import matplotlib

    written = io.BytesIO()
    with matplotlib.rc_context(_FIXED):
        figure.savefig(
            written, format="svg", bbox_inches="tight" if whole else None, metadata={"Date": None, "Creator": None}
        )
    return written.getvalue()


def effect_picture(panel: EffectPanel, label: str) -> bytes:
    """Return effects against one covariate as a picture, of an axis of this label; the page says what bands hold."""

    def draw(axes: "Axes") -> None:
        panel.draw(axes, "_")
        axes.set_ylabel(textwrap.fill(label, _AXIS))

    return _picture(draw)


def decision_picture(panel: DecisionPanel, actions: Sequence[str]) -> bytes:
    """Return shares of actions against one covariate as a picture."""

    def draw(axes: "Axes") -> None:
        panel.draw(axes, actions)
        axes.set_ylabel("share of people")
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)

    return _picture(draw)


def _picture(draw: "Callable[[Axes], None]") -> bytes:
    figure, axes = new_grid(1, 1, _SIZE)
    draw(axes[0])
    return svg_of(figure)
