import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from torchdpcate.data.checked import checked_records
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, public_split
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError
from torchdpcate.privacy.noise import NoiseSource

FACTS = {
    "treatment": "t",
    "outcome": {"name": "y", "low": 0, "high": 10},
    "covariates": {
        "age": {"low": 16, "high": 60},
        "sex": {"categories": ["f", "m"]},
        "race": {"categories": ["a", "b", "c"]},
        "site": {"categories": [1, 2, 8]},
    },
    "overlap": 0.1,
}
RACES = {"race": {"a": 0.2, "c": 0.5, "b": 0.3}}


def schema(propensity=None, **changes) -> TableSchema:
    return TableSchema.from_dict(FACTS | changes | ({} if propensity is None else {"propensity": propensity}))


def frame(n: int = 6) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "t": [i % 2 for i in range(n)],
            "y": [float(i) for i in range(n)],
            "age": [20 + i for i in range(n)],
            "sex": ["f" if i < 2 else "m" for i in range(n)],
            "race": [("a", "b", "c")[i % 3] for i in range(n)],
            "site": [(1, 2, 8)[i % 3] for i in range(n)],
            "p": [0.1 + 0.1 * i for i in range(n)],
        }
    )


def loaded(facts: TableSchema, n: int = 6) -> CausalData:
    f = frame(n)
    return checked_records(facts, f, f["t"], f["y"], None)


@pytest.mark.parametrize(
    ("given", "bounds", "values"),
    [
        (0.5, (0.5, 0.5), [0.5] * 6),
        ({"sex": {"f": 0.3, "m": 0.6}}, (0.3, 0.6), [0.3, 0.3, 0.6, 0.6, 0.6, 0.6]),
        (RACES, (0.2, 0.5), [0.2, 0.3, 0.5] * 2),
        ({"site": {1: 0.2, 2: 0.3, 8: 0.4}}, (0.2, 0.4), [0.2, 0.3, 0.4] * 2),
        ("p", (0.1, 0.9), [0.1 + 0.1 * i for i in range(6)]),
    ],
)
def test_records_carry_what_the_schema_knows(given, bounds, values) -> None:
    facts = schema(given)
    assert facts.domain.known_propensity.bounds == pytest.approx(bounds)
    assert loaded(facts).propensity.tolist() == pytest.approx(values)
    again = TableSchema.from_dict(json.loads(json.dumps(facts.to_dict())))
    assert again == facts
    assert again.to_dict() == facts.to_dict()
    domain = Domain.from_dict(json.loads(json.dumps(facts.domain.to_dict())))
    assert domain == facts.domain
    assert domain.known_propensity == facts.domain.known_propensity
    assert facts.domain != schema().domain


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (0, "propensity is 0; it must lie between 0 and 1"),
        (0.05, r"propensity is 0.05, outside \[0.1, 0.9\] of the overlap bound"),
        (True, "propensity is True; give a number"),
        ("age", "propensity column 'age' is also a covariate"),
        ("t", "propensity column 't' is also treatment"),
        ({"race": {"a": 0.2, "b": 0.3}}, "propensity by 'race' has no number for the level 'c'"),
        ({"race": {"a": 0.2, "b": 0.3, "c": 0.99}}, "propensity of race = c is 0.99, outside"),
        ({"race": 0.5}, "propensity by 'race' is 0.5; give a number for each of its levels"),
        ({"age": {16: 0.3, 60: 0.4}}, "propensity by 'age': it is not declared to have levels"),
        ({"height": {1: 0.3}}, "propensity by 'height': there is no covariate"),
        ({"sex": {"f": 0.3, "m": 0.6}, **RACES}, "propensity names 2 covariates"),
    ],
)
def test_what_is_no_known_propensity_is_refused_in_one_line(given, words) -> None:
    with pytest.raises(InputError, match=words) as caught:
        schema(given)
    assert "\n" not in str(caught.value)


