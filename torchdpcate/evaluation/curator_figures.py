"""The curator's figures: plans, propensities, and bars of shares, errors and chances."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, entry, new_grid, one_panel, row_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_OF_SD = {"no effect": 0.0, "a small effect": 0.2, "a medium effect": 0.5, "a large effect": 0.8}
"""Cohen's names of effects, in standard deviations."""
_RELEASES = 20  # of each effect, that are drawn
_LIKE_RANGE = 6.0  # standard deviations between an outcome's bounds, where none is stated


@dataclass(frozen=True)
class SeenAnswers:
    """What a reader would see of true effects of usual sizes: released numbers, by privacy noise and sampling.

    Attributes:
        sd: Standard deviation of the outcome, stated or a sixth of its range.
        stated: Whether it is stated.
        error: Standard deviation of the released number: privacy noise, and sampling of two arms of equal size.
        unit: Of the outcome, in words.
        label: Of the axis of effects.

    Example:
        >>> seen = SeenAnswers.of(0.3, 1600, outcome_range=10.0, sd=2.0)
        >>> round(seen.error, 3), seen.half, seen.none
        (0.316, ('1', '0.38', '1.6'), '0.62')
    """

    sd: float
    stated: bool
    error: float
    unit: str
    label: str

    @classmethod
    def of(
        cls,
        noise: float,
        n: int,
        *,
        outcome_range: float,
        sd: float | None = None,
        unit: str = "",
        label: str = "effect",
    ) -> "SeenAnswers":
        """Return the answers to expect of an effect.

        Args:
            noise: Planned privacy noise, in outcome units.
            n: Number of records; 0 of noise that counts sampling.
            outcome_range: Width of the outcome's bounds.
            sd: Its standard deviation as stated; None where nothing is.
            unit: See the class, also for what follows.
            label: Of the axis.
        """
        size = outcome_range / _LIKE_RANGE if sd is None else sd
        return cls(size, sd is not None, math.hypot(noise, 2 * size / math.sqrt(n) if n else 0.0), unit, label)

    @property
    def of_sd(self) -> str:
        """What the sizes of effects are measured by."""
        return "a standard deviation" if self.stated else "a sixth of the outcome's range"

    @property
    def units(self) -> str:
        """The same, of several."""
        return "standard deviations" if self.stated else "sixths of the outcome's range"

    @property
    def half(self) -> tuple[str, str, str]:
        """An effect of half a standard deviation, and what 95 of 100 releases of it lie between, in words."""
        low, high = (self.sd / 2 + side * _Z * self.error for side in (-1, 1))
        return self._with_unit(self.sd / 2), _short(low), self._with_unit(high)

    @property
    def none(self) -> str:
        """How far from zero 95 of 100 releases are where there is no effect, in words."""
        return self._with_unit(_Z * self.error)

    def draw(self, axes: "Axes") -> None:
        """Draw twenty releases of each true effect, at evenly likely errors."""
        errors = np.array([NormalDist().inv_cdf((k + 0.5) / _RELEASES) for k in range(_RELEASES)])
        rows = [(name, size * self.sd) for name, size in _OF_SD.items()]
        for place, (_, effect) in enumerate(rows):
            axes.plot(effect + self.error * errors, np.full(_RELEASES, place), "o", color="C0", alpha=0.4, ms=5)
            axes.plot([effect], [place], "|", color="black", ms=16, mew=2, label="true effect" if place == 0 else "_")
        axes.axvline(0, color="0.6", lw=0.8, zorder=0)
        row_names(axes, range(len(rows)), [f"{name}\n{self._with_unit(effect)}" for name, effect in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel(self.label, fontsize=9)
        axes.set_title(f"what a reader would see: {_RELEASES} releases of each\n(sizes in {self.units})", fontsize=9)
        axes.legend(fontsize=8, frameon=False, loc="upper right")

    def _with_unit(self, value: float) -> str:
        return f"{_short(value)} {self.unit}".strip()


_Z = NormalDist().inv_cdf(0.975)


def _short(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.10g}" if abs(value) < 10 else f"{float(f'{value:.3g}'):,.0f}"


def plan_figure(
    noise: Mapping[float, Mapping[int, float]],
    *,
    outcome_range: float,
    here: tuple[int, float, float],
    of: str,
    precision: float | None = None,
    title: str = "",
    seen: "SeenAnswers | None" = None,
) -> "Figure":
    """Draw expected noise against n, a line for each epsilon, with the outcome's range, and what a reader would see.

    Args:
        noise: Noise in outcome units by n, by epsilon; what is not finite is left out.
        outcome_range: Width of the outcome's bounds.
        here: n, epsilon and noise of the plan itself.
        of: What it is the noise of.
        precision: Wanted precision, marked too.
        title: What was planned.
        seen: Answers to expect, as a second panel; None draws none.

    Example:
        >>> figure = plan_figure({1.0: {100: 0.5, 1000: 0.05}}, outcome_range=2.0, here=(100, 1.0, 0.5), of="an effect")
        >>> len(figure.axes[0].lines)
        3
    """
    from matplotlib import colormaps
    from matplotlib.ticker import LogLocator

    figure, panels = new_grid(1, 1 if seen is None else 2, (6.0 if seen is None else 11.0, 3.8))
    axes = panels[0]
    if seen is not None:
        seen.draw(panels[1])
    for place, (epsilon, by_n) in enumerate(sorted(noise.items())):
        n, values = np.array(list(by_n), dtype=float), np.array(list(by_n.values()), dtype=float)
        there = np.isfinite(values) & (values > 0)
        width, color = 2.4 if epsilon == here[1] else 1.3, colormaps["viridis"](0.9 * place / max(1, len(noise) - 1))
        axes.plot(n[there], values[there], lw=width, color=color, label=f"epsilon = {epsilon:g}")
    if np.isfinite(here[2]):
        axes.plot([here[0]], [here[2]], "o", color="black", ms=6, zorder=3, label="this plan")
    _level(axes, outcome_range, "range of the outcome", "C3", "--")
    if precision is not None:
        _level(axes, precision, "wanted precision", "C2", ":")
    axes.set(xscale="log", yscale="log", xlabel="number of records", ylabel="expected noise (outcome units)")
    for axis, subs in ((axes.xaxis, (1.0,)), (axes.yaxis, _SUBS)):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter("{x:,.10g}")  # as people write numbers
        axis.set_minor_formatter("")
    axes.set_title("\n".join(filter(None, [title, f"noise of {of}"])), fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return figure


_SUBS = (1.0, 2.0, 5.0)  # ticks of a decade


def _level(axes: "Axes", at: float, what: str, color: str, style: str) -> None:
    """Draw a line at one noise, with what it is."""
    axes.axhline(at, color=color, lw=1.2, ls=style)
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(what, (0.01, at), xytext=(0, 3), fontsize=7.5, color=color, **place)


ESTIMATED = f"{NOT_FOR_PUBLICATION}: estimated on the records"
"""What a figure of unreleased estimates says."""


_BINS = 40
_LOGISTIC = "propensity by logistic regression, without privacy"


def overlap_figure(
    propensity: np.ndarray, treated: np.ndarray, overlap: float, *, arms: Sequence[str] = ("controls", "treated")
) -> "Figure":
    """Draw the propensities of both arms, and where the stated overlap bounds them.

    Args:
        propensity: Without privacy, [n] in [0, 1].
        treated: Treatments, [n].
        overlap: As stated.
        arms: What the arms are called, that of the controls first.

    Returns:
        A matplotlib figure, marked as the curator's; the caller saves it.
    """
    figure, axes = one_panel((6.6, 3.8))
    edges = np.linspace(0, 1, _BINS + 1)
    for arm, colour, side in ((1, "C0", 1), (0, "C1", -1)):
        counts, _ = np.histogram(propensity[treated == arm], edges)
        axes.bar(edges[:-1], side * counts, 1 / _BINS, align="edge", color=colour, label=entry(arms[arm]))
    for bound in (overlap, 1 - overlap):
        axes.axvline(bound, color="black", ls="--", lw=1.0, label="stated overlap" if bound == overlap else None)
    axes.axhline(0, color="black", lw=0.6)
    axes.yaxis.set_major_formatter(lambda count, _: f"{abs(count):,.0f}")
    axes.set(xlim=(0, 1), xlabel=_LOGISTIC, ylabel="records")
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(ESTIMATED, fontsize=9)
    return figure


_MOST_BARS = 40
_POINTS = 2000  # records that are drawn, at even distances of more


def kept_figure(propensity: np.ndarray, used: np.ndarray, overlap: float) -> "Figure":
    """Draw the propensities that a release weights by against those without privacy, and where none is lost.

    Args:
        propensity: Without privacy, [n].
        used: By the released numbers, [n].
        overlap: As stated.

    Returns:
        A matplotlib figure, marked as the curator's; the caller saves it.
    """
    figure, axes = one_panel((6.6, 3.8))
    few = slice(None, None, -(-len(used) // _POINTS))
    axes.plot(propensity[few], used[few], ".", color="C0", ms=3, alpha=0.4, label="records")
    axes.plot([overlap, 1 - overlap], [overlap, 1 - overlap], color="black", lw=1.0, label="all of it kept")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=_LOGISTIC, ylabel="propensity in use")
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(ESTIMATED, fontsize=9)
    return figure


def bars_figure(
    names: Sequence[str],
    values: Sequence[float],
    label: str,
    within: Sequence[float] = (),
    planned: float | None = None,
    title: str = "",
) -> "Figure":
    """Draw a number of each name as a bar, with a part of it, and what was planned.

    Args:
        names: Of the bars, from above; many are cut.
        values: Their lengths.
        label: Of the axis.
        within: Lengths of the parts; none draws none.
        planned: What was planned, as a line; None draws none.
        title: Printed above.
    """
    names, values, within = names[:_MOST_BARS], values[:_MOST_BARS], within[:_MOST_BARS]
    figure, axes = one_panel((6.6, 1.1 + 0.28 * len(names)))
    places = np.arange(len(names))
    axes.barh(places, values, 0.7, color="C0", alpha=0.45 if len(within) else 1.0)
    if len(within):
        axes.barh(places, within, 0.3, color="C0")
    if planned is not None:
        axes.axvline(planned, color="black", ls="--", lw=1.0, label="planned")
        axes.legend(fontsize=8, frameon=False)
    row_names(axes, places, names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(label, fontsize=9)
    axes.set_title(title, fontsize=9)
    return figure
