"""The figures of a sweep: error against budget, and effects against one covariate, mechanisms side by side."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._files import PRIVATE, write_text
from torchdpcate._text import plain
from torchdpcate.errors import InputError
from torchdpcate.evaluation.figures import CURATOR_ONLY, NOT_FOR_PUBLICATION, REFERENCES, entry, new_grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def pehe(effect: Tensor, truth: Tensor) -> float:
    r"""Return the PEHE of effects [m] against true effects [m], in outcome units.

    .. math:: \Big(\frac{1}{m} \sum_i (\hat\tau_i - \tau_i)^2\Big)^{1/2}

    Example:
        >>> round(pehe(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])), 4)
        1.4142
    """
    difference = torch.as_tensor(effect, dtype=torch.float64) - torch.as_tensor(truth, dtype=torch.float64)
    return difference.square().mean().sqrt().item()


def policy_value(decision: Tensor, a: Tensor, y: Tensor, propensity: Tensor, own: Tensor | None = None) -> float:
    r"""Return the value of a rule on records, by inverse probabilities that are normalised; NaN where nobody followed.

    .. math:: \hat V(d) = \frac{\sum_i w_i y_i}{\sum_i w_i}, \qquad w_i = \frac{1\{d_i = a_i\}}{P(a_i \mid x_i)}

    Args:
        decision: Whether the rule treats, [m].
        a: Treatments [m] in {0, 1}.
        y: Outcomes [m].
        propensity: P(A = 1 | x), [m].
        own: How much each record counts, [m]; None for all alike.
    """
    weight = ((decision > 0) == (a > 0)).double() / torch.where(a > 0, propensity, 1 - propensity)
    weight = weight if own is None else weight * own
    return ((weight * y).sum() / weight.sum()).item()


def decision_accuracy(decision: Tensor, effect: Tensor) -> float:
    """Return the share of decisions [m] that treat exactly where the effect [m] is above zero."""
    return ((decision > 0) == (effect > 0)).double().mean().item()


CURVES_FILE = "curves.json"
"""Their file in the curator's folder."""
_MOST_BYTES = 10_000_000


@dataclass(frozen=True, eq=False)
class EffectCurves:
    """Effects against one covariate, the others held at the middle of their bounds. The curator's.

    Attributes:
        covariate: Name of the covariate.
        grid: Its values, [m].
        released: Released effects, [m].
        band: Noise band of the second stage [m, 2], or None where no public scale is known.
        level: Probability of the band.
        others: Further curves [m] by name, such as ``truth`` and ``non-private``.
    """

    covariate: str
    grid: np.ndarray
    released: np.ndarray
    band: np.ndarray | None = None
    level: float = 0.95
    others: Mapping[str, np.ndarray] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the curves as JSON, atomically, with what the release publishes and what it does not."""
        public = {
            "covariate": self.covariate,
            "level": self.level,
            "grid": self.grid.tolist(),
            "released": self.released.tolist(),
            "band": None if self.band is None else self.band.tolist(),
        }
        secret = {name: values.tolist() for name, values in self.others.items()}
        write_text(path, json.dumps({"public": public, "secret": secret}) + "\n", PRIVATE)

    @classmethod
    def load(cls, path: Path) -> "EffectCurves":
        """Read curves that ``save`` wrote.

        Raises:
            InputError: No such file, or a damaged one.
        """
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # a pipe would never end
                raise ValueError
            facts = json.loads(path.read_text(encoding="utf-8"))
            public, grid = facts["public"], _numbers(facts["public"]["grid"])
            others = {_word(name): _numbers(values, grid.shape) for name, values in facts["secret"].items()}
            band = None if public["band"] is None else _numbers(public["band"], (*grid.shape, 2))
            level = public["level"]
            if grid.ndim != 1 or not grid.size or not (isinstance(level, float) and 0 < level < 1):
                raise ValueError
            return cls(_word(public["covariate"]), grid, _numbers(public["released"], grid.shape), band, level, others)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
            raise InputError(f"{path}: no curves of a run, or damaged; remove the run or run it again") from None


def _numbers(values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "if" or (shape is not None and array.shape != shape):
        raise ValueError
    array = array.astype(np.float64)
    if not np.isfinite(array).all() or np.abs(array).max(initial=0) > 1e100:  # beyond what can be drawn
        raise ValueError
    return array


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return plain(value[:1000])


# Okabe & Ito (2008): eight colours that most colour-blind readers can distinguish; black is the truth's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_MARKERS = "osD^vPX"
_LINES = ("-", "--", "-.", ":")
_BANDS = 4  # more of them in one panel hide each other
_LEVELS = {
    "non-private": REFERENCES["non-private"],
    "constant effect": {"color": "black", "ls": ":", "lw": 1.2},
    "treat all": {"color": "black", "ls": ":", "lw": 1.2},
    "treat none": {"color": "black", "ls": "-.", "lw": 1.0},
    "uniform choice": {"color": "black", "ls": ":", "lw": 1.2},
}
"""What no budget changes, drawn as levels."""
_QUANTITIES = {
    "pehe": ("PEHE (root mean squared error)", "shows non-private errors"),
    "accuracy": ("share of best decisions", "shows the truth and a non-private rule"),
    "value": ("value (estimated mean outcome)", "estimated on the records"),
    "regret_expected": ("expected regret (mean outcome lost)", "shows the truth"),
    "estimate": ("estimated average effect", "shows estimates that were not released"),
    "error": ("absolute error of the average effect", "shows the truth"),
    "width": ("width of the 95 % interval", "from the runs' summaries"),
    "noise": ("privacy noise of a cell's effect", "from the runs' summaries"),
    "rmse": ("root mean squared error over cells", "shows the truth"),
    "value_expected": ("expected value (estimated mean outcome)", "estimated on the records"),
}
"""What may be drawn against budget: the axis, and why the figure is the curator's."""


