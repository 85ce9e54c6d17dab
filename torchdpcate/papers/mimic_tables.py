"""MIMIC-III's and MIMIC-IV's tables as downloaded, csv or csv.gz, streamed: stays hour by hour."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.data._arrays import check_columns, listed, plural
from torchdpcate.data._csv import csv_batches, csv_names
from torchdpcate.data._frames import arrow_path, readable
from torchdpcate.errors import InputError
from torchdpcate.papers.mimic_hours import (
    INVASIVE_VENTILATION,
    VARIABLES,
    VENTILATOR_SETTINGS,
    Hours,
    numbers,
    plausible,
    refuse_twice,
)

if TYPE_CHECKING:
    import pandas as pd

_SHORTEST, _LONGEST, _YOUNGEST = 12, 240, 15  # hours and years: the cohort of MIMIC-Extract
_YEAR = 365.2425  # days
_SAME_EPISODE = 8  # hours between two settings of a ventilator at most (mimic-code, concepts/durations)
_GRID = 10_000  # values are added as integers of 1/10,000, so that their order, other persons' rows, changes no bit
_EVENT, _VALUES = ("subject_id", "itemid", "charttime"), ("valuenum", "valueuom")
_LARGEST = 1e6  # beyond it no measurement is plausible


@dataclass(frozen=True)
class _Layout:
    """How a version of MIMIC calls its tables and columns.

    Attributes:
        name: Of the version.
        tables: Files by what they are, folders included.
        stay: Column of a stay's number.
        settings: Whether ventilation is read off ventilator settings too.
    """

    name: str
    tables: dict[str, str]
    stay: str
    settings: bool


_LAYOUTS = (
    _Layout(
        "MIMIC-III",
        {
            "patients": "PATIENTS",
            "stays": "ICUSTAYS",
            "chart": "CHARTEVENTS",
            "lab": "LABEVENTS",
            "procedures": "PROCEDUREEVENTS_MV",
        },
        "icustay_id",
        True,
    ),
    _Layout(
        "MIMIC-IV",
        {
            "patients": "hosp/patients",
            "stays": "icu/icustays",
            "chart": "icu/chartevents",
            "lab": "hosp/labevents",
            "procedures": "icu/procedureevents",
        },
        "stay_id",
        False,
    ),
)


def read_tables(path: str | Path) -> Hours:
    """Read stays hour by hour: of each person the first in intensive care, if it has 12 to 240 hours from age 15 on.

    ``CHARTEVENTS`` and ``LABEVENTS`` are streamed, and only sums and counts by hour are kept; MIMIC-III's column names
    may be in upper or lower case.

    Args:
        path: The folder of MIMIC-III or MIMIC-IV as downloaded, with csv or csv.gz files.

    Raises:
        InputError: Tables are missing (which), columns are missing, stays are there
            twice, end before they begin or belong to no patient, times or values cannot be read, or units are mixed.
    """
    layout = max(_LAYOUTS, key=lambda one: sum(_file(Path(path), table) is not None for table in one.tables.values()))
    files = _files(Path(path), layout)
    stays = _stays(files, layout)
    grid = _Grid(stays)
    charted = {str(item): place for place, v in enumerate(VARIABLES) for item in v.chart}
    tested = {str(item): place for place, v in enumerate(VARIABLES) for item in v.lab}
    settings = {str(item) for item in VENTILATOR_SETTINGS} if layout.settings else set()
    for events in _some(files["chart"], (*_EVENT, *_VALUES), charted.keys() | settings):
        grid.mark(events[events["itemid"].isin(settings)], files["chart"])
        grid.add(events[events["itemid"].isin(charted)], charted, files["chart"])
    for events in _some(files["lab"], (*_EVENT, *_VALUES), tested.keys()):
        grid.add(events, tested, files["lab"])
    times = ("subject_id", "itemid", "starttime", "endtime")
    for events in _rows(files["procedures"], times, {str(INVASIVE_VENTILATION)}):
        grid.ventilate(events, files["procedures"])
    return grid.hours(str(path))


def _files(folder: Path, layout: _Layout) -> dict[str, Path]:
    """Return the file of each table.

    Raises:
        InputError: Some are missing.
    """
    found = {key: _file(folder, table) for key, table in layout.tables.items()}
    missing = [layout.tables[key] for key, file in found.items() if file is None]
    if missing:
        raise InputError(
            f"data.path = {folder}: has no table {listed(missing)} (.csv or .csv.gz); {layout.name} has "
            f"{listed(layout.tables.values())}"
        )
    return {key: file for key, file in found.items() if file is not None}


def holds_tables(folder: Path) -> bool:
    """Return whether a folder has one of the tables that either version names."""
    return any(_file(folder, table) for one in _LAYOUTS for table in one.tables.values())


def _file(folder: Path, table: str) -> Path | None:
    """Return the file of a table, whatever the case of its name; MIMIC-IV's may lie without their folders."""
    *inner, name = table.split("/")
    for place in (folder.joinpath(*inner), folder):
        files = {path.name.lower(): path for path in place.iterdir()} if place.is_dir() else {}
        for ending in (".csv.gz", ".csv"):
            if (found := files.get(f"{name.lower()}{ending}")) is not None:
                return found
    return None


