import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.data.checked import checked_records
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

UNIT = {"low": 0, "high": 1}
FACTS = {
    "treatment": "a",
    "outcome": {"name": "y", "low": 0, "high": 10},
    "covariates": {"x": UNIT},
    "weights": {"name": "w", "high": 5},
}
FRAME = pd.DataFrame({"x": [0.1, 0.2, 0.3, 0.4], "a": [0, 1, 0, 1], "y": [1.0, 2.0, 3.0, 4.0], "w": [0.0, 1.0, 2.5, 5]})
DROPPED = {
    "treatment": {"name": "a", "categories": ["no", "yes"], "missing": "drop"},
    "outcome": {"name": "y", "low": 2, "high": 10, "missing": "drop"},
    "covariates": {"x": UNIT},
}
WORDS = pd.DataFrame({"x": 0.5, "a": ["no", None, "yes", "yes"], "y": [3.0, 4.0, np.nan, 5.0]})


def test_a_weight_is_read_with_the_records_over_its_bound(tmp_path):
    path = tmp_path / "t.csv"
    FRAME.to_csv(path)
    assert Table(path, FACTS).load().records.weight.tolist() == [0.0, 0.2, 0.5, 1.0]
    stream = TableStream(path, FACTS, batch_rows=3)
    assert [batch.weight.tolist() for batch in stream] == [[0.0, 0.2, 0.5], [1.0]]
    with CachedStream(stream, tmp_path, batch_rows=2) as copy:
        assert torch.cat([batch.weight for batch in copy]).tolist() == [0.0, 0.2, 0.5, 1.0]
        assert torch.cat([batch.y for batch in copy]).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_weight_is_beside_the_covariates_or_given_by_itself():
    schema = TableSchema.from_dict(FACTS)
    beside = checked_records(schema, FRAME[["x", "w"]], FRAME["a"], FRAME["y"], None)
    given = checked_records(schema, FRAME[["x"]], FRAME["a"], FRAME["y"], None, weight=FRAME["w"])
    assert beside.weight.tolist() == given.weight.tolist() == [0.0, 0.2, 0.5, 1.0]
    assert schema.own(given)["weight"].tolist() == FRAME["w"].tolist()
    with pytest.raises(InputError, match="lacks the column 'w' of weights"):
        checked_records(schema, FRAME[["x"]], FRAME["a"], FRAME["y"], None)


def test_weights_beyond_their_bound_are_refused_or_moved_and_told_to_the_curator():
    for role, unit in (("exposure", {"unit": "year"}), ("weights", {})):
        schema = TableSchema.from_dict({**FACTS, "weights": {"name": "w", "high": 2, **unit}})
        with pytest.raises(InputError, match=rf"{role} 'w' has 2 values outside \[0, 2\]"):
            checked_records(schema, FRAME[["x", "w"]], FRAME["a"], FRAME["y"], None)
    with pytest.warns(UserWarning, match="column 'w': 2 of 4"):
        moved = checked_records(schema.handling("clip"), FRAME[["x", "w"]], FRAME["a"], FRAME["y"], None)
    assert moved.weight.tolist() == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("facts", [FACTS, DROPPED, {**DROPPED, "weights": {"name": "w", "high": 5, "mean": 2}}])
def test_a_schema_that_counts_records_travels(facts):
    schema = TableSchema.from_dict(facts)
    assert TableSchema.from_dict(schema.to_dict()) == schema
    assert Domain.from_dict(schema.domain.to_dict()) == schema.domain
    assert schema.domain.select([0]).expected_weight == schema.domain.expected_weight
    assert schema.with_outcome_bounds(0, 1).domain.dropped == schema.domain.dropped


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("w", "weights is 'w'"),
        ({"name": "w"}, "weights has no entry 'high'; it needs high, name"),
        ({"name": "w", "high": 0}, "weights.high is 0"),
        ({"name": "w", "high": 5, "mean": 6}, "weights.mean is 6"),
        ({"name": "x", "high": 5}, "weights column 'x' is also a covariate"),
        ({"name": "y", "high": 5}, "weights column 'y' is also outcome"),
        ({"name": "x", "high": 5, "unit": "year"}, "exposure column 'x' is also a covariate"),
    ],
)
def test_what_are_no_weights_is_refused_in_one_line(entry, words):
    with pytest.raises(InputError, match=words) as refusal:
        TableSchema.from_dict({**FACTS, "weights": entry})
    assert "\n" not in str(refusal.value)


def test_records_without_treatment_or_outcome_count_nothing_and_are_not_told(tmp_path):
    path = tmp_path / "t.csv"
    WORDS.to_csv(path)
    found = Table(path, DROPPED).load().records
    assert (found.a.tolist(), found.y.tolist()) == ([0.0, 0.0, 1.0, 1.0], [3.0, 4.0, 2.0, 5.0])
    assert found.weight.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert [batch.weight.tolist() for batch in TableStream(path, DROPPED)] == [[1.0, 0.0, 0.0, 1.0]]
    assert not found.clipped.moved


def test_arrays_may_lack_treatment_and_outcome_too():
    schema = TableSchema.from_dict(DROPPED)
    found = checked_records(schema, WORDS[["x"]], schema.labels(WORDS["a"]), WORDS["y"], None)
    assert found.weight.tolist() == [1.0, 0.0, 0.0, 1.0]
    again = checked_records(schema, found.x, found.a, found.y, None, **schema.own(found))
    assert again.weight.tolist() == found.weight.tolist()
