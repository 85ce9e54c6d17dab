import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.conftest import SHARED
from tests.papers.layouts import extract_tables, write_extract
from torchdpcate.errors import InputError
from torchdpcate.papers.mimic import Mimic, read_extract
from torchdpcate.papers.mimic_hours import Window, time_points

DEMO = SHARED / "mimic_extract_layout"
demo = pytest.mark.skipif(not DEMO.exists(), reason="the demonstration of MIMIC-Extract's layout is not here")


def test_one_record_a_person_within_public_bounds(tmp_path) -> None:
    study = Mimic(write_extract(tmp_path / "e", *extract_tables())).load()
    assert study.n == 12
    assert study.unit.to_dict() == {"column": "subject_id", "records": 1}
    assert study.name == "mimic"
    study.domain.check_covariates(study.records.x)
    assert study.records.x[0, study.domain.names.index("age")] == 90  # 300 years, for those older than 89
    assert study.records.a.tolist() == [0.0, 1.0] * 6
    assert study.queries.shape == (300, 8)


def test_the_seed_draws_time_points_and_each_person_has_k(tmp_path) -> None:
    folder = write_extract(tmp_path / "e", *extract_tables())
    x = [Mimic(folder, seed=seed).load().records.x for seed in (0, 0, 1)]
    assert torch.equal(x[0], x[1])
    assert not torch.equal(x[0], x[2])
    four = Mimic(folder, per_person=4).load()
    assert (four.n, four.unit.records) == (48, 4)
    assert (four.records.x[:, -1].reshape(12, 4).std(1) == 0).all()  # a person's gender


def test_replacing_a_person_leaves_the_others_as_they_are(tmp_path) -> None:
    tables = extract_tables()
    first = Mimic(write_extract(tmp_path / "a", *tables), per_person=3).load().records
    gone = [table.drop(index=10_004, level=0) for table in tables]
    others = [table[table.index.get_level_values(0) == 10_004] for table in extract_tables(hours=33, seed=9)]
    new = [other.rename(index={10_004: 9_000}, level=0) for other in others]  # the first of all, and a shorter stay
    changed = [pd.concat([one, two]) for one, two in zip(new, gone, strict=True)]
    second = Mimic(write_extract(tmp_path / "b", *changed), per_person=3).load().records
    kept = torch.cat([torch.arange(12), torch.arange(15, 36)])
    assert torch.equal(first.x[kept], second.x[3:])
    assert torch.equal(first.y[kept], second.y[3:])


def test_rows_may_stand_in_any_order(tmp_path) -> None:
    tables = extract_tables()
    shuffled = [table.sample(frac=1, random_state=3) for table in tables]
    one, two = (
        Mimic(write_extract(tmp_path / name, *t)).load().records for name, t in (("a", tables), ("b", shuffled))
    )
    assert torch.equal(one.x, two.x)


def _broken(change: str) -> tuple[pd.DataFrame, ...]:
    vitals, interventions, patients = extract_tables()
    if change == "twice":
        patients = pd.concat([patients, patients[:2]])
    elif change == "hour twice":
        vitals = pd.concat([vitals, vitals[:3]])
    elif change == "gap":
        vitals, interventions = vitals.drop(index=vitals.index[5]), interventions.drop(index=vitals.index[5])
    elif change == "apart":
        interventions = interventions[:-4]
    elif change == "unit":
        vitals["glucose", "mean"] /= 18.016
    elif change == "fraction":
        vitals["hematocrit", "mean"] /= 100
    elif change == "vent":
        interventions.iloc[0, 0] = 2
    elif change == "patients":
        patients = patients[:-1]
    elif change == "word":
        vitals["sodium", "mean"] = vitals["sodium", "mean"].astype(str)
        vitals.iloc[:2, list(vitals.columns).index(("sodium", "mean"))] = "high"
    elif change == "age":
        patients = patients.astype({"age": str})
        patients.iloc[0, 1] = "old"
    elif change == "variable":
        vitals = vitals.drop(columns="sodium", level=0)
    return vitals, interventions, patients


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("twice", "table patients: 2 stays there twice"),
        ("hour twice", "table vitals_labs: 3 hours there twice"),
        ("gap", "does not count 0, 1, 2, ... in 1 stay; times are missing or out of order"),
        ("apart", "4 hours in one of vitals_labs and interventions alone"),
        ("unit", r"values of 'glucose' outside \[33, 2200\] mg/dL, too many for errors"),
        ("fraction", r"values of 'hematocrit' outside \[5, 75\] %"),
        ("vent", "vent has 1 value other than 0 and 1"),
        ("patients", "1 stay not in table patients"),
        ("word", "table vitals_labs: column 'sodium' has 2 non-numeric values; correct these rows"),
        ("age", "table patients: column 'age' has 1 non-numeric value"),
        ("variable", "column \"\\('sodium', 'mean'\\)\" is missing"),
    ],
)
def test_what_is_not_of_the_layout_is_refused(tmp_path, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_extract(write_extract(tmp_path / "e", *_broken(change)))


def test_missing_files_and_tables_are_named(tmp_path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_extract(tmp_path / "none.h5")
    folder = write_extract(tmp_path / "e", *extract_tables())
    (folder / "interventions.parquet").unlink()
    with pytest.raises(InputError, match="no parquet file of table interventions"):
        read_extract(folder)


def test_what_is_no_layout_is_answered_by_how_to_export(tmp_path) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "all_hourly_data.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"no parquet file of table vitals_labs_mean or vitals_labs; .*read_hdf"):
        Mimic(tmp_path / "h").hours()
    with pytest.raises(InputError, match=r"is no folder; .*read_hdf"):
        Mimic(tmp_path / "h" / "all_hourly_data.h5").hours()


def test_nobody_with_a_record_is_said(tmp_path) -> None:
    with pytest.raises(InputError, match="nobody has a time point"):
        Mimic(write_extract(tmp_path / "e", *extract_tables(hours=8))).load()


@demo
def test_the_demonstration_is_read() -> None:
    found = read_extract(DEMO)
    assert (found.n, len(found.age)) == (5175, 84)
    assert len(np.unique(found.person[time_points(found, Window())])) == 65
    assert Mimic(DEMO).load().n == 65