def test_a_column_outside_the_overlap_is_refused_or_clipped() -> None:
    facts, table = schema("p"), frame().assign(p=[0.05, 0.5, 0.5, 0.5, 0.5, 0.99])
    with pytest.raises(InputError, match=r"column 'p' has 2 values outside \[0.1, 0.9\] of the overlap bound"):
        checked_records(facts, table, table["t"], table["y"], None)
    clipped = checked_records(facts.handling("clip"), table, table["t"], table["y"], None)
    assert clipped.propensity.tolist() == [0.1, 0.5, 0.5, 0.5, 0.5, 0.9]


def test_it_stays_with_its_record() -> None:
    f = frame()
    records = checked_records(schema("p"), f, f["t"], f["y"], NoiseSource.fixed(3))
    expected = 0.1 + 0.1 * records.y
    assert torch.allclose(records.propensity, expected)
    _, second = public_split(6, 0.5, 0, "any")
    assert torch.equal(records.subset(second).propensity, records.propensity[second])
    assert torch.equal(records.subset(records.a == 1).propensity, records.propensity[records.a == 1])
    assert records.to("cpu").propensity is not None


def test_a_table_and_a_stream_read_the_column(tmp_path: Path) -> None:
    frame(6).to_csv(tmp_path / "t.csv", index=False)
    records = Table(tmp_path / "t.csv", schema("p")).load().records
    streamed = torch.cat([batch.propensity for batch in TableStream(tmp_path / "t.csv", schema("p"), batch_rows=4)])
    assert torch.equal(records.propensity, streamed)
    assert torch.allclose(streamed, 0.1 + 0.1 * records.y)
    with pytest.raises(InputError, match="column 'q' is missing"):
        Table(tmp_path / "t.csv", schema("q")).load()


def test_two_levels_come_from_the_schema_or_the_domain() -> None:
    assert schema().domain.two_levels == (False, True, *[True] * 6)
    assert Domain([0, 0], [1, 2], 0, 1).two_levels == (False, False)
    domain = Domain([0, 1], [5, 2], 0, 1, two_levels=[False, True], propensity={"x1": {1: 0.3, 2: 0.6}})
    assert domain.known_propensity.at(torch.tensor([[0.0, 2.0], [0.0, 1.0]])).tolist() == [0.6, 0.3]
    of = TableSchema.from_domain(domain)
    assert TableSchema.from_dict(json.loads(json.dumps(of.to_dict()))).domain == domain
    assert set(of.grid(50)[:, 1].tolist()) == {1.0, 2.0}
    with pytest.raises(InputError, match=r"two_levels is \[True\]; give true or false for each of 2"):
        Domain([0, 1], [5, 2], 0, 1, two_levels=[True])
    with pytest.raises(InputError, match="two_levels of covariate 'age' is 'no'"):
        schema(covariates={"age": {"low": 0, "high": 1, "two_levels": "no"}})


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"low": 0, "high": 1, "kind": "ordinal"}, "kind of outcome is 'ordinal'; choose one of continuous, binary"),
        ({"low": 0, "high": 2, "kind": "binary"}, r"outcome is binary with bounds \[0, 2\]"),
        ({"low": -1, "high": 2, "kind": "count"}, r"outcome is a count with bounds \[-1, 2\]"),
        ({"low": 0, "high": 2.5, "kind": "count"}, r"outcome is a count with bounds \[0, 2.5\]"),
        ({"categories": [1, 0]}, "say which of them counts as 1: success: 0"),
        ({"categories": [0, 1, 2]}, "say which of them counts as 1: success: 2"),
        (
            {"categories": ["no", "yes"], "success": "ja"},
            "success of the outcome is 'ja'; choose one or some of",
        ),
    ],
)
def test_what_is_no_kind_is_refused(outcome, words) -> None:
    with pytest.raises(InputError, match=words):
        schema(outcome={"name": "y", **outcome})


def test_outcomes_of_a_kind_are_integers() -> None:
    facts, f = schema(outcome={"name": "y", "low": 0, "high": 10, "kind": "count"}), frame()
    f["y"] = [0, 1, 2.5, 3, 4, 5]
    with pytest.raises(InputError, match="outcome 'y' has 1 value between integers, and is declared count"):
        checked_records(facts, f, f["t"], f["y"], None)
    clipped = checked_records(facts.handling("clip"), f, f["t"], f["y"] + 7.0, None)
    assert clipped.y.tolist() == [7, 8, 10, 10, 10, 10]
