"""The DP-CATE paper's cohort: intensive-care stays hour by hour, and the records that time points make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import plural
from torchdpcate.data.facts import check_integer
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

RED_CELLS = "red_blood_cell_count"
"""The variable whose later values are the outcome."""
INVASIVE_VENTILATION = 225792
"""Item of PROCEDUREEVENTS: from when to when a person was ventilated through a tube."""
VENTILATOR_SETTINGS = (
    *(445, 448, 449, 450, 1340, 1486, 1600, 224687),  # minute volume
    *(639, 654, 681, 682, 683, 684, 224684, 224685, 224686),  # tidal volume
    *(218, 436, 444, 459, 535, 224695, 224696, 224697, 224746, 224747),  # airway pressure
    *(221, 1, 1211, 1655, 2000, 226873, 224738, 224419, 224750, 227187),  # inspiratory pressure and time
    *(543, 5865, 5866, 224707, 224709, 224705, 224706),  # plateau pressure, release ventilation
    *(60, 437, 505, 506, 686, 220339, 224700, 3459),  # end-expiratory pressure, high pressure relief
    *(501, 502, 503, 224702, 223, 667, 668, 669, 670, 671, 672, 224701),  # pressure control and support
)
"""Items of CHARTEVENTS that are charted of a ventilated person alone (mimic-code, concepts/durations)."""
_MOST_IMPLAUSIBLE = 0.01  # of a variable's values; more are another unit


@dataclass(frozen=True)
class Variable:
    """A measurement.

    Attributes:
        name: Its column.
        extract: Its name in MIMIC-Extract.
        unit: What it is measured in.
        low: Values below are errors of measurement or of unit, and count as missing.
        high: Values above, likewise.
        chart: Items of CHARTEVENTS, of CareVue (MIMIC-III alone) and of MetaVision (both).
        lab: Items of LABEVENTS.
        units: Factor to ``unit`` by the unit that the tables write, in lower case; a missing one is ``unit``.
    """

    name: str
    extract: str
    unit: str
    low: float
    high: float
    chart: tuple[int, ...]
    lab: tuple[int, ...] = ()
    units: Mapping[str, float] = field(default_factory=dict)


# Items as MIMIC-Extract groups them (Wang et al. 2020, resources/itemid_to_variable_map.csv), without settings of the
# ventilator and spontaneous breaths beside mechanical ones. Plausible ranges are the widest of a living patient.
VARIABLES = (
    Variable(
        "heart_rate", "heart rate", "beats/min", 10, 350, (211, 220045), units={"bpm": 1, "beats/min": 1, "/min": 1}
    ),
    Variable(
        "sodium", "sodium", "mEq/L", 80, 225, (837, 1536, 220645, 226534), (50824, 50983), {"meq/l": 1, "mmol/l": 1}
    ),
    Variable(
        RED_CELLS,
        "red blood cell count",
        "10^6/uL",
        0.3,
        10,
        (833,),
        (51279,),
        {"m/ul": 1, "/mic l": 1, "10^6/ul": 1, "10^12/l": 1, "x10^6/ul": 1},
    ),
    Variable(
        "glucose",
        "glucose",
        "mg/dL",
        33,
        2200,
        (807, 811, 1529, 220621, 225664, 226537),
        (50809, 50931),
        {"mg/dl": 1, "mmol/l": 18.016},
    ),
    Variable("hematocrit", "hematocrit", "%", 5, 75, (813, 220545), (50810, 51221), {"%": 1, "l/l": 100}),
    Variable(
        "respiratory_rate",
        "respiratory rate",
        "breaths/min",
        1,
        200,
        (618, 615, 220210, 224690),
        units={"bpm": 1, "insp/min": 1, "breaths/min": 1, "/min": 1},
    ),
)
"""In the order of the columns of ``Hours.values``."""


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
            check_integer(f"data.{name}", getattr(self, name))


def numbers(column: "pd.Series", where: Any) -> "pd.Series":
    """Return a column as numbers; what is missing stays so.

    Raises:
        InputError: Values that are no numbers (how many).
    """
    import pandas as pd

    found = pd.to_numeric(column, errors="coerce")
    wrong = int((found.isna() & column.notna()).sum())
    if wrong:
        raise InputError(
            f"{where}: column {column.name!r} has {plural(wrong, 'non-numeric value')}; correct these rows"
        )
    return found


def refuse_twice(frame: "pd.DataFrame", key: Sequence[str], where: Any, what: str) -> None:
    """Refuse a table with several rows of the same key.

    Raises:
        InputError: Says how many.
    """
    twice = int(frame.duplicated(list(key)).sum())
    if twice:
        raise InputError(f"{where}: {plural(twice, what)} there twice; remove the duplicates")


def plausible(values: np.ndarray, where: Any) -> np.ndarray:
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