def budget_figure(errors: "pd.DataFrame", quantity: str = "pehe") -> "Figure":
    """Draw error against budget: median over seeds with the range of all of them, a line an estimate.

    Args:
        errors: One row a run and line with columns ``epsilon``, ``line`` (its name) and the quantity's. A column
            ``panel``, if there is one, names the panel. What no budget changes (``non-private``, ``constant effect``,
            ``treat all``, ``treat none`` and ``uniform choice``) is drawn as a level.
        quantity: ``pehe`` (on a logarithmic scale), ``accuracy`` or ``value`` of a rule, ``regret_expected`` or
            ``value_expected`` of a choice among policies, ``estimate``, ``error`` or ``width`` of an average effect, or
            ``noise``, ``rmse`` or ``width`` of effects in subgroups.

    Returns:
        A matplotlib figure, marked as the curator's; the caller saves it.
    """
    panels = errors.groupby("panel", sort=False) if "panel" in errors else [("", errors)]
    names = list(dict.fromkeys(name for name in errors["line"] if name not in _LEVELS))
    columns, rows = _shape(len(panels), 2)
    figure, axes = new_grid(rows, columns, (1.6 + 4.6 * columns, 3.6 * rows))
    label, reason = _QUANTITIES[quantity]
    for panel, (title, chosen) in zip(axes, panels, strict=False):
        _errors_panel(panel, chosen, names, quantity)
        panel.set_title(str(title), fontsize=9)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel in axes[::columns]:
        panel.set_ylabel(label)
    # beside the legend's title
    figure.suptitle(f"{NOT_FOR_PUBLICATION}: {reason}", fontsize=8, x=0.02, ha="left")
    _legend(figure, axes[: len(panels)], "median, range over seeds")
    return figure


