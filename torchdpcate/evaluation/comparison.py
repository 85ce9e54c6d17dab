"""The figures of a sweep: error against budget, and effects against one covariate, mechanisms side by side."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, entry, new_grid

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


# Okabe & Ito (2008): eight colours that most colour-blind readers can distinguish; black is the truth's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_MARKERS = "osD^vPX"
_LINES = ("-", "--", "-.", ":")
_LEVELS: dict[str, dict[str, Any]] = {
    "non-private": {"color": "0.45", "ls": "-", "lw": 1.5},
    "constant effect": {"color": "black", "ls": ":", "lw": 1.2},
    "treat all": {"color": "black", "ls": ":", "lw": 1.2},
    "treat none": {"color": "black", "ls": "-.", "lw": 1.0},
    "uniform choice": {"color": "black", "ls": ":", "lw": 1.2},
}
"""What no budget changes, drawn as levels."""


def budget_figure(errors: "pd.DataFrame", quantity: str = "pehe", label: str = "PEHE") -> "Figure":
    """Draw error against budget: median over seeds with the range of all of them, a line an estimate.

    Args:
        errors: One row a run and line with columns ``epsilon``, ``line`` (its name) and the quantity's. A column
            ``panel``, if there is one, names the panel. What no budget changes (``non-private``, ``constant effect``,
            ``treat all``, ``treat none`` and ``uniform choice``) is drawn as a level.
        quantity: Its column; ``pehe`` is on a logarithmic scale.
        label: Of its axis.

    Returns:
        A matplotlib figure, marked as the curator's; the caller saves it.
    """
    panels = errors.groupby("panel", sort=False) if "panel" in errors else [("", errors)]
    names = list(dict.fromkeys(name for name in errors["line"] if name not in _LEVELS))
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    figure, axes = new_grid(rows, columns, (1.6 + 4.6 * columns, 3.6 * rows))
    for panel, (title, chosen) in zip(axes, panels, strict=False):
        _errors_panel(panel, chosen, names, quantity)
        panel.set_title(str(title), fontsize=9)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel in axes[::columns]:
        panel.set_ylabel(label)
    # beside the legend's title
    figure.suptitle(NOT_FOR_PUBLICATION, fontsize=8, x=0.02, ha="left")
    _legend(figure, axes[: len(panels)], "median, range over seeds")
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


def line_style(i: int) -> dict[str, Any]:
    """Return colour, marker and line of the i-th method."""
    k = len(_COLOURS)
    return {"color": _COLOURS[i % k], "marker": _MARKERS[i % k], "ls": _LINES[i // k % len(_LINES)]}


def _legend(figure: "Figure", panels: Sequence["Axes"], title: str) -> None:
    """Draw one legend for all panels beside them: methods first, then the references."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
    labels = sorted(entries, key=lambda label: label == "plug-in" or label in _LEVELS)
    figure.legend(
        [entries[label] for label in labels], labels, title=title, loc="outside right upper", frameon=False,
        fontsize=8, title_fontsize=8, alignment="left",
    )  # fmt: skip
