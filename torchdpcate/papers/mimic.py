"""The DP-CATE paper's cohort as data: MIMIC-Extract's output, or MIMIC's tables as downloaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdpcate.data._arrays import plural
from torchdpcate.data._frames import about, read_frame
from torchdpcate.data.checked import encode_records, warn_clipped
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import check_integer
from torchdpcate.data.persons import person_rows
from torchdpcate.data.records import check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import PublicStudy, Study, StudySource
from torchdpcate.errors import InputError
from torchdpcate.papers.mimic_hours import (
    VARIABLES,
    Hours,
    Window,
    numbers,
    plausible,
    records_at,
    refuse_twice,
    time_points,
)
from torchdpcate.papers.mimic_tables import holds_tables, read_tables
from torchdpcate.privacy.unit import PrivacyUnit

if TYPE_CHECKING:
    import pandas as pd


_EXPORT = (
    "give a folder of MIMIC-Extract's tables vitals_labs, interventions and patients in parquet; of its HDF5 file, by "
    "pandas: t = read_hdf(FILE, TABLE); t.columns = map(str, t.columns); t.reset_index().to_parquet(...)"
)
_STAY = ("subject_id", "hadm_id", "icustay_id")
_HOUR = (*_STAY, "hours_in")
_MEANS = ("vitals_labs_mean", "vitals_labs")  # the first is the smaller


def read_extract(path: str | Path) -> Hours:
    """Read stays hour by hour from MIMIC-Extract's output; only the columns of the cohort stay in memory.

    Args:
        path: A folder with a parquet file of each of the tables ``vitals_labs_mean`` (or ``vitals_labs``),
            ``interventions`` and ``patients``, whose name begins so, grouped by ``LEVEL2``.

    Raises:
        InputError: No such folder, tables or variables are missing (which), stays or hours are there twice, hours are
            not 0, 1, 2, ... of each stay, values are no numbers, units are mixed, or a stay has no patient.
    """
    if not os.path.exists(path):
        raise InputError(f"data.path = {path}: no such folder")
    if not os.path.isdir(path):
        raise InputError(f"data.path = {path}: is no folder; {_EXPORT}")
    measured, interventions, patients = _tables(Path(path))
    refuse_twice(patients, _STAY, f"{path}, table patients", "stay")
    for frame, name in ((measured, "vitals_labs"), (interventions, "interventions")):
        refuse_twice(frame, _HOUR, f"{path}, table {name}", "hour")
    hours = measured.merge(interventions, on=list(_HOUR), how="outer", indicator=True)
    apart = int((hours["_merge"] != "both").sum())
    if apart:
        raise InputError(
            f"{path}: {plural(apart, 'hour')} in one of vitals_labs and interventions alone; export both anew"
        )
    hours = hours.sort_values(list(_HOUR), kind="stable", ignore_index=True)
    stay = hours.groupby(list(_STAY), sort=True).ngroup().to_numpy()
    expected = hours.groupby(stay).cumcount()
    wrong = len(np.unique(stay[(hours["hours_in"] != expected).to_numpy()]))
    if wrong:
        raise InputError(
            f"{path}: hours_in does not count 0, 1, 2, ... in {plural(wrong, 'stay')}; "
            "times are missing or out of order"
        )
    where = f"{path}, table vitals_labs"
    vent = numbers(hours["vent"], f"{path}, table interventions").to_numpy(np.float64)
    other = int((~np.isin(vent, (0.0, 1.0))).sum())
    if other:
        raise InputError(f"{path}: vent has {plural(other, 'value')} other than 0 and 1")
    stays = hours.loc[expected.to_numpy() == 0, list(_STAY)].merge(patients, on=list(_STAY), how="left", indicator=True)
    without = int((stays["_merge"] != "both").sum())
    if without:
        raise InputError(f"{path}: {plural(without, 'stay')} not in table patients; export the tables anew")
    return Hours(
        person=hours["subject_id"].to_numpy(),
        stay=stay,
        values=plausible(np.stack([numbers(hours[v.extract], where) for v in VARIABLES], 1, dtype=np.float64), path),
        ventilated=vent == 1,
        age=numbers(stays["age"], f"{path}, table patients").to_numpy(np.float64),
        gender=stays["gender"].astype(str).to_numpy(dtype=object),
    )


def _tables(folder: Path) -> "tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]":
    """Read the tables of a folder."""
    files = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.suffix in (".parquet", ".pq")}

    def file_of(*tables: str) -> Path:
        for table in tables:
            for name, path in files.items():
                if name.startswith(table):
                    return path
        raise InputError(f"data.path = {folder}: no parquet file of table {' or '.join(tables)}; {_EXPORT}")

    paths = file_of(*_MEANS), file_of("interventions"), file_of("patients")
    measured = read_frame(paths[0], [*_HOUR, *(str((v.extract, "mean")) for v in VARIABLES)])
    measured.columns = [*_HOUR, *(v.extract for v in VARIABLES)]
    patients = read_frame(paths[2], [*_STAY, "age", "gender"], text={"gender"})
    return measured, read_frame(paths[1], [*_HOUR, "vent"]), patients


PERSON = "subject_id"
"""MIMIC's number of a person."""