def curves_figure(runs: Mapping[float, Mapping[str, EffectCurves]], title: str) -> "Figure":
    """Draw effects against one covariate, a panel a budget: releases with their noise bands, and what they miss.

    The truth and the non-private curve are drawn where the curves hold them, and then set the height of the panels:
    releases that leave it are cut. With more than four bands in a panel none is drawn.

    Args:
        runs: Curves by budget epsilon and name of the mechanism, on one data set and along one covariate.
        title: Printed above the panels.

    Returns:
        A matplotlib figure, marked as the curator's where it shows more than releases; the caller saves it.
    """
    names = list(dict.fromkeys(name for curves in runs.values() for name in curves))
    columns, rows = _shape(len(runs), 3)
    figure, axes = new_grid(rows, columns, (1.8 + 3.2 * columns, 0.5 + 2.7 * rows), sharex=True, sharey=True)
    for panel, (epsilon, curves) in zip(axes, sorted(runs.items()), strict=False):
        _curves_panel(panel, curves, names)
        panel.set_title(f"epsilon = {epsilon:g}", fontsize=9)
    everything = [curves for panel in runs.values() for curves in panel.values()]
    axes[0].set_ylim(*_height(everything))
    for panel in axes[len(runs) :]:
        panel.set_visible(False)
    for i, panel in enumerate(axes[: len(runs)]):
        panel.tick_params(labelsize=8, labelbottom=i + columns >= len(runs))
    for panel in axes[::columns]:
        panel.set_ylabel("treatment effect", fontsize=9)
    below = f"{everything[0].covariate} (other covariates as in the figure of each run)"
    figure.supxlabel(below, fontsize=9)
    banded = next((curves for curves in everything if curves.band is not None), None)
    bands = (
        ""
        if banded is None
        else f"thin lines: {banded.level:.0%} noise band of the second stage alone\n(no confidence interval)"
    )
    marked = [CURATOR_ONLY] if any(curves.others for curves in everything) else []
    figure.suptitle("\n".join([title, *marked]), fontsize=10)
    _legend(figure, axes[: len(runs)], bands)
    return figure


def _errors_panel(axes: "Axes", errors: "pd.DataFrame", names: Sequence[str], quantity: str) -> None:
    ticks = sorted(errors["epsilon"].unique())
    for i, name in enumerate(names):
        groups = errors[errors["line"] == name].groupby("epsilon")[quantity]
        middle = groups.median()
        # points beside each other: ranges on top of each other could not be read
        x = middle.index.to_numpy() * 1.03 ** (i - (len(names) - 1) / 2)
        ends = np.stack([middle - groups.min(), groups.max() - middle])
        axes.errorbar(x, middle.to_numpy(), ends, label=entry(name), ms=4, elinewidth=0.8, lw=1.3, **line_style(i))
    for name, style in _LEVELS.items():
        level = errors.loc[errors["line"] == name, quantity].median()
        if math.isfinite(level):
            axes.axhline(level, label=name, zorder=1, **style)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    if quantity == "pehe":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("epsilon")


def _curves_panel(axes: "Axes", runs: Mapping[str, EffectCurves], names: Sequence[str]) -> None:
    axes.axhline(0, color="0.8", lw=0.8, zorder=0)
    banded = sum(curves.band is not None for curves in runs.values())
    for name, curves in runs.items():
        style = line_style(names.index(name)) | {"marker": ""}
        axes.plot(curves.grid, curves.released, label=entry(name), lw=1.4, **style)
        if curves.band is not None and banded <= _BANDS:
            axes.fill_between(curves.grid, *curves.band.T, color=style["color"], alpha=0.07, lw=0)
            axes.plot(curves.grid, curves.band, color=style["color"], alpha=0.5, lw=0.6)
    for name in ("non-private", "truth"):
        found = next((curves for curves in runs.values() if name in curves.others), None)
        if found is not None:
            axes.plot(found.grid, found.others[name], label=name, **REFERENCES[name])


def _height(runs: Sequence[EffectCurves]) -> tuple[float, float]:
    """Return the span of the panels: twice that of the references, or the releases' own."""
    known = [curves.others[name] for curves in runs for name in ("truth", "non-private") if name in curves.others]
    values = np.concatenate(known or [curves.released for curves in runs])
    low, high = values.min(), values.max()
    margin = 0.5 * (high - low) or 1.0
    return low - margin, high + margin


def line_style(i: int) -> dict[str, Any]:
    """Return colour, marker and line of the i-th method."""
    k = len(_COLOURS)
    return {"color": _COLOURS[i % k], "marker": _MARKERS[i % k], "ls": _LINES[i // k % len(_LINES)]}


def _shape(panels: int, most: int) -> tuple[int, int]:
    """Return the columns and rows for so many panels."""
    columns = min(panels, most)
    return columns, math.ceil(panels / columns)


def _legend(figure: "Figure", panels: Sequence["Axes"], title: str) -> None:
    """Draw one legend for all panels beside them: methods first, then the references."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
    labels = sorted(entries, key=lambda label: label in REFERENCES or label in _LEVELS)
    figure.legend(
        [entries[label] for label in labels], labels, title=title, loc="outside right upper", frameon=False,
        fontsize=8, title_fontsize=8, alignment="left",
    )  # fmt: skip
