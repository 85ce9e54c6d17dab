from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from torchdpcate.data.persons import keyed_hashes, person_names, person_rows
from torchdpcate.data.table import Table
from torchdpcate.errors import InputError


def test_each_person_has_k_rows_in_even_turns() -> None:
    persons = np.repeat(["a", "b", "c"], [7, 3, 1])
    rows = person_rows(persons, per_person=5, seed=3).numpy()
    assert rows.shape == (3, 5)
    assert [sorted(np.unique(row, return_counts=True)[1]) for row in rows] == [[1] * 5, [1, 2, 2], [5]]
    assert all(len(set(persons[row])) == 1 for row in rows)


@pytest.mark.parametrize("seed", range(5))
def test_another_person_changes_no_choice(seed: int) -> None:
    persons = [3, 1, 2, 1, 2, 2, 1, 3, 3, 2]
    before = person_rows(persons, 2, seed)
    moved = [9, 9, 9, *(p for p in persons if p != 3)]  # person 3 is replaced by one with other rows elsewhere
    kept = [i for i, p in enumerate(persons) if p != 3]
    after = person_rows(moved, 2, seed)
    back = {place + 3: row for place, row in enumerate(kept)}
    old = {persons[row[0]]: row for row in before.tolist()}
    new = {moved[row[0]]: [back.get(place, -1) for place in row] for row in after.tolist()}
    assert all(old[p] == new[p] for p in (1, 2))


def test_the_draw_is_uniform() -> None:
    persons = np.repeat(np.arange(8000), 4)
    first = person_rows(persons, 1, 0)[:, 0].numpy() % 4
    counts = np.bincount(first, minlength=4)
    assert (abs(counts - 2000) < 5.5 * np.sqrt(8000 * 3 / 16)).all()
    assert not np.array_equal(first, person_rows(persons, 1, 1)[:, 0].numpy() % 4)
    assert len(np.unique(keyed_hashes(["a", "b"], 0))) == 2


@pytest.mark.parametrize(
    "spelt",
    [
        [7, 7.0, "7", "00007", " 7 ", "7.0", "7.", "+7", "7e0", "0.7E+01", np.int8(7), np.float32(7)],
        ["\uff17\u0661", "\u0667\u06f1", 71],  # digits of other scripts
        [0, -0.0, "-0", "000", "0.000", "0e9"],
        [-12, "-12", "-012.0", np.float64(-12), Decimal("-12.00"), Decimal(-12)],
        [10**15, "1e15", "1.00E+15", "1000000000000000.0", 1e15, np.uint64(10**15)],
        [10**17 + 1, str(10**17 + 1), f"+00{10**17 + 1}", np.int64(10**17 + 1), Decimal(10**17 + 1)],
        [10**30, str(10**30)],
        ["Ann Lee", "  Ann\u00a0 Lee", "Ann Lee\t"],
        ["Zo\u00e9", "Zoe\u0301"],  # the second is how some file systems and programs write it
    ],
)
def test_a_person_has_one_name_however_it_is_spelt(spelt) -> None:
    column = np.empty(len(spelt), dtype=object)
    column[:] = spelt
    names = person_names(column)
    assert len(set(names)) == 1
    assert names.tolist() == person_names(names).tolist()  # a name stands for itself
    for value in spelt:  # of any other column
        assert person_names([value]).tolist() == names[:1].tolist()
        assert person_names(pd.Series([value, value])).tolist() == names[:2].tolist()
    assert len(person_rows(column, 2)) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([1, 2.5], "1 row whose name is a number with a fraction"),
        ([2.0**53, 1.0, float("-inf")], "2 rows .* too large to tell integers apart"),
        (["1e+16", "100000000000000001.0", 1], "2 rows .* too large to tell integers apart"),
        (["1e-999999999", "0e99999999999999999999", "0e999999999"], "2 rows whose name is a number with a fraction"),
        (np.array([2.0**24, 5], dtype=np.float32), "1 row .* too large to tell integers apart"),
        ([True, 3], "1 row whose name is neither a word nor an integer"),
        (pd.Series([1.5, 1.5, 2]).astype("category"), "2 rows whose name is a number with a fraction"),
        ([pd.Timestamp("2024-01-01"), "a", b"a", 1j, ("a",)], "4 rows whose name is neither"),
        (["Ann", "ann", "ANN", "Ben"], "2 names that differ from others in capital letters alone"),
        (["a", "NA", " n/a ", "", None, float("nan"), pd.NA, "<NA>"], "7 missing values"),
    ],
)
def test_names_that_cannot_be_one_persons_are_refused_and_not_shown(names, message) -> None:
    with pytest.raises(InputError, match=message) as caught:
        person_rows(names)
    assert not any(str(name) in str(caught.value) for name in names if len(str(name)) > 3)