@dataclass(eq=False, repr=False)
class Mimic(StudySource):
    """Records of intensive-care patients at random time points: k of each person, read off MIMIC or MIMIC-Extract.

    Covariates are heart rate, sodium, red blood cell count, glucose, hematocrit and respiratory rate, averaged over the
    hours before a time point, age and gender; the treatment is ventilation at that time; the outcome is the red blood
    cell count averaged over the hours after (Schroder et al. 2025, section 6). A person has a record at every full hour
    at which all of them are known; ``per_person`` of these are drawn by hashes of the seed and their number, for them
    alone, so that the draw is part of the preparation of their record and costs nothing.

    Args:
        path: A folder of MIMIC-Extract's tables (Wang et al. 2020) in parquet, or of MIMIC-III or MIMIC-IV as
            downloaded, csv or csv.gz, which are streamed.
        domain: Public bounds of the cohort's columns.
        before: Hours before the time point over which covariates are averaged.
        after: Hours from the time point on over which the outcome is averaged.
        per_person: k, records of each person.
        out_of_bounds: ``"refuse"`` averages outside their bounds, or ``"clip"`` them; what the domain says is kept.
        queries: Size of the public grid.
        queries_path: File of public queries; replaces the grid.
        seed: Public seed of the time points.

    Raises:
        InputError: On ``load``, whatever in the data is not of the layout, or nobody has a record.

    Example:
        >>> study = Mimic("mimiciv/3.1", per_person=4).load()  # doctest: +SKIP
        >>> study.unit.records, study.schema.outcome  # doctest: +SKIP
        (4, 'red_blood_cell_count_after')
    """

    path: str | Path
    domain: TableSchema | Domain | Mapping[str, Any] | str | Path = "mimic"
    before: int = 10
    after: int = 24
    per_person: int = 1
    out_of_bounds: str = "refuse"
    queries: int = 300
    queries_path: str | Path | None = None
    seed: int = 0

    name = "mimic"

    def hours(self) -> Hours:
        """Read the stays hour by hour.

        Raises:
            InputError: The data are not of the layout.
        """
        return read_tables(self.path) if holds_tables(Path(self.path)) else read_extract(self.path)

    @property
    def unit(self) -> PrivacyUnit:
        """A person, with k records."""
        check_integer("data.per_person", self.per_person)
        return PrivacyUnit.person(PERSON, self.per_person)

    def public(self) -> PublicStudy:
        """Return schema, public queries and unit; neither the data nor their size is looked at."""
        schema = self._schema()
        return PublicStudy(schema, self.name, None, self._points(schema), unit=self.unit)

    def load(self) -> Study:
        """Read the data, and make k records of each person."""
        import pandas as pd

        schema, unit, window = self._schema(), self.unit, Window(self.before, self.after)
        hours = self.hours()
        points = time_points(hours, window)
        if not len(points):
            raise InputError(
                f"data.path = {self.path}: nobody has a time point with all measurements before and after it; bring "
                "more stays"
            )
        rows = person_rows(hours.person[points], self.per_person, self.seed).flatten().numpy()
        frame = pd.DataFrame(records_at(hours, points[rows], window))
        with about(self.path):
            records = encode_records(frame, schema)
            warn_clipped(records.clipped, schema)
            check_treatment(records.a, f"treatment column {schema.treatment!r}")
        return Study(records, schema, self._points(schema), None, self.name, unit=unit)

    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain).handling(self.out_of_bounds)
