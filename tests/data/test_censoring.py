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

OUTCOME = {"time": "months", "event": "died", "horizon": 12, "kind": "restricted_mean"}
FACTS = {"treatment": "a", "outcome": OUTCOME, "covariates": {"x": {"low": 0, "high": 1}}}
FRAME = pd.DataFrame({"x": 0.5, "a": [0, 1, 0, 1], "months": [3.0, 5.0, 40.0, 12.0], "died": [1, 0, 1, 1]})


def by_horizon(**entries) -> TableSchema:
    return TableSchema.from_dict({**FACTS, "outcome": {**OUTCOME, **entries}})


def test_outcomes_are_those_by_the_horizon(tmp_path):
    path = tmp_path / "t.csv"
    FRAME.to_csv(path)
    found = Table(path, FACTS).load().records
    assert found.y.tolist() == [3.0, 5.0, 12.0, 12.0]
    assert found.follow_up.tolist() == [[3.0, 1.0], [5.0, 0.0], [12.0, 0.0], [12.0, 1.0]]
    assert (found.weight, found.clipped.moved) == (None, {})
    stream = TableStream(path, by_horizon(kind="event_by_horizon"), batch_rows=3)
    with CachedStream(stream, tmp_path, batch_rows=2) as copy:
        assert torch.cat([batch.y for batch in copy]).tolist() == [1.0, 0.0, 0.0, 1.0]
        assert torch.cat([batch.follow_up for batch in copy]).tolist() == found.follow_up.tolist()


def test_time_and_event_are_given_in_the_place_of_y():
    schema = by_horizon()
    by_name = checked_records(schema, FRAME[["x"]], FRAME["a"], FRAME[["died", "months"]], None)
    by_place = checked_records(schema, FRAME[["x"]], FRAME["a"], FRAME[["months", "died"]].to_numpy(), None)
    assert by_name.follow_up.tolist() == by_place.follow_up.tolist()
    again = checked_records(schema, by_name.x, by_name.a, schema.outcome_of(by_name), None, **schema.own(by_name))
    assert again.follow_up.tolist() == by_name.follow_up.tolist()
    for wrong in (FRAME["months"], FRAME[["x", "months"]], FRAME[["x", "months", "a"]].to_numpy()):
        with pytest.raises(InputError, match=r"^Y"):
            checked_records(schema, FRAME[["x"]], FRAME["a"], wrong, None)


@pytest.mark.parametrize("kind", ["restricted_mean", "event_by_horizon"])
def test_a_schema_of_such_an_outcome_travels(kind):
    schema = by_horizon(kind=kind, censoring={"floor": 0.3, "bins": 5, "by_arm": True}, missing="drop")
    assert TableSchema.from_dict(schema.to_dict()) == schema
    assert Domain.from_dict(schema.domain.to_dict()) == schema.domain
    assert schema.domain.select([0]).censoring == schema.domain.censoring
    assert schema.domain.expected_weight == 0.3**0.5  # between the floor and one
    assert schema.outcome == {"restricted_mean": "months", "event_by_horizon": "died"}[kind]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"horizon": 0}, "horizon of the outcome is 0"),
        ({"kind": "hazard"}, "choose restricted_mean or event_by_horizon"),
        ({"event": "months"}, "are both 'months'"),
        ({"event": "a"}, "column 'a' has two roles"),
        ({"censoring": {"floor": 0}}, "censoring.floor is 0"),
        ({"censoring": {"bins": 0}}, "censoring.bins is 0"),
        ({"censoring": {"curve": 1}}, "censoring has the unknown entry 'curve'; known are bins, by_arm, floor"),
    ],
)
def test_what_is_no_such_outcome_is_refused_in_one_line(entries, words):
    with pytest.raises(InputError, match=words) as refusal:
        by_horizon(**entries)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("months", [-1.0, 2.0, 3.0, 4.0], "'months' has 1 value below 0"),
        ("died", [0, 1, 2, 1], "'died' has 1 value outside its .* is no censoring: give"),
        ("died", [0, 1, np.nan, 1], "missing"),
    ],
)
def test_what_is_no_follow_up_is_refused(column, values, words):
    frame = FRAME.assign(**{column: values})
    with pytest.raises(InputError, match=words):
        checked_records(by_horizon(), frame[["x"]], frame["a"], frame[["months", "died"]], None)


def test_records_without_time_or_event_may_count_nothing():
    frame = FRAME.assign(months=[3.0, np.nan, 4.0, 5.0], died=[1, 0, np.nan, 0])
    schema = by_horizon(missing="drop")
    found = checked_records(schema, frame[["x"]], frame["a"], frame[["months", "died"]], None)
    assert found.weight.tolist() == [1.0, 0.0, 0.0, 1.0]
