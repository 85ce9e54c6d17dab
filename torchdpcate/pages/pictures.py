"""Figures as pictures within a page: the same bytes at every run."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchdpcate.evaluation.decision_figure import DecisionPanel
from torchdpcate.evaluation.figures import EffectPanel, new_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def effect_picture(panel: EffectPanel, outcome: str) -> bytes:
    """Return effects against one covariate as a picture; what its band holds is for the page to say."""

    def draw(axes: "Axes") -> None:
        panel.draw(axes, "_")
        axes.set_ylabel(f"effect on {outcome}", parse_math=False)

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
