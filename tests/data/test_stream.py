import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from torchdpcate.cli.predict import stream_answers
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.papers.oprescu import Dataset2

BATCH = 1000


def effect(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"effect": torch.sin(x).sum(1)}


def write(frame: pd.DataFrame, path) -> None:
    frame.to_parquet(path, row_group_size=700) if path.suffix == ".parquet" else frame.to_csv(path, index=False)


@pytest.fixture
def schema(domain_file) -> TableSchema:
    return TableSchema.from_yaml(domain_file)


@pytest.fixture
def big(frame) -> pd.DataFrame:
    rows = frame.sample(5500, replace=True, random_state=0).reset_index(drop=True)
    rows["age"] = np.random.default_rng(0).uniform(16, 60, len(rows))
    return rows


@pytest.mark.parametrize(("source", "target"), [("csv", "parquet"), ("csv.gz", "csv"), ("parquet", "csv.gz")])
def test_the_streamed_answer_is_the_whole_answer(tmp_path, big, schema, source, target) -> None:
    write(big, tmp_path / f"in.{source}")
    output, seen = tmp_path / f"out.{target}", []
    rows, _ = stream_answers(
        tmp_path / f"in.{source}", output, schema, effect, batch_rows=BATCH, on_progress=seen.append
    )
    read = pd.read_parquet if target == "parquet" else pd.read_csv
    answer = read(output)
    assert list(answer.columns) == ["effect"]
    expected = effect(schema.encode(big))["effect"]
    np.testing.assert_allclose(answer["effect"], expected, rtol=1e-15, atol=0)
    assert rows == seen[-1] == len(big)
    assert max(np.diff([0, *seen])) <= BATCH
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"in.{source}", f"out.{target}", "trial.yaml"])


def test_a_bad_row_leaves_nothing_behind(tmp_path, big, schema) -> None:
    big.loc[4321, "age"] = 99.0
    big.to_csv(tmp_path / "in.csv", index=False)
    (tmp_path / "out.csv").write_text("what was there before")
    with pytest.raises(InputError, match=r"rows 4001 to 5000: query 'age' has 1 value outside .* \[16, 60\]") as caught:
        stream_answers(tmp_path / "in.csv", tmp_path / "out.csv", schema, effect, batch_rows=BATCH)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out.csv").read_text() == "what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv", "trial.yaml"]


def repeat(path, times: int) -> None:
    """Write 4000 rows of 30 numbers `times` times over: about 1 MB (parquet) or 2.3 MB (csv) each."""
    block = pd.DataFrame(np.random.default_rng(0).random((4000, 30)), columns=[f"x{i}" for i in range(30)])
    if path.suffix == ".csv":
        header, rows = block.to_csv(index=False).split("\n", 1)
        path.write_text(header + "\n" + rows * times)
        return
    table = pa.Table.from_pandas(block)
    with parquet.ParquetWriter(path, table.schema) as writer:
        for _ in range(times):
            writer.write_table(table)


@pytest.mark.faults
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, ending) -> None:
    source, peaks = Dataset2(), []
    schema, path = TableSchema.from_domain(source.domain()), tmp_path / f"in.{ending}"
    for times in (20, 80):
        repeat(path, times)
        held: list[int] = []
        tracemalloc.start()
        stream_answers(
            path,
            tmp_path / "out.csv",
            schema,
            lambda x: {"effect": source.effect(x)},
            batch_rows=4000,
            on_progress=lambda done, held=held: held.append(pa.total_allocated_bytes()),
        )
        peaks.append((tracemalloc.get_traced_memory()[1], max(held)))
        tracemalloc.stop()
    (python, arrow), (python_long, arrow_long) = peaks
    assert python_long < 1.3 * python + 2e6
    assert arrow_long < 1.3 * arrow + 8e6


MIXED = pd.DataFrame(
    {
        "id": ["007", "=1+1", "a,b", 'q"uote', None, "06"],
        "age": ["17", "99", "20.50", "old", None, "60"],
        "town": ["a", "b", "z", "a", "b", "c"],
    }
)
WITHIN = [True, False, False, False, False, True]


def mixed_schema(out_of_bounds: str = "refuse") -> TableSchema:
    return TableSchema.from_dict(
        {
            "treatment": "t",
            "outcome": {"name": "y", "low": 0, "high": 1},
            "covariates": {"age": {"low": 16, "high": 60}, "town": {"categories": ["a", "b", "c"]}},
            "out_of_bounds": out_of_bounds,
        }
    )


@pytest.mark.parametrize(("batch_rows", "target"), [(1, "csv"), (4, "parquet"), (100, "csv")])
def test_rows_outside_are_missing_and_kept_columns_are_as_they_were(tmp_path, batch_rows, target):
    MIXED.to_csv(tmp_path / "in.csv", index=False)
    output = tmp_path / f"out.{target}"
    settings = {"keep": ["id", "age", "id"], "missing_outside": True, "batch_rows": batch_rows}

    def answers(x):
        return {"decision": (x[:, 0] > 30).long(), "low": x[:, 0] - 1}

    done = stream_answers(tmp_path / "in.csv", output, mixed_schema(), answers, **settings)
    assert done == (6, 4)
    if target == "csv":
        found = pd.read_csv(output, dtype={"id": str, "age": str, "decision": "Int64"}, keep_default_na=True)
    else:
        found = pd.read_parquet(output, dtype_backend="numpy_nullable")
    assert list(found.columns) == ["id", "age", "decision", "low"]
    for name in ("id", "age"):  # letter by letter: 007 stays 007 and 20.50 stays 20.50
        assert [None if pd.isna(value) else value for value in found[name]] == [
            None if pd.isna(value) else value for value in MIXED[name]
        ]
    assert found["decision"].notna().tolist() == found["low"].notna().tolist() == WITHIN
    assert found["decision"].dropna().tolist() == [0, 1]
    assert found["low"].dropna().tolist() == [16.0, 59.0]


def test_kept_columns_of_parquet_have_their_types(tmp_path):
    frame = pd.DataFrame({"age": [17.0, 60.0], "town": ["a", "c"]})
    frame["flag"] = [True, False]
    frame["count"], frame["kind"] = pd.array([1, None], dtype="Int64"), pd.Categorical(["x", "y"])
    frame["a,b"] = ["c", "d"]
    frame.to_parquet(tmp_path / "in.parquet")
    keep = ["flag", "count", "kind", "a,b"]
    for target in ("parquet", "csv"):
        stream_answers(
            tmp_path / "in.parquet",
            tmp_path / f"out.{target}",
            mixed_schema(),
            lambda x: {"effect": x[:, 0]},
            keep=keep,
            batch_rows=1,
        )
    found = pd.read_parquet(tmp_path / "out.parquet", dtype_backend="numpy_nullable")
    assert found["count"].dtype == "Int64"
    assert found["flag"].dtype == "boolean"
    assert found["kind"].tolist() == ["x", "y"]
    assert list(pd.read_csv(tmp_path / "out.csv").columns) == [*keep, "effect"]
