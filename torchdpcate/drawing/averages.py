"""The figures of an average effect: its interval, and the balance of the arms."""

from typing import TYPE_CHECKING

from torchdpcate.errors import InputError
from torchdpcate.evaluation.balance_figure import IntervalRow, balance_figure, interval_figure
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.estimate import Estimate
from torchdpcate.release.views import quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_average(
    release: AverageEffectRelease, *, balance: bool = False, level: float = 0.95, ax: "Axes | None" = None
) -> "Figure":
    """Return the figure of ``AverageEffectRelease.plot``; arguments and errors are its own."""
    quantile(level)  # refuses what is no level
    claim = release.privacy.claim
    if balance:
        if release.balance is None:
            raise InputError(
                "balance = True: this release says nothing of the arms' balance; it does where it was fitted with "
                "balance statistics or with loss=balancing"
            )
        return balance_figure(release.balance, claim=claim, ax=ax)
    rows = released_rows(release, release.estimand, level)
    return interval_figure(rows, level=level, claim=claim, assumptions=release.assumptions, ax=ax)


def released_rows(release: AverageEffectRelease, label: str, level: float = 0.95) -> list[IntervalRow]:
    """Return the lines of a release's estimate, and of the difference in means if it was released.

    Args:
        release: What was released.
        label: What the estimate is called.
        level: Probability of the intervals.
    """
    beside = release.difference_in_means
    rows = [interval_row(release, label, release.main, level)]
    if beside is None:
        return rows
    return [*rows, interval_row(release, f"{label}: difference in means", beside, level)]


def interval_row(
    release: AverageEffectRelease, label: str, estimate: Estimate, level: float = 0.95, secret: bool = False
) -> IntervalRow:
    """Return the line of an estimate on the records of a release.

    Args:
        release: Whose outcome range and unit of privacy hold.
        label: What the estimate is called.
        estimate: The estimate, released or not.
        level: Probability of its interval, in (0, 1).
        secret: Whether it has no privacy guarantee.
    """
    if estimate.law is None and not estimate.noise_dominated:
        return IntervalRow(label, estimate.value, secret=secret)
    low, high = estimate.range(level, release.domain.outcome_range, release.privacy.protected.records)
    return IntervalRow(label, estimate.value, low, high, secret)
