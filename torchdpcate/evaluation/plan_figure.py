"""The figure of a plan: expected noise against the number of records, for several epsilons."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.evaluation.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plan_figure(
    noise: Mapping[float, Mapping[int, float]],
    *,
    outcome_range: float,
    here: tuple[int, float, float],
    of: str,
    precision: float | None = None,
    title: str = "",
) -> "Figure":
    """Draw expected noise against n, a line for each epsilon, with the outcome's range.

    Args:
        noise: Noise in outcome units by n, by epsilon; what is not finite is left out.
        outcome_range: Width of the outcome's bounds.
        here: n, epsilon and noise of the plan itself.
        of: What it is the noise of.
        precision: Wanted precision, marked too.
        title: What was planned.

    Example:
        >>> figure = plan_figure({1.0: {100: 0.5, 1000: 0.05}}, outcome_range=2.0, here=(100, 1.0, 0.5), of="an effect")
        >>> len(figure.axes[0].lines)
        3
    """
    from matplotlib import colormaps

    figure, axes = new_figure()
    for place, (epsilon, by_n) in enumerate(sorted(noise.items())):
        n, values = np.array(list(by_n), dtype=float), np.array(list(by_n.values()), dtype=float)
        there = np.isfinite(values) & (values > 0)
        width, color = 2.4 if epsilon == here[1] else 1.3, colormaps["viridis"](0.9 * place / max(1, len(noise) - 1))
        axes.plot(n[there], values[there], lw=width, color=color, label=f"$\\epsilon$ = {epsilon:g}")
    if np.isfinite(here[2]):
        axes.plot([here[0]], [here[2]], "o", color="black", ms=6, zorder=3, label="this plan")
    _level(axes, outcome_range, "range of the outcome", "C3", "--")
    if precision is not None:
        _level(axes, precision, "wanted precision", "C2", ":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("number of records")
    axes.set_ylabel("expected noise (outcome units)")
    axes.set_title("\n".join(filter(None, [title, f"noise of {of}"])), fontsize=9, parse_math=False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _level(axes: "Axes", at: float, what: str, color: str, style: str) -> None:
    """Draw a line at one noise, with what it is."""
    axes.axhline(at, color=color, lw=1.2, ls=style)
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(what, (0.01, at), xytext=(0, 3), fontsize=7.5, color=color, **place)
