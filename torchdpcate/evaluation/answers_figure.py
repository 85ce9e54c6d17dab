"""The figure of effects at public queries, which no curve connects."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.evaluation.figures import BAND, finish, one_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def answers_figure(
    answers: np.ndarray,
    band: np.ndarray | None = None,
    *,
    against: np.ndarray | None = None,
    covariate: str = "",
    levels: Sequence[str] = (),
    level: float = 0.95,
    claim: str = "",
    ax: "Axes | None" = None,
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
        ax: Axes to draw on; None makes a figure.

    Returns:
        A matplotlib figure; the caller saves it.

    Example:
        >>> answers_figure(np.array([0.3, -0.1])).axes[0].lines[0].get_ydata().tolist()
        [-0.1, 0.3]
    """
    figure, axes = one_panel(ax, (6.0, 4.2))
    order = np.argsort(answers, kind="stable")
    place = np.arange(1, len(order) + 1) if against is None else np.asarray(against, dtype=float)[order]
    axes.plot(place, answers[order], ".", color="C0", ms=max(3.0, min(8.0, 200 / len(order))), label="released")
    if band is not None:
        axes.vlines(place, *band[order].T, color="C0", alpha=0.35, lw=1.2, label=f"{level:.0%} {BAND}")
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    if levels:
        axes.set_xticks(range(len(levels)), levels, parse_math=False)
    elif against is None:
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("queries, the smallest effect first" if against is None else covariate, parse_math=False)
    axes.set_ylabel("treatment effect")
    axes.set_title(claim, fontsize=9, parse_math=False)
    finish(axes, ax is None)
    return figure
