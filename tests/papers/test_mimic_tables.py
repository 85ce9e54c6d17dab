import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.conftest import SHARED
from tests.papers.layouts import USUAL, raw_tables, write_raw
from torchdpcate.errors import InputError
from torchdpcate.papers.mimic import Mimic, read_extract
from torchdpcate.papers.mimic_hours import VARIABLES
from torchdpcate.papers.mimic_tables import read_tables

DEMO, EXTRACT = SHARED / "mimic_iii_demo", SHARED / "mimic_extract_layout"
demo = pytest.mark.skipif(not DEMO.exists(), reason="the demonstration of MIMIC-III is not here")


@pytest.mark.parametrize(("version", "upper"), [("iv", False), ("iii", False), ("iii", True)])
def test_values_ages_and_ventilation_by_hour(tmp_path, version: str, upper: bool) -> None:
    tables = raw_tables(version)
    hours = read_tables(write_raw(tmp_path, tables, upper))
    assert hours.n == 6 * 41
    lab = tables["hosp/labevents" if version == "iv" else "LABEVENTS"]
    sodium = lab[lab.itemid == 50983].valuenum.to_numpy()
    np.testing.assert_allclose(hours.values[:, 1], sodium, atol=1e-4)
    np.testing.assert_allclose(hours.age, 62, atol=0.01)
    assert hours.gender.tolist() == ["F", "M"] * 3
    expected = np.tile(np.isin(np.arange(41), np.arange(2, 40)), 6) & (np.repeat(np.arange(6), 41) % 2 == 1)
    assert (hours.ventilated == expected).all()
    study = Mimic(tmp_path).load()
    assert (study.n, study.name) == (6, "mimic")


def test_an_hour_is_the_mean_of_its_values_in_any_order_and_unit(tmp_path) -> None:
    tables = raw_tables("iv")
    lab = tables["hosp/labevents"]
    lab = pd.concat([lab, lab[:50].assign(valuenum=lab.valuenum[:50] * 1.01)])
    changed = lab.copy()
    glucose = (changed.itemid == 50931) & (np.arange(len(lab)) % 3 == 0)
    changed.loc[glucose, "valuenum"] = changed.valuenum[glucose] / 18.016
    changed.loc[glucose, "valueuom"] = "mmol/L"
    one = read_tables(write_raw(tmp_path / "a", tables | {"hosp/labevents": lab}))
    two = read_tables(write_raw(tmp_path / "b", tables | {"hosp/labevents": lab.sample(frac=1, random_state=0)}))
    other = read_tables(write_raw(tmp_path / "c", tables | {"hosp/labevents": changed}))
    np.testing.assert_array_equal(one.values, two.values)  # to the last bit
    np.testing.assert_allclose(one.values, other.values, rtol=1e-4)


def test_the_first_stay_of_a_person_counts_if_it_is_long_enough(tmp_path) -> None:
    tables = raw_tables("iv")
    stays = tables["icu/icustays"]
    later = stays[:2].assign(stay_id=[1, 2], intime=stays.intime + pd.Timedelta(days=9), outtime=pd.NaT)
    later["outtime"] = later.intime + pd.Timedelta(hours=50)
    stays.loc[5, "outtime"] = stays.intime[5] + pd.Timedelta(hours=5)  # too short
    tables["hosp/patients"].loc[4, "anchor_age"] = 9
    hours = read_tables(write_raw(tmp_path, tables | {"icu/icustays": pd.concat([later, stays])}))
    assert np.unique(hours.person).tolist() == ["10000", "10001", "10002", "10003"]
    assert hours.n == 4 * 41


