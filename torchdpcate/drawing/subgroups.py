"""The forest plot of effects in subgroups."""

from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.evaluation.forest_figure import forest_figure
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_subgroups(
    release: SubgroupRelease,
    *,
    level: float = LEVEL,
    nonprivate: np.ndarray | None = None,
    truth: np.ndarray | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Return the forest plot of a release: that of ``SubgroupRelease.plot``, and with more the curator's.

    Args:
        release: The release.
        level: Probability of the intervals, in (0, 1).
        nonprivate: Effects without noise, [cells]; the curator's.
        truth: True effects, [cells]; the curator's.
        ax: Axes to draw on; None makes a figure.
    """
    return forest_figure(
        release.table(level),
        simultaneous=release.interval(level, simultaneous=True),
        nonprivate=None if nonprivate is None else nonprivate.tolist(),
        truth=None if truth is None else truth.tolist(),
        dominated=release.effects.noise_dominated.tolist(),
        level=level,
        outcome=release.schema.outcome,
        claim=release.privacy.claim,
        assumptions=release.assumptions or "",
        ax=ax,
    )
