"""The figure of a spillover audit: what moves, beside what each calibration allows."""

from typing import TYPE_CHECKING

from experiments.spillover.report import SpilloverReport
from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, new_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST = 1e-4  # of the limit: movements of nearly nothing are drawn there
_MARKERS = {"random": ("o", "0.55"), "targeted": ("D", "C1"), "guided": ("^", "C3")}
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
_APART = 0.13  # searches of one learner, in rows


def spillover_figure(report: SpilloverReport) -> "Figure":
    """Draw what each search found, a row a learner, beside the limits with and without spillover. The curator's.

    On the left max |DeltaU| with 2 B_psi and n rho*, on the right the spread with 2 S and the certified one, in outcome
    units.

    Args:
        report: What was found.

    Returns:
        A matplotlib figure; the caller saves it.
    """
    learners = report.learners
    figure, panels = new_grid(1, 2, (10.0, 1.9 + 0.6 * len(learners)), sharey=True)
    first = learners[0]
    _panel(
        panels[0],
        [[(found.search, found.movement) for found in learner.found] for learner in learners],
        (first.floor, "2 B_psi"),
        [learner.paper for learner in learners],
        "n rho*",
    )
    _panel(
        panels[1],
        [[(found.search, found.spread) for found in learner.found] for learner in learners],
        (first.frozen, "2 S"),
        [learner.range_sensitivity for learner in learners],
        "certified",
    )
    for search, (marker, color) in _MARKERS.items():
        panels[0].plot([], [], marker, color=color, label=f"{search} neighbours")
    panels[0].plot([], [], "--", color="black", lw=1.2, label="limit without spillover")
    panels[0].plot([], [], "|", ms=14, mew=2.5, color="C0", label="guarantee")
    panels[0].set_yticks(range(len(learners)), [f"{learner.name} ({learner.guarantee})" for learner in learners])
    panels[0].set_ylim(len(learners) - 0.5, -0.7)
    panels[0].set_xlabel("max |DeltaU| by one training record", parse_math=False)
    panels[1].set_xlabel("spread, max DeltaU - min DeltaU", parse_math=False)
    figure.suptitle(f"{NOT_FOR_PUBLICATION}: depends on the records", fontsize=9)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def _panel(
    axes: "Axes",
    found: list[list[tuple[str, float]]],
    limit: tuple[float, str],
    bounds: list[float | None],
    bound: str,
) -> None:
    """Rows of points with one limit for all and a certified bound for each."""
    least = _LEAST * limit[0]
    for place, (row, certified) in enumerate(zip(found, bounds, strict=True)):
        for shift, (search, value) in enumerate(row, start=-1):
            marker, color = _MARKERS[search]
            axes.plot(max(value, least), place + shift * _APART, marker, color=color, ms=6, zorder=3)
        widest = max(value for _, value in row)
        axes.text(
            max(widest, least), place - 2 * _APART, f"{widest:.3g}", ha="center", va="bottom", fontsize=8, bbox=_WHITE
        )
        if certified is not None:
            axes.plot(certified, place, "|", ms=20, mew=2.5, color="C0", zorder=2)
            axes.annotate(
                f"{bound} = {certified:.3g}",
                (certified, place),
                (-4, 11),
                fontsize=7,
                ha="right",
                textcoords="offset points",
                color="C0",
                bbox=_WHITE,
                parse_math=False,
            )
    axes.axvline(limit[0], color="black", lw=1.2, ls="--", zorder=1)
    axes.annotate(
        f" {limit[1]} = {limit[0]:.3g}",
        (limit[0], 1.0),
        xycoords=("data", "axes fraction"),
        fontsize=8,
        va="top",
        parse_math=False,
    )
    axes.set_xscale("log")
    axes.grid(axis="x", alpha=0.25)
