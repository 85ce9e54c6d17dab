import numpy as np
import pandas as pd
import pytest

from tests.data.conftest import SHARED
from tests.papers.layouts import raw_tables, write_raw
from torchdpcate.errors import InputError
from torchdpcate.papers import MimicTables
from torchdpcate.papers.mimic import read_extract
from torchdpcate.papers.mimic_hours import VARIABLES
from torchdpcate.papers.mimic_tables import read_tables

DEMO, EXTRACT = SHARED / "mimic_iii_demo", SHARED / "mimic_extract_layout"
demo = pytest.mark.skipif(not DEMO.exists(), reason="the demonstration of MIMIC-III is not here")


@pytest.mark.parametrize(("version", "upper"), [("iv", False), ("iii", False), ("iii", True)])
def test_values_ages_and_ventilation_by_hour(tmp_path, version: str, upper: bool) -> None:
    tables = raw_tables(version)
    hours = read_tables(write_raw(tmp_path, tables, upper), version)
    assert hours.n == 6 * 41
    lab = tables["hosp/labevents" if version == "iv" else "LABEVENTS"]
    sodium = lab[lab.itemid == 50983].valuenum.to_numpy()
    np.testing.assert_allclose(hours.values[:, 1], sodium, atol=1e-4)
    np.testing.assert_allclose(hours.age, 62, atol=0.01)
    assert hours.gender.tolist() == ["F", "M"] * 3
    expected = np.tile(np.isin(np.arange(41), np.arange(2, 40)), 6) & (np.repeat(np.arange(6), 41) % 2 == 1)
    assert (hours.ventilated == expected).all()
    study = MimicTables(tmp_path, version=version).load()
    assert (study.n, study.name) == (6, f"mimic_{version}")


def test_an_hour_is_the_mean_of_its_values_in_any_order_and_unit(tmp_path) -> None:
    tables = raw_tables("iv")
    lab = tables["hosp/labevents"]
    lab = pd.concat([lab, lab[:50].assign(valuenum=lab.valuenum[:50] * 1.01)])
    changed = lab.copy()
    glucose = (changed.itemid == 50931) & (np.arange(len(lab)) % 3 == 0)
    changed.loc[glucose, "valuenum"] = changed.valuenum[glucose] / 18.016
    changed.loc[glucose, "valueuom"] = "mmol/L"
    one = read_tables(write_raw(tmp_path / "a", tables | {"hosp/labevents": lab}), "iv")
    two = read_tables(write_raw(tmp_path / "b", tables | {"hosp/labevents": lab.sample(frac=1, random_state=0)}), "iv")
    other = read_tables(write_raw(tmp_path / "c", tables | {"hosp/labevents": changed}), "iv")
    np.testing.assert_array_equal(one.values, two.values)  # to the last bit
    np.testing.assert_allclose(one.values, other.values, rtol=1e-4)


def test_the_first_stay_of_a_person_counts_if_it_is_long_enough(tmp_path) -> None:
    tables = raw_tables("iv")
    stays = tables["icu/icustays"]
    later = stays[:2].assign(stay_id=[1, 2], intime=stays.intime + pd.Timedelta(days=9), outtime=pd.NaT)
    later["outtime"] = later.intime + pd.Timedelta(hours=50)
    stays.loc[5, "outtime"] = stays.intime[5] + pd.Timedelta(hours=5)  # too short
    tables["hosp/patients"].loc[4, "anchor_age"] = 9
    hours = read_tables(write_raw(tmp_path, tables | {"icu/icustays": pd.concat([later, stays])}), "iv")
    assert np.unique(hours.person).tolist() == ["10000", "10001", "10002", "10003"]
    assert hours.n == 4 * 41


def _with(name: str, column: str, value: object, rows: object) -> dict[str, pd.DataFrame]:
    tables = raw_tables("iv")
    tables[name] = tables[name].astype({column: object})
    tables[name].loc[rows, column] = value
    return tables


