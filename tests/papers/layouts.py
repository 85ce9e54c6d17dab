"""Invented intensive-care records in the layouts of MIMIC-Extract, MIMIC-III and MIMIC-IV."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd

from torchdpcate.papers.mimic_hours import VARIABLES

USUAL = (85.0, 138.0, 3.5, 140.0, 31.0, 19.0)
"""A value of each variable."""


def extract_tables(
    persons: int = 12, hours: int = 40, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return vitals_labs, interventions and patients of persons with one stay each."""
    rng = np.random.default_rng(seed)
    stays = [(10_000 + p, 100 + p, 200 + p) for p in range(persons)]
    index = pd.MultiIndex.from_tuples(
        [(*stay, hour) for stay in stays for hour in range(hours)],
        names=["subject_id", "hadm_id", "icustay_id", "hours_in"],
    )
    columns = pd.MultiIndex.from_tuples(
        [(v.extract, part) for v in VARIABLES for part in ("count", "mean", "std")],
        names=["LEVEL2", "Aggregation Function"],
    )
    vitals = pd.DataFrame(0.0, index=index, columns=columns)
    for variable, usual in zip(VARIABLES, USUAL, strict=True):
        values = usual * rng.uniform(0.95, 1.05, len(index))
        vitals[variable.extract, "mean"] = np.where(rng.random(len(index)) < 0.7, values, np.nan)
    vent = np.repeat(np.arange(persons) % 2, hours)
    interventions = pd.DataFrame({"vent": vent, "vaso": 0}, index=index)
    patients = pd.DataFrame(
        {"gender": ["F", "M"] * (persons // 2), "age": [300.0, *rng.uniform(20, 80, persons - 1)]},
        index=pd.MultiIndex.from_tuples(stays, names=["subject_id", "hadm_id", "icustay_id"]),
    )
    return vitals, interventions, patients


def write_extract(folder: Path, *tables: pd.DataFrame) -> Path:
    """Write parquet exports of MIMIC-Extract's tables."""
    folder.mkdir(exist_ok=True)
    for name, table in zip(("vitals_labs", "interventions", "patients"), tables, strict=True):
        flat = table.copy()
        flat.columns = [str(column) for column in flat.columns]
        flat.reset_index().to_parquet(folder / f"{name}.parquet")
    return folder


def raw_tables(version: str, persons: int = 6, hours: int = 40, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Return MIMIC's tables, by their names in the version, of persons with one stay each."""
    rng, begin = np.random.default_rng(seed), pd.Timestamp("2150-03-01 10:30:00")
    ids = np.arange(10_000, 10_000 + persons)
    stay = "stay_id" if version == "iv" else "icustay_id"
    stays = pd.DataFrame({"subject_id": ids, "hadm_id": ids, stay: ids, "intime": begin})
    stays["outtime"] = begin + pd.Timedelta(hours=hours, minutes=10)
    charted, tested = [], []
    for variable, usual in zip(VARIABLES, USUAL, strict=True):
        item = variable.lab[-1] if variable.lab else variable.chart[-1]
        for person in ids:
            for hour in range(hours + 1):
                time = begin + pd.Timedelta(hours=hour, minutes=5)
                row = (person, item, time, usual * rng.uniform(0.95, 1.05), next(iter(variable.units)))
                (tested if variable.lab else charted).append(row)
    columns = ["subject_id", "itemid", "charttime", "valuenum", "valueuom"]
    procedures = pd.DataFrame({"subject_id": ids[1::2], "itemid": 225792})
    procedures["starttime"] = begin + pd.Timedelta(hours=2)
    procedures["endtime"] = begin + pd.Timedelta(hours=hours - 1)
    if version == "iv":
        patients = pd.DataFrame({"subject_id": ids, "gender": ["F", "M"] * (persons // 2), "anchor_age": 60})
        patients["anchor_year"] = 2148
        names = ("hosp/patients", "icu/icustays", "icu/chartevents", "hosp/labevents", "icu/procedureevents")
    else:
        patients = pd.DataFrame({"subject_id": ids, "gender": ["F", "M"] * (persons // 2)})
        patients["dob"] = begin - pd.Timedelta(days=62 * 365.2425)
        names = ("PATIENTS", "ICUSTAYS", "CHARTEVENTS", "LABEVENTS", "PROCEDUREEVENTS_MV")
    frames = (patients, stays, *(pd.DataFrame(rows, columns=columns) for rows in (charted, tested)), procedures)
    return dict(zip(names, frames, strict=True))


def write_raw(folder: Path, tables: dict[str, pd.DataFrame], upper: bool = False) -> Path:
    """Write tables as csv.gz, their columns in upper case if wanted."""
    for name, table in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        shown = table.rename(columns=str.upper) if upper else table
        with gzip.open(path, "wt") as file:
            shown.to_csv(file, index=False, date_format="%Y-%m-%d %H:%M:%S")
    return folder
