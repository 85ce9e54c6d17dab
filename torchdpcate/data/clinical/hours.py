"""Intensive-care stays hour by hour, and the records that time points of them make."""

from dataclasses import dataclass

import numpy as np

from torchdpcate.data._arrays import plural
from torchdpcate.data.clinical.variables import RED_CELLS, VARIABLES
from torchdpcate.errors import InputError

_MOST_IMPLAUSIBLE = 0.01  # of a variable's values; more are another unit


@dataclass(frozen=True, eq=False)
class Hours:
    """Stays hour by hour, each from its hour 0 on, one after the other.

    Attributes:
        person: Number of the person, [n].
        stay: Position of the stay, counted from 0 and ascending, [n].
        values: Mean of each of ``VARIABLES`` in that hour, NaN where it was not measured, float64 [n, 6].
        ventilated: Whether the person was ventilated, bool [n].
        age: In years; of the stay, [stays].
        gender: ``"F"`` or ``"M"``; of the stay, [stays].
    """

    person: np.ndarray
    stay: np.ndarray
    values: np.ndarray
    ventilated: np.ndarray
    age: np.ndarray
    gender: np.ndarray

    @property
    def n(self) -> int:
        """Number of hours of all stays."""
        return len(self.stay)


@dataclass(frozen=True)
class Window:
    """Where a time point's covariates and outcome lie.

    Attributes:
        before: Covariates are averages over so many hours before it.
        after: The outcome is the average over so many hours from it on, within the stay.

    Raises:
        InputError: Not positive integers.
    """

    before: int = 10
    after: int = 24

    def __post_init__(self) -> None:
        for name in ("before", "after"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"data.{name} = {value!r}: give a positive integer of hours")


def plausible(values: np.ndarray, where: str) -> np.ndarray:
    """Return values [n, 6] with NaN in place of those that no living patient has.

    Args:
        values: In the units of ``VARIABLES``.
        where: The file, for messages.

    Raises:
        InputError: So many of a variable are implausible that they are in another unit.
    """
    values = values.copy()
    for column, variable in zip(values.T, VARIABLES, strict=True):
        with np.errstate(invalid="ignore"):
            outside = (column < variable.low) | (column > variable.high)
        if outside.sum() > _MOST_IMPLAUSIBLE * np.isfinite(column).sum():
            raise InputError(
                f"{where}: {plural(int(outside.sum()), 'value')} of {variable.extract!r} outside [{variable.low:g}, "
                f"{variable.high:g}] {variable.unit}, too many for errors; are some in another unit? convert them to "
                f"{variable.unit}"
            )
        column[outside] = np.nan
    return values


def time_points(hours: Hours, window: Window) -> np.ndarray:
    """Return the hours that make records: each variable measured in the window before, the outcome in the one after.

    Only counts decide, and only those of the stay itself.

    Args:
        hours: Stays hour by hour.
        window: The windows.

    Returns:
        Positions, ascending, [m].
    """
    seen = np.isfinite(hours.values)
    counts = np.concatenate([np.zeros((1, seen.shape[1]), dtype=np.int64), seen.cumsum(0, dtype=np.int64)])
    start = np.searchsorted(hours.stay, hours.stay, side="left")
    end = np.searchsorted(hours.stay, hours.stay, side="right")
    at = np.arange(hours.n)
    inside = at - start >= window.before
    measured = (counts[at] > counts[np.maximum(at - window.before, 0)]).all(1)
    later = np.minimum(at + window.after, end)
    outcome = counts[later, _outcome()] > counts[at, _outcome()]
    known = np.isfinite(hours.age)[hours.stay]
    return np.flatnonzero(inside & measured & outcome & known)


def records_at(hours: Hours, points: np.ndarray, window: Window) -> dict[str, np.ndarray]:
    """Return the records of time points, columns of the shipped domain ``mimic``.

    Each average is of the stay's own values, added in the order of the hours.

    Args:
        hours: Stays hour by hour.
        points: Positions from ``time_points``, [m].
        window: The windows.

    Returns:
        Columns [m] by name.
    """
    before = hours.values[points[:, None] - np.arange(window.before, 0, -1)]
    place = points[:, None] + np.arange(window.after)
    within = hours.stay[np.minimum(place, hours.n - 1)] == hours.stay[points][:, None]
    within &= place < hours.n
    after = np.where(within, hours.values[np.minimum(place, hours.n - 1), _outcome()], np.nan)
    stay = hours.stay[points]
    return {
        **{variable.name: column for variable, column in zip(VARIABLES, np.nanmean(before, 1).T, strict=True)},
        "age": hours.age[stay],
        "gender": hours.gender[stay],
        "vent": hours.ventilated[points].astype(np.int64),
        f"{RED_CELLS}_after": np.nanmean(after, 1),
    }


def _outcome() -> int:
    return next(place for place, variable in enumerate(VARIABLES) if variable.name == RED_CELLS)
