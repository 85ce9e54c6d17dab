import datetime
from pathlib import Path

import pandas as pd
import pytest
import yaml

from torchdpcate.data._cells import read_cells
from torchdpcate.data._yaml import parse_yaml
from torchdpcate.data.checked import encode_records
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.errors import InputError

FACTS = {
    "treatment": {"name": "arm", "categories": ["placebo", "drug"]},
    "outcome": {"name": "died", "categories": ["no", "yes"]},
    "covariates": {
        "age": {"low": 20, "high": 80, "missing": "indicator"},
        "crp": {"low": 0, "high": 1000, "typical": [1, 50], "missing": "indicator", "codes": ["<1"]},
        "smoker": {"categories": [0, 1], "missing": "indicator"},
        "site": {"categories": ["north", "south", "west"], "missing": "indicator"},
        "bmi": {"low": 10, "high": 60, "codes": []},
    },
    "codes": [-99, ".", "NA"],
}
ROWS = {
    "arm": ["placebo", "drug", "drug", "placebo"],
    "died": ["no", "yes", "no", "no"],
    "age": ["40", "-99.0", "", "."],
    "crp": ["5", "10", "<1", "100"],
    "smoker": ["1", "", "0", "-99"],
    "site": ["north", "NA", None, "west"],
    "bmi": [20, 30, 40, 50],
}


def schema(**changes: object) -> TableSchema:
    return TableSchema.from_dict(FACTS | changes)


def covariate(**entry: object) -> TableSchema:
    return schema(covariates={"age": entry}, codes=[])


# -- covariates


def test_a_missing_number_is_the_middle_of_its_scale_and_an_indicator() -> None:
    read = schema()
    assert read.domain.names == (
        *("age", "age=missing", "crp", "crp=missing", "smoker=0", "smoker=1", "smoker=missing"),
        *("site=north", "site=south", "site=west", "site=missing", "bmi"),
    )
    assert read.domain.indicators[:4] == (1, None, 3, None)
    x = read.encode(pd.DataFrame(ROWS))
    assert x[:, :2].tolist() == [[40, 0], [50, 1], [50, 1], [50, 1]]
    assert x[:, 3].tolist() == [0, 0, 1, 0]
    assert read.domain.scale(x)[2, 2].abs() < 1e-12
    assert x[:, 4:7].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert x[:, 7:11].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]]
    read.domain.check_covariates(x)
    frame = pd.DataFrame(ROWS)
    records = encode_records(frame, read)
    assert (records.a.tolist(), records.y.tolist()) == ([0, 1, 1, 0], [0, 1, 0, 0])


def test_a_missing_value_moves_no_other_record() -> None:
    """The rule is one for each record by itself: what others hold changes nothing."""
    read, frame = schema(), pd.DataFrame(ROWS)
    other = frame.assign(age=["80", "-99", "20", "20"])
    assert read.encode(frame)[1].tolist() == read.encode(other)[1].tolist()
    assert read.encode(frame.iloc[[1]]).tolist() == read.encode(frame)[1:2].tolist()


def test_columns_without_the_entry_are_encoded_as_ever_and_refuse() -> None:
    plain = {"low": 20, "high": 80}
    with pytest.raises(InputError, match=r"column 'age' has 3 missing values; .*: missing: indicator"):
        covariate(**plain, codes=[-99, "."]).encode(pd.DataFrame(ROWS))
    words = {"categories": ["north", "south", "west"]}
    with pytest.raises(InputError, match="has 1 missing value; say in"):
        schema(covariates={"site": words}, codes=[]).encode(pd.DataFrame(ROWS).iloc[[0, 2]])
    with pytest.raises(InputError, match=r"has 1 value outside .* name codes of missing values"):
        schema(covariates={"site": words}, codes=[]).encode(pd.DataFrame(ROWS).iloc[[0, 1]])


def test_codes_are_numbers_in_any_writing_and_words() -> None:
    column = pd.Series(["-99", " -99.0", "99", "NA", ".", None])
    assert read_cells(column, (-99, ".", "NA")).isna().tolist() == [True, True, False, True, True, True]
    assert read_cells(pd.Series([2**60 + 1, -99]), (-99,)).tolist()[0] == 2**60 + 1
    assert read_cells(pd.Series([1.5, -99.0]), ("-99",)).isna().tolist() == [False, True]
    assert read_cells(pd.Series(["099", "99"]), (99,), text=True).isna().tolist() == [False, True]


def test_a_domain_in_code_has_its_missing_values_in_files() -> None:
    facts = {"two_levels": [False, True, False], "names": ["p", "p=missing", "b"]}
    domain = Domain([0.0] * 3, [1.0] * 3, 0.0, 1.0, **facts, indicators={"p": "p=missing"})
    found = TableSchema.from_domain(domain)
    assert found.may_miss == ["p"]
    assert found.columns == ("p", "b")
    assert TableSchema.from_dict(found.to_dict()).domain.indicators == domain.indicators
    other = facts | {"names": ["p", "gone", "b"]}
    with pytest.raises(InputError, match="indicators: of 'p' it is 'gone'; let the next column be 'p=missing'"):
        TableSchema.from_domain(Domain([0.0] * 3, [1.0] * 3, 0.0, 1.0, **other, indicators={"p": "gone"}))