def test_no_other_name_changes_a_draw_or_a_number_of_persons() -> None:
    persons = [i for i in range(1, 201) for _ in range(3)]
    first = person_rows(persons, 1)
    for other in ("x", "200.5.1", 10**25, -1, 2.0**40):  # one person replaced, whatever that makes of the column
        moved: list[Any] = [other if v == 200 else v for v in persons]
        for column in (moved, pd.Series(moved), pd.Series(moved).astype(str), np.array(moved, dtype=object)):
            assert np.array_equal(person_rows(column, 1)[:199], first[:199])
    long = [10**17 + v for v in persons]
    assert len(person_rows([("x" if v == 10**17 + 200 else v) for v in long])) == 200
    with pytest.raises(InputError, match="3 rows whose name is a number with a fraction"):
        person_rows([0.5 if v == 200 else v for v in persons])


def test_a_key_of_several_columns_is_unambiguous() -> None:
    center, number = ["1", "1", "11", "1", "a:1"], [11, 11.0, "1", "1:1", "1"]
    frame = pd.DataFrame({"center": center, "number": pd.Series(number, dtype=object)})
    assert len(person_rows(frame)) == 4
    assert person_names(frame).tolist()[0] == person_names(frame).tolist()[1]
    assert len(person_rows(frame[["center"]])) == 3
    with pytest.raises(InputError, match="column 'center' of persons has 1 missing value"):
        person_rows(pd.DataFrame({"center": [None, "a", "b"], "number": [1, None, 2]}))


DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "y", "low": 0, "high": 10},
    "covariates": {"age": {"low": 18, "high": 80}},
    "propensity": 0.5,
}


def _records(**columns: Any) -> pd.DataFrame:
    n = 60
    facts = {"treat": np.arange(n) % 2, "y": np.arange(n) / 10, "age": 18 + np.arange(n)}
    return pd.DataFrame({**facts, **columns})


def test_persons_are_the_same_ones_over_files_and_types(tmp_path) -> None:
    """One person in text of csv, integers, floats, decimals and words of parquet."""
    number = np.arange(60)
    long = number + 10**17
    spelt = {
        "int.parquet": pa.array(number),
        "small.parquet": pa.array(number.astype(np.uint8)),
        "float.parquet": pa.array(number.astype(float)),
        "single.parquet": pa.array(number.astype(np.float32)),
        "decimal.parquet": pa.array([Decimal(int(v)) / 100 * 100 for v in number], pa.decimal128(20, 2)),
        "words.parquet": pa.array([f"{v:05d}" for v in number]).dictionary_encode(),
        "long.parquet": pa.array(long),
    }
    for name, column in spelt.items():
        table = pa.Table.from_pandas(_records()).append_column("pid", column)
        parquet.write_table(table, tmp_path / name)
    _records(pid=[f"{v}.0" for v in number]).to_csv(tmp_path / "float.csv", index=False)
    _records(pid=[f"{v:07d}" for v in number]).to_csv(tmp_path / "zeros.csv", index=False)
    _records(pid=[f"0{v}" for v in long]).to_csv(tmp_path / "long.csv", index=False)
    files = [name for name in (*spelt, "float.csv", "zeros.csv") if not name.startswith("long")]
    paths = [tmp_path / name for name in files]
    for order in (paths, paths[::-1]):
        assert Table(order, DOMAIN, person="pid", per_person=len(files)).load().n == 60 * len(files)
    both = [tmp_path / "long.parquet", tmp_path / "long.csv"]
    assert Table(both, DOMAIN, person="pid", per_person=2).load().n == 120
    assert Table([*both, tmp_path / "float.parquet"], DOMAIN, person="pid").load().n == 120
    _records(pid=long.astype(float)).to_parquet(tmp_path / "rounded.parquet")
    with pytest.raises(
        InputError, match=r"rounded.parquet: column 'pid' of persons has 60 rows .* too large to tell integers apart"
    ):
        Table([*both, tmp_path / "rounded.parquet"], DOMAIN, person="pid").load()


@pytest.mark.parametrize("spelt", ["{:05d}", "{}.0"])
def test_one_number_spelt_in_two_ways_in_a_file_is_one_person(tmp_path, spelt) -> None:
    names = [str(i // 2) if i % 2 else spelt.format(i // 2) for i in range(60)]
    _records(pid=names).to_csv(tmp_path / "t.csv", index=False)
    study = Table(tmp_path / "t.csv", DOMAIN, person="pid", per_person=2).load()
    assert (study.n, len(set(study.records.x[:, 0].tolist()))) == (60, 60)  # both records of each of 30


def test_a_table_takes_a_key_of_several_columns(tmp_path) -> None:
    frame = _records(center=np.repeat([1, 2], 30), id=np.tile(np.arange(15), 4))
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    study = Table(path, DOMAIN, person=["center", "id"], per_person=2).load()
    assert (study.n, study.unit.column, study.unit.records) == (60, "center + id", 2)
    assert Table(path, DOMAIN, person="id", per_person=4).load().n == 60  # 15 of them
    sites = {**DOMAIN, "covariates": {"center": {"categories": [1, 2]}}}
    assert Table(path, sites, person=["center", "id"], per_person=2).load().n == 60
    for wrong, message in (
        (["id", "id"], "each once"),
        (["id", "treat"], "data.person = id, treat: names persons by treatment"),
        ("age", "data.person = age: names persons by .* columns of the domain alone"),
    ):
        with pytest.raises(InputError, match=message):
            Table(path, DOMAIN, person=wrong).load()
