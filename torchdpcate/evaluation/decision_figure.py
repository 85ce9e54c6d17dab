"""The figure of decisions: which share of people gets which action, against one covariate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.evaluation.figures import figure_of, finish, new_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
                axes.bar(self.grid, self.shares[:, k], 0.7, low, color=colour, lw=0, label=name)
            else:
                axes.fill_between(self.grid, low, tops[:, k], color=colour, lw=0, label=name)
        if self.levels:
            axes.set_xticks(list(self.grid), self.levels, parse_math=False)
            axes.set_xlim(self.grid[0] - 0.5, self.grid[-1] + 0.5)
        else:
            axes.set_xlim(self.grid[0], self.grid[-1])
        axes.set_ylim(0, 1)
        axes.set_xlabel(self.covariate, parse_math=False)


def decision_figure(
    panels: Sequence[DecisionPanel],
    actions: Sequence[str],
    *,
    title: str = "",
    claim: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw which share of people gets which action, a panel a covariate.

    Args:
        panels: What is drawn, from left to right.
        actions: Names of the K actions, the lowest area first.
        title: What decides.
        claim: Guarantee, printed above.
        ax: Axes to draw one panel on; None makes a figure.

    Returns:
        A matplotlib figure; the caller saves it.

    Example:
        >>> panel = DecisionPanel("age", np.array([20.0, 60.0]), np.array([[1.0, 0.0], [0.25, 0.75]]))
        >>> decision_figure([panel], ["treat", "do not treat"]).axes[0].get_xlabel()
        'age'
    """
    if ax is None:
        figure, axes = new_grid(1, len(panels), (max(6.0, 0.8 + 3.2 * len(panels)), 4.0), sharey=True)
    else:
        figure, axes = figure_of(ax), [ax]
    for panel, one in zip(panels, axes, strict=True):
        panel.draw(one, actions)
    axes[0].set_ylabel("share of people")
    place = "\n".join(dict.fromkeys(f"(other covariates {panel.place})" for panel in panels if panel.place))
    above = "\n".join(filter(None, [claim, title]))
    if len(panels) == 1:
        axes[0].set_xlabel(f"{panels[0].covariate} {place}".strip(), parse_math=False)
        axes[0].set_title(above, fontsize=9, parse_math=False)
    else:
        figure.supxlabel(place, fontsize=8)
        figure.suptitle(above, fontsize=9, parse_math=False)
    finish(axes[0], ax is None, columns=4)
    return figure