# -- words


def test_yes_and_no_are_words_in_yaml_and_true_and_false_are_not() -> None:
    found = parse_yaml("a: [no, yes, on, Off, true, FALSE]\n")
    assert found == {"a": ["no", "yes", "on", "Off", True, False]}


@pytest.mark.parametrize(
    ("entry", "values", "expected"),
    [
        ("{name: y, categories: [no, yes]}", ["yes", "no"], [1, 0]),
        ("{name: y, categories: [yes, no], success: yes}", ["yes", "no"], [1, 0]),
        ("{name: y, categories: [1, 2], success: 1}", [2, 1], [0, 1]),
        ("{name: y, categories: [true, false], success: false}", ["TRUE", "false"], [0, 1]),
        ("{name: y, categories: [ill, well, dead], success: dead}", ["dead", "ill"], [1, 0]),
        ("{name: y, low: 0, high: 1, kind: binary}", ["true", "false"], [1, 0]),
    ],
)
def test_an_outcome_in_words(entry: str, values: list, expected: list) -> None:
    facts = FACTS | {"outcome": parse_yaml(entry)}
    read = TableSchema.from_dict(facts)
    frame = pd.DataFrame({"y": values})
    assert read.encode_outcome(frame).tolist() == expected
    assert (read.domain.outcome_kind, read.domain.outcome_low, read.domain.outcome_high) == ("binary", 0, 1)
    assert TableSchema.from_dict(yaml.safe_load(yaml.safe_dump(read.to_dict(), sort_keys=False))) == read


# -- dates


def test_dates_are_days_since_their_lower_bound() -> None:
    read = covariate(kind="date", low="2015-01-01", high="2016-01-01", typical=["2015-02-01", "2015-12-01"])
    assert read.domain.covariate_high.tolist() == [365]
    assert read.domain.typical == ((31.0, 334.0),)
    for values in (
        ["2015-02-01", "2016-01-01"],
        ["2015-02-01T23:59:00Z", "2016-01-01 00:00"],
        [datetime.date(2015, 2, 1), datetime.date(2016, 1, 1)],
        pd.to_datetime(["2015-02-01 10:00", "2016-01-01 00:00"]),
        pd.to_datetime(["2015-02-01", "2016-01-01"]).tz_localize("UTC"),
    ):
        assert read.encode(pd.DataFrame({"age": values})).tolist() == [[31.0], [365.0]]
    facts = {"kind": "date", "low": "2015-01-01", "high": "2016-01-01", "typical": ["2015-02-01", "2015-12-01"]}
    assert read.to_dict()["covariates"]["age"] == facts
    assert TableSchema.from_dict(read.to_dict()) == read
    assert "age: 2015-01-01 to 2016-01-01 (typically 2015-02-01 to 2015-12-01)" in read._repr_html_()


def test_dates_of_files(tmp_path: Path) -> None:
    read = covariate(kind="date", low=datetime.date(2015, 1, 1), high="2016-01-01", missing="indicator")
    frame = pd.DataFrame({"arm": ["drug", "placebo"], "died": ["no", "yes"], "age": ["2015-01-03", None]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(age=pd.to_datetime(frame["age"])).to_parquet(tmp_path / "moments.parquet")
    frame.assign(age=pd.to_datetime(frame["age"]).dt.date).to_parquet(tmp_path / "days.parquet")
    for name in ("t.csv", "moments.parquet", "days.parquet"):
        assert Table(tmp_path / name, read).load().records.x.tolist() == [[2.0, 0.0], [182.5, 1.0]], name


@pytest.mark.parametrize(
    ("entry", "values", "words"),
    [
        ({}, ["03.02.2015"], "column 'age' has 1 value that are no dates as declared; give low and high as 2015-01-31"),
        ({}, ["2015-02-30"], "has 1 value that are no dates"),
        ({}, [None], "has 1 missing value; say in"),
        ({"low": 2015}, [], "low of covariate 'age' is 2015; give a date as 2015-01-31"),
        ({"high": "2015-01-01"}, [], "give the earlier date as low"),
        ({"scale": "log"}, [], "covariate 'age' has the unknown entry 'scale'"),
        ({"typical": "2015-02-01"}, [], "give two numbers"),
        ({"kind": "day"}, [], "kind of covariate 'age' is 'day'; choose date"),
    ],
)
def test_dates_that_are_none(entry: dict, values: list, words: str) -> None:
    facts, frame = {"kind": "date", "low": "2015-01-01", "high": "2016-01-01", **entry}, pd.DataFrame({"age": values})
    with pytest.raises(InputError, match=words):
        covariate(**facts).encode(frame)
