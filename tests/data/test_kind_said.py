import copy

import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.data.checked import checked_records
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

DOMAIN = {
    "treatment": "a",
    "outcome": {"name": "died", "low": 0, "high": 1},
    "covariates": {"x": {"low": 0, "high": 1}},
}
REFUSED = r"outcome 'died' holds 0 and 1 alone.*under outcome add \"kind: binary\", or \"kind: continuous\""


def with_outcome(**facts) -> dict:
    entries = copy.deepcopy(DOMAIN)
    entries["outcome"] |= facts
    return entries


def table(y: list[float] = (0, 1)) -> pd.DataFrame:
    n = 40
    return pd.DataFrame({"a": np.arange(n) % 2, "x": np.linspace(0, 1, n), "died": np.resize(y, n).astype(float)})


def readers(entries: dict, frame: pd.DataFrame, tmp_path, **settings):
    """Every way by which records come to a fit."""
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    schema = TableSchema.from_dict(entries).handling(settings.get("out_of_bounds", "refuse"))
    return {
        "csv": lambda: Table(tmp_path / "t.csv", entries, **settings).load(),
        "parquet": lambda: Table(tmp_path / "t.parquet", entries, **settings).load(),
        "stream": lambda: TableStream(tmp_path / "t.csv", entries, batch_rows=7, **settings),
        "fit": lambda: checked_records(schema, frame[["x"]], frame["a"], frame["died"], None),
    }


def test_an_undeclared_one_is_refused_with_the_line_to_add(tmp_path) -> None:
    for read in readers(DOMAIN, table(), tmp_path).values():
        with pytest.raises(InputError, match=REFUSED):
            read()
    with pytest.raises(InputError, match='add "kind: binary", with low: 0 and high: 1, or'):
        Table(tmp_path / "t.csv", with_outcome(high=5)).load()


def test_a_declared_one_is_taken(tmp_path) -> None:
    for read in readers(with_outcome(kind="count"), table(), tmp_path).values():
        read()
    categories = {**DOMAIN, "outcome": {"name": "died", "categories": [0, 1]}}
    for read in readers(categories, table(), tmp_path).values():
        read()


def test_a_stream_is_judged_by_all_its_batches(tmp_path) -> None:
    frame = table()
    frame.loc[39, "died"] = 0.5
    readers(DOMAIN, frame, tmp_path)["stream"]()


def test_what_is_said_is_kept() -> None:
    said, silent = (TableSchema.from_dict(with_outcome(**facts)) for facts in ({"kind": "continuous"}, {}))
    assert said.to_dict()["outcome"]["kind"] == "continuous"
    assert TableSchema.from_dict(said.to_dict()).kind_said is True
    assert "kind" not in silent.to_dict()["outcome"]
    assert silent.kind_said is False
    assert said == silent
    two = {**with_outcome(kind="continuous"), "covariates": {n: {"low": 0, "high": 1} for n in "xy"}}
    assert TableSchema.from_dict(two).without("x").kind_said is True


def test_facts_given_in_code_are_not_asked(recwarn) -> None:
    """Nor warned of: whether a warning is shown would tell of the records."""
    schema = TableSchema.from_domain(Domain([0.0], [1.0], 0.0, 1.0))
    checked_records(schema, [[0.1], [0.2], [0.3]], [0, 1, 1], torch.tensor([0.0, 1.0, 1.0]), None)
    assert not recwarn.list
    assert schema.with_outcome_bounds(0, 1).kind_said is None
    assert "kind" not in schema.with_outcome_bounds(0, 1).to_dict()["outcome"]