def _rows(file: Path, columns: Sequence[str], items: Collection[str] | None = None) -> "Iterator[pd.DataFrame]":
    """Yield the columns of a file as text, by their names in lower case; of events only those of the items."""
    import pyarrow as pa
    from pyarrow import compute

    path = arrow_path(file)
    with readable(file):
        names = {name.lower(): name for name in reversed(csv_names(path))}
        check_columns(list(names), list(columns), str(file))
        wanted = None if items is None else pa.array(sorted(items), pa.string())
        for batch in csv_batches(path, [names[column] for column in columns]):
            batch = batch.rename_columns(list(columns))
            if wanted is not None:
                batch = batch.filter(compute.is_in(batch["itemid"], value_set=wanted))
            if batch.num_rows:
                yield batch.to_pandas()


def _some(file: Path, columns: Sequence[str], items: Collection[str]) -> "Iterator[pd.DataFrame]":
    """Yield as ``_rows``; refuse a file without any of the items, as one that was not downloaded to its end."""
    found = False
    for frame in _rows(file, columns, items):
        found = True
        yield frame
    if not found:
        raise InputError(f"{file}: holds none of the items of the measurements; is it whole? download it anew")


def _read(file: Path, columns: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    frames = list(_rows(file, columns))
    if not frames:
        raise InputError(f"{file}: holds no rows")
    return pd.concat(frames, ignore_index=True)


def _times(column: "pd.Series", file: Path) -> "pd.Series":
    """Return times; a missing one stays missing.

    Raises:
        InputError: What is no time (how many).
    """
    import pandas as pd

    times = pd.to_datetime(column, format="%Y-%m-%d %H:%M:%S", errors="coerce")
    wrong = int((times.isna() & column.notna()).sum())
    if wrong:
        raise InputError(f"{file}: column {column.name!r} has {plural(wrong, 'value')} not written YYYY-MM-DD HH:MM:SS")
    return times


def _stays(files: dict[str, Path], layout: _Layout) -> "pd.DataFrame":
    """Return each person's first stay, if of the cohort: ``person``, ``begin``, ``hours``, ``age``, ``gender``."""
    file = files["stays"]
    stays = _read(file, ("subject_id", layout.stay, "intime", "outtime"))
    refuse_twice(stays, [layout.stay], file, "stay")
    stays["begin"], end = _times(stays["intime"], file), _times(stays["outtime"], file)
    reversed_ = int((end < stays["begin"]).sum())
    if reversed_:
        raise InputError(f"{file}: {plural(reversed_, 'stay')} with outtime before intime; correct these rows")
    hours = (end - stays["begin"]).dt.total_seconds() // 3600
    patients = _patients(files["patients"], layout)
    first = (
        stays.assign(hours=hours)
        .dropna(subset=["begin", "hours"])
        .sort_values(["subject_id", "begin", layout.stay], kind="stable")
        .drop_duplicates("subject_id")
        .merge(patients, on="subject_id", how="left", indicator=True)
    )
    without = int((first["_merge"] != "both").sum())
    if without:
        raise InputError(
            f"{file}: {plural(without, 'person')} not in {files['patients'].name}; take both of one release"
        )
    if layout.stay == "stay_id":
        first["age"] = first["anchor_age"] + first["begin"].dt.year - first["anchor_year"]
    else:  # in seconds: persons older than 89 are born 300 years before, too long for nanoseconds
        days = (first["begin"].to_numpy("datetime64[s]") - first["dob"].to_numpy("datetime64[s]")).astype(
            np.int64
        ) / 86400
        first["age"] = days / _YEAR
    kept = first[(first["hours"] >= _SHORTEST) & (first["hours"] <= _LONGEST) & (first["age"] >= _YOUNGEST)]
    return kept.rename(columns={"subject_id": "person"})[["person", "begin", "hours", "age", "gender"]].reset_index(
        drop=True
    )


def _patients(file: Path, layout: _Layout) -> "pd.DataFrame":
    own = ("anchor_age", "anchor_year") if layout.stay == "stay_id" else ("dob",)
    patients = _read(file, ("subject_id", "gender", *own))
    refuse_twice(patients, ["subject_id"], file, "patient")
    for column in own:
        patients[column] = (_times if column == "dob" else numbers)(patients[column], file)
    return patients


class _Grid:
    """Sums and counts of values by hour of a stay.

    Args:
        stays: One stay a person.
    """

    def __init__(self, stays: "pd.DataFrame") -> None:
        import pandas as pd

        self._stays = stays
        lengths = stays["hours"].to_numpy(dtype=np.int64) + 1
        self._first = np.concatenate([[0], np.cumsum(lengths)])
        self._place = pd.Series(np.arange(len(stays)), index=stays["person"])
        self._begin = stays["begin"].to_numpy("datetime64[s]")
        self._lengths = lengths
        shape = int(self._first[-1]), len(VARIABLES)
        self._sums, self._counts = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self._ventilated, self._settings = np.zeros(shape[0], dtype=bool), np.zeros(shape[0], dtype=bool)

    def add(self, events: "pd.DataFrame", items: dict[str, int], file: Path) -> None:
        """Add measurements."""
        events = events[events["valuenum"].notna()]
        if not len(events):
            return
        variable = events["itemid"].map(items).to_numpy(dtype=np.int64)
        values = numbers(events["valuenum"], file).to_numpy(dtype=np.float64) * _factors(events, variable, file)
        row = self._rows(events["subject_id"], _times(events["charttime"], file))
        kept = (row >= 0) & (np.abs(values) <= _LARGEST)
        place = row[kept], variable[kept]
        np.add.at(self._sums, place, np.rint(values[kept] * _GRID).astype(np.int64))
        np.add.at(self._counts, place, 1)

    def mark(self, settings: "pd.DataFrame", file: Path) -> None:
        """Note hours in which a ventilator was set."""
        if len(settings):
            row = self._rows(settings["subject_id"], _times(settings["charttime"], file))
            self._settings[row[row >= 0]] = True

    def ventilate(self, events: "pd.DataFrame", file: Path) -> None:
        """Note hours of ventilation from a time to another."""
        place = events["subject_id"].map(self._place)
        begin, end = _times(events["starttime"], file), _times(events["endtime"], file)
        reversed_ = int((end < begin).sum())
        if reversed_:
            raise InputError(f"{file}: {plural(reversed_, 'event')} with endtime before starttime; correct these rows")
        known = (place.notna() & begin.notna() & end.notna()).to_numpy()
        stay = place[known].to_numpy(dtype=np.int64)
        low, high = (self._hour(stay, times[known]) for times in (begin, end))
        low, high = np.maximum(low, 0), np.minimum(high, self._lengths[stay] - 1)
        steps = np.zeros(len(self._ventilated) + 1, dtype=np.int64)
        some = low <= high
        np.add.at(steps, self._first[stay[some]] + low[some], 1)
        np.add.at(steps, self._first[stay[some]] + high[some] + 1, -1)
        self._ventilated |= steps.cumsum()[:-1] > 0

    def hours(self, where: str) -> Hours:
        """Return the stays hour by hour."""
        stay = np.repeat(np.arange(len(self._lengths)), self._lengths)
        with np.errstate(invalid="ignore"):
            means = np.where(self._counts > 0, self._sums / np.maximum(self._counts, 1) / _GRID, np.nan)
        return Hours(
            person=self._stays["person"].to_numpy()[stay],
            stay=stay,
            values=plausible(means, where),
            ventilated=self._ventilated | _episodes(self._settings, stay),
            age=self._stays["age"].to_numpy(dtype=np.float64),
            gender=self._stays["gender"].astype(str).to_numpy(dtype=object),
        )

    def _rows(self, persons: "pd.Series", times: "pd.Series") -> np.ndarray:
        """Return each event's row; -1 outside the stay."""
        place = persons.map(self._place)
        known = (place.notna() & times.notna()).to_numpy()
        stay = place[known].to_numpy(dtype=np.int64)
        hour = self._hour(stay, times[known])
        inside = (hour >= 0) & (hour < self._lengths[stay])
        rows = np.full(len(persons), -1, dtype=np.int64)
        rows[known] = np.where(inside, self._first[stay] + hour, -1)
        return rows

    def _hour(self, stay: np.ndarray, times: "pd.Series") -> np.ndarray:
        return (times.to_numpy("datetime64[s]") - self._begin[stay]).astype(np.int64) // 3600


def _factors(events: "pd.DataFrame", variable: np.ndarray, file: Path) -> np.ndarray:
    """Return what turns each value into its variable's unit, [n].

    Raises:
        InputError: A unit that is none of the variable's (which variable, how many).
    """
    units = events["valueuom"].fillna("").str.strip().str.lower().to_numpy(dtype=object)
    factors = np.ones(len(events))
    for place, known in enumerate(VARIABLES):
        own = np.flatnonzero(variable == place)
        found = np.array([1.0 if not unit else known.units.get(unit, np.nan) for unit in units[own]], dtype=np.float64)
        wrong = int(np.isnan(found).sum())
        if wrong:
            raise InputError(
                f"{file}: {plural(wrong, 'value')} of {known.extract!r} in a unit other than {listed(known.units)}; "
                f"convert them to {known.unit}"
            )
        factors[own] = found
    return factors


def _episodes(settings: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """Return hours from the first to the last of settings that follow each other within eight hours in one stay."""
    at = np.flatnonzero(settings)
    if not len(at):
        return settings
    same = (np.diff(at) <= _SAME_EPISODE) & (stay[at[1:]] == stay[at[:-1]])
    steps = np.zeros(len(settings) + 1, dtype=np.int64)
    np.add.at(steps, at, 1)
    np.add.at(steps, np.where(np.append(same, False), np.append(at[1:], 0), at + 1), -1)
    return steps.cumsum()[:-1] > 0