LAB, BEFORE = "hosp/labevents", "2150-03-01 09:00:00"
FAULTS = {
    "6 stays with outtime before intime": lambda: _with("icu/icustays", "outtime", BEFORE, slice(None)),
    "3 events with endtime before starttime": lambda: _with("icu/procedureevents", "endtime", BEFORE, slice(None)),
    "10 values of 'sodium' in a unit other than meq/l, mmol/l": lambda: _with(LAB, "valueuom", "mg", slice(9)),
    r"values of 'sodium' outside \[.*\] mEq/L, too many": lambda: _with(LAB, "valuenum", 8.0, slice(99)),
    "column 'valuenum' has 1 non-numeric value": lambda: _with(LAB, "valuenum", "see note", 3),
    "column 'charttime' has 1 value not written YYYY-MM-DD HH": lambda: _with(LAB, "charttime", "yesterday", 3),
    "1 person not in patients.csv.gz": lambda: _with("hosp/patients", "subject_id", 1, 3),
    "1 patient there twice": lambda: _with("hosp/patients", "subject_id", 10_000, 3),
    "labevents.csv.gz: holds none of the items": lambda: _with(LAB, "itemid", 1, slice(None)),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults_are_refused_with_their_number(tmp_path, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_tables(write_raw(tmp_path, FAULTS[message]()), "iv")


def test_missing_tables_and_other_versions_are_named(tmp_path) -> None:
    write_raw(tmp_path / "iv", {k: v for k, v in raw_tables("iv").items() if "events" not in k})
    with pytest.raises(InputError, match="has no table icu/chartevents, hosp/labevents, icu/procedureevents"):
        read_tables(tmp_path / "iv", "iv")
    with pytest.raises(InputError, match="holds another version's tables, not MIMIC-IV's: data=mimic_iii"):
        read_tables(write_raw(tmp_path / "iii", raw_tables("iii")), "iv")


def test_ventilator_settings_within_eight_hours_are_one_episode(tmp_path) -> None:
    tables = raw_tables("iii", persons=2)
    begin = tables["ICUSTAYS"].intime[0]
    at = [begin + pd.Timedelta(hours=h) for h in (3, 11, 20)]
    settings = pd.DataFrame({"subject_id": 10_000, "itemid": 682, "charttime": at, "valuenum": 500, "valueuom": "ml"})
    tables["CHARTEVENTS"] = pd.concat([tables["CHARTEVENTS"], settings])
    hours = read_tables(write_raw(tmp_path, tables), "iii")
    assert np.flatnonzero(hours.ventilated[:41]).tolist() == [*range(3, 12), 20]


@pytest.mark.slow
@demo
def test_the_demonstration_agrees_with_mimic_extract() -> None:
    """84 of 85 stays are those of MIMIC-Extract; hourly means and ventilation agree but for known rules."""

    def flat(hours) -> pd.DataFrame:
        frame = pd.DataFrame(hours.values, columns=[v.name for v in VARIABLES])
        own = pd.Series(hours.stay).groupby(hours.stay).cumcount()
        return frame.assign(person=hours.person.astype(int), hour=own, vent=hours.ventilated)

    raw = read_tables(DEMO, "iii")
    assert (raw.n, len(raw.age)) == (5239, 85)
    both = flat(raw).merge(flat(read_extract(EXTRACT)), on=["person", "hour"])
    assert len(both) == 5175
    for variable, least in zip(VARIABLES, (1.0, 0.98, 0.98, 0.98, 0.97, 0.95), strict=True):
        pair = both[[f"{variable.name}_x", f"{variable.name}_y"]].dropna()
        assert (abs(pair.iloc[:, 0] - pair.iloc[:, 1]) < 1e-3).mean() >= least, variable.name
    assert (both.vent_x == both.vent_y).mean() > 0.95
    assert MimicTables(DEMO, version="iii").load().n == 61
