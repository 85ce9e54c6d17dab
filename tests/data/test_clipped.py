import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.data.checked import LARGE_SHARE, checked_records
from torchdpcate.data.records import NOTHING_CLIPPED, ClippedValues
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.privacy.budget import PrivacyBudget

FACTS = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10},
    "covariates": {"age": {"low": 18, "high": 80}, "site": {"categories": ["a", "b", "c"]}},
    "propensity": "prob",
    "overlap": 0.2,
    "out_of_bounds": "clip",
}
SCHEMA = TableSchema.from_dict(FACTS)
MOVED = {"pay": 30, "age": 7, "prob": 2}
N = 500


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(18, 81, N), "site": rng.choice(["a", "b", "c"], N), "prob": 0.5})
    table = table.assign(treat=np.arange(N) % 2, pay=rng.uniform(0, 10, N)).sample(frac=1, random_state=0)
    table.iloc[:30, table.columns.get_loc("pay")] = [-99.0] * 20 + [10.5] * 10
    table.iloc[10:17, table.columns.get_loc("age")] = 999
    table.iloc[20:22, table.columns.get_loc("prob")] = [0.1, 0.9]
    return table.reset_index(drop=True)


def test_counts_are_those_of_what_was_read_however_it_is_read(frame, tmp_path) -> None:
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected = ClippedValues(N, MOVED)
    with pytest.warns(UserWarning, match=r"'pay': 30 of 500 \(6 %\) values .* \[0, 10\] and were moved;"):
        stream = TableStream(tmp_path / "t.csv", FACTS, batch_rows=77)
    assert stream.clipped == expected
    with CachedStream(stream, tmp_path) as cached:
        assert cached.clipped == expected
    with pytest.warns(UserWarning, match="'pay': 30 of 500"):
        assert Table(tmp_path / "t.csv", FACTS, n=100).load().records.clipped == expected
    with pytest.warns(UserWarning, match="'pay': 30 of 500"):
        records = checked_records(SCHEMA, frame, frame["treat"], frame["pay"], None)
    assert records.clipped == records.subset(torch.arange(3)).to("cpu").copy().clipped == expected
    assert str(expected) == "pay 30 of 500 (6 %), age 7 of 500 (1.4 %), prob 2 of 500 (0.4 %)"


def test_nothing_is_said_where_few_or_none_were_moved(frame, tmp_path) -> None:
    inside = frame.assign(age=frame["age"].clip(18, 80), pay=frame["pay"].clip(0, 10), prob=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = frame["pay"].clip(0).where(frame["pay"] <= 10, 11.0)
        assert checked_records(SCHEMA, inside, inside["treat"], few, None).clipped.moved == {"pay": 10}
        clipped = checked_records(SCHEMA, inside, inside["treat"], inside["pay"], None).clipped
        assert (clipped, str(clipped)) == (ClippedValues(N), "none")
        strict = TableSchema.from_dict({**FACTS, "out_of_bounds": "refuse"})
        assert checked_records(strict, inside, inside["treat"], inside["pay"], None).clipped is NOTHING_CLIPPED
    assert 25 / N == LARGE_SHARE  # more than that is told


def test_a_learner_tells_the_curator_and_its_release_nobody(frame, tmp_path) -> None:
    fitted = AverageEffect(SCHEMA, PrivacyBudget(2.0, 1e-5))
    with pytest.warns(UserWarning, match=r"30 of 500 \(6 %\).*publish them nowhere"):
        fitted.fit(frame, frame["treat"], frame["pay"])
    assert fitted.clipped_ == ClippedValues(N, MOVED)
    assert b"Clipped" not in pickle.dumps(fitted.release())
    frame.to_csv(tmp_path / "t.csv", index=False)
    known = TableSchema.from_dict({**FACTS, "propensity": 0.5})
    with pytest.warns(UserWarning, match="30 of 500"):
        stream = TableStream(tmp_path / "t.csv", known)
    moved = {"pay": 30, "age": 7}
    assert AverageEffect(known, PrivacyBudget(2.0, 1e-5)).fit_stream(stream).clipped_ == ClippedValues(N, moved)
