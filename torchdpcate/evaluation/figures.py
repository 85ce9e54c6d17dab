"""The two figures: effect against one covariate, and error against budget."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CURATOR_ONLY = "curator only: shows non-private curves"


def effect_figure(
    grid: np.ndarray,
    released: np.ndarray,
    band: np.ndarray | None,
    *,
    covariate: str,
    others: Mapping[str, np.ndarray] | None = None,
    level: float = 0.95,
    claim: str = "",
) -> "Figure":
    """Draw effects against one covariate, the others held at the middle of their bounds.

    Args:
        grid: Values of the covariate, [m].
        released: Released effects, [m].
        band: Noise band [m, 2], or None where there is no honest one.
        covariate: Name of the covariate.
        others: Further curves by name, such as the truth or the non-private effect; the figure then says
            that it is for the curator alone.
        level: Probability of the band.
        claim: Guarantee, printed under the title.

    Returns:
        A matplotlib figure; the caller saves it.
    """
    figure, axes = _axes()
    axes.plot(grid, released, color="C0", lw=2, label="released")
    if band is not None:
        label = f"{level:.0%} noise band (no confidence interval)"
        axes.fill_between(grid, band[:, 0], band[:, 1], color="C0", alpha=0.15, lw=0, label=label)
    for (name, values), style in zip((others or {}).items(), ("k--", "C1-", "C2:"), strict=False):
        axes.plot(grid, values, style, lw=1.5, label=name)
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    axes.set_xlabel(f"{covariate} (other covariates at mid-range)")
    axes.set_ylabel("treatment effect")
    axes.set_title("\n".join(filter(None, [claim, CURATOR_ONLY if others else ""])), fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return figure


def budget_figure(errors: "pd.DataFrame") -> "Figure":
    """Draw error against budget: median over seeds with the range of all of them.

    Args:
        errors: One row a run with columns ``epsilon``, ``estimate`` (what was estimated) and ``pehe``.

    Returns:
        A matplotlib figure; the caller saves it.
    """
    figure, axes = _axes()
    for i, (name, rows) in enumerate(errors.groupby("estimate", sort=False)):
        groups = rows.groupby("epsilon")["pehe"]
        middle, low, high = groups.median(), groups.min(), groups.max()
        axes.plot(middle.index, middle, "o-", color=f"C{i}", ms=4, label=str(name))
        axes.fill_between(middle.index, low, high, color=f"C{i}", alpha=0.12, lw=0)
    ticks = sorted(errors["epsilon"].unique())
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("PEHE (root mean squared error)")
    axes.set_title("error against budget: median and range over seeds", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    from torchdpcate._files import atomic_path

    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, bbox_inches="tight", format="png")


def _axes() -> tuple:
    # The object interface needs no display and leaves pyplot's global state alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