def _changed(change: str) -> dict[str, pd.DataFrame]:
    tables = raw_tables("iv")
    stays, lab = tables["icu/icustays"], tables["hosp/labevents"]
    if change == "twice":
        tables["icu/icustays"] = pd.concat([stays, stays[:2]])
    elif change == "backwards":
        stays[["intime", "outtime"]] = stays[["outtime", "intime"]].to_numpy()
    elif change == "ventilation":
        procedures = tables["icu/procedureevents"]
        procedures["endtime"] = procedures["starttime"] - pd.Timedelta(hours=1)
    elif change == "unit":
        lab.loc[:9, "valueuom"] = "mg"
    elif change == "unsaid":
        lab.loc[lab.itemid == 50931, "valuenum"] /= 18.016
    elif change == "word":
        tables["hosp/labevents"] = lab.astype({"valuenum": object})
        tables["hosp/labevents"].loc[3, "valuenum"] = "see note"
    elif change == "time":
        tables["hosp/labevents"] = lab.astype({"charttime": str})
        tables["hosp/labevents"].loc[3, "charttime"] = "yesterday"
    elif change == "patients":
        tables["hosp/patients"] = tables["hosp/patients"][2:]
    elif change == "patient twice":
        tables["hosp/patients"] = pd.concat([tables["hosp/patients"]] * 2)
    elif change == "empty":
        tables["hosp/labevents"] = lab[:0]
    elif change == "column":
        tables["icu/chartevents"] = tables["icu/chartevents"].drop(columns="valueuom")
    return tables


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("twice", "icustays.csv.gz: 2 stays there twice"),
        ("backwards", "6 stays with outtime before intime"),
        ("ventilation", "3 events with endtime before starttime"),
        ("unit", "10 values of 'sodium' in a unit other than meq/l, mmol/l"),
        ("unsaid", r"values of 'glucose' outside \[33, 2200\] mg/dL, too many for errors"),
        ("word", "column 'valuenum' has 1 non-numeric value"),
        ("time", "column 'charttime' has 1 value not written YYYY-MM-DD HH:MM:SS"),
        ("patients", "2 persons not in patients.csv.gz"),
        ("patient twice", "6 patients there twice"),
        ("empty", "labevents.csv.gz: holds none of the items of the measurements"),
        ("column", "column 'valueuom' is missing"),
    ],
)
def test_faults_are_refused_with_their_number(tmp_path, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_tables(write_raw(tmp_path, _changed(change)))


def test_missing_tables_are_named(tmp_path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        Mimic(tmp_path / "none").hours()
    write_raw(tmp_path / "iv", {k: v for k, v in raw_tables("iv").items() if "events" not in k})
    with pytest.raises(InputError, match="has no table icu/chartevents, hosp/labevents, icu/procedureevents"):
        read_tables(tmp_path / "iv")


def test_ventilator_settings_within_eight_hours_are_one_episode(tmp_path) -> None:
    tables = raw_tables("iii", persons=2)
    begin = tables["ICUSTAYS"].intime[0]
    at = [begin + pd.Timedelta(hours=h) for h in (3, 11, 20)]
    settings = pd.DataFrame({"subject_id": 10_000, "itemid": 682, "charttime": at, "valuenum": 500, "valueuom": "ml"})
    tables["CHARTEVENTS"] = pd.concat([tables["CHARTEVENTS"], settings])
    hours = read_tables(write_raw(tmp_path, tables))
    assert np.flatnonzero(hours.ventilated[:41]).tolist() == [*range(3, 12), 20]


@pytest.mark.slow
@demo
def test_the_demonstration_agrees_with_mimic_extract() -> None:
    """84 of 85 stays are those of MIMIC-Extract; hourly means and ventilation agree but for known rules."""

    def flat(hours) -> pd.DataFrame:
        frame = pd.DataFrame(hours.values, columns=[v.name for v in VARIABLES])
        own = pd.Series(hours.stay).groupby(hours.stay).cumcount()
        return frame.assign(person=hours.person.astype(int), hour=own, vent=hours.ventilated)

    raw = read_tables(DEMO)
    assert (raw.n, len(raw.age)) == (5239, 85)
    both = flat(raw).merge(flat(read_extract(EXTRACT)), on=["person", "hour"])
    assert len(both) == 5175
    for variable, least in zip(VARIABLES, (1.0, 0.98, 0.98, 0.98, 0.97, 0.95), strict=True):
        pair = both[[f"{variable.name}_x", f"{variable.name}_y"]].dropna()
        assert (abs(pair.iloc[:, 0] - pair.iloc[:, 1]) < 1e-3).mean() >= least, variable.name
    assert (both.vent_x == both.vent_y).mean() > 0.95
    assert Mimic(DEMO).load().n == 61


def test_usual_values_are_plausible() -> None:
    assert all(variable.low < usual < variable.high for variable, usual in zip(VARIABLES, USUAL, strict=True))
    assert torch.is_tensor(Mimic("nowhere").public().queries)
