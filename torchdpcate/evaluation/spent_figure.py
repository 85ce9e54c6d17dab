"""The figure of budgets: what each block of records was allowed, and what its steps spent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdpcate.evaluation.figures import finish, new_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 20  # colours that can be told apart; further steps are drawn together
_REST = "further steps"


@dataclass(frozen=True)
class BudgetBar:
    """A block of records with its budget.

    Attributes:
        label: Which block of which run.
        budget: Its budget's epsilon.
        spent: Epsilon of all its steps together; None where nothing is claimed.
        steps: Epsilon of each step alone, by its name.
    """

    label: str
    budget: float
    spent: float | None
    steps: Mapping[str, float]


def spent_figure(bars: Sequence[BudgetBar]) -> "Figure":
    """Draw each block's spent epsilon as a bar within its budget, divided as its steps would cost alone.

    Steps compose to less than the sum of what each costs alone; a bar's parts are in proportion to these.

    Args:
        bars: At least one block.

    Returns:
        A matplotlib figure; the caller saves it.

    Example:
        >>> figure = spent_figure([BudgetBar("all", 1.0, 0.9, {"weights": 0.4, "release": 0.8})])
        >>> [round(float(patch.get_width()), 3) for patch in figure.axes[0].patches]
        [1.0, 0.3, 0.6]
    """
    from matplotlib import colormaps

    figure, (axes,) = new_grid(1, 1, (7.0, 1.6 + 0.42 * len(bars)))
    names = list(dict.fromkeys(name for bar in bars for name in bar.steps))
    kept = names if len(names) <= _MOST else names[: _MOST - 1]
    colours = {name: colormaps["tab20"](place) for place, name in enumerate([*kept, _REST][:_MOST])}
    drawn: set[str] = set()
    for place, bar in enumerate(bars):
        axes.barh(place, bar.budget, 0.72, color="none", edgecolor="0.3", lw=1.0)
        start, unit = 0.0, (bar.spent or 0.0) / (sum(bar.steps.values()) or 1.0)
        for name, alone in bar.steps.items():
            shown, width = name if name in kept else _REST, unit * alone
            label = "_" if shown in drawn else shown
            axes.barh(place, width, 0.56, start, color=colours[shown], lw=0, label=label)
            drawn.add(shown)
            start += width
        if bar.spent is None:
            axes.annotate("nothing is claimed", (0, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], parse_math=False, fontsize=8)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("epsilon: frame, the budget; bar, what was spent, by steps", fontsize=9)
    finish(axes, own=True, columns=2)
    return figure
