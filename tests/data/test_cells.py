"""What cells hold beside numbers and declared words, read alike from every kind of file and table."""

import gzip
import importlib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from torchdpcate import AverageEffect, PrivacyBudget
from torchdpcate.cli.predict import stream_answers
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.checked import checked_records
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import read_queries
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

polars, pyreadstat = (importlib.import_module(name) if find_spec(name) else None for name in ("polars", "pyreadstat"))
OF_SPSS, OF_POLARS = (
    [pytest.param(kind, marks=pytest.mark.skipif(there is None, reason="its package is absent")) for kind in kinds]
    for there, kinds in ((pyreadstat, ("sav", "xpt")), (polars, ("polars", "lazy")))
)
FACTS = {
    "treatment": {"name": "arm", "categories": ["no", "yes"], "missing": "drop"},
    "outcome": {"name": "like", "scores": {"none": 0, "mild": 1, "severe": 5}, "missing": "drop", "kind": "continuous"},
    "covariates": {
        "age": {"low": 18, "high": 90, "words": {"> 89": 90, "88": 20}},
        "sex": {"categories": ["f", "m"], "missing": "indicator", "words": {"F": "f"}},
        "seen": {"kind": "date", "low": "2015-01-01", "high": "2015-12-31", "format": "%d%m%Y"},
        "pain": {"scores": {"low": 1, "high": 7}},
    },
}
WIDER = {"covariates": FACTS["covariates"] | {"pain": {"low": 0, "high": 9, "words": {"low": 1, "high": 7}}}}
SCHEMA = TableSchema.from_dict(FACTS)
FRAME = pd.DataFrame({
    "arm": ["no ", "yes", " no", "yes", "  "], "like": ["none", " mild", "severe", "", "5"],
    "age": ["20", " > 89", "88", "30.0", "40"], "sex": ["f  ", "m", "   ", "F", ""],
    "seen": ["01012015", "03012015 ", "02012015", "1012015", "04012015"], "pain": ["low", " high", "low", "7", "high"],
})  # fmt: skip
TYPED = FRAME.assign(
    arm=pd.array([False, True, False, True, None], dtype="boolean"), age=[20.0, 90, 20, 30, 40],
    like=pd.Categorical(["none", "mild", "severe", None, "severe"], ["none", "mild", "severe"], ordered=True),
    sex=["f", "m", None, "F", ""], seen=[1012015, 3012015, 2012015, 1012015, 4012015],
    pain=pd.Categorical(["low", "high", "low", "high", "high"], ["low", "high"]),
)  # fmt: skip
BARE = TableSchema.from_dict(FACTS | {"treatment": {"name": "arm", "missing": "drop"}} | WIDER)
TABLES = {"words": (FRAME, SCHEMA), "types": (TYPED, BARE)}
X = [[20.0, 1, 0, 0, 0, 1], [90, 0, 1, 0, 2, 7], [20, 0, 0, 1, 1, 1], [30, 1, 0, 0, 0, 7], [40, 0, 0, 1, 3, 7]]
READ = X, [0, 1, 5, 0, 5], [1, 1, 1, 0, 0]


def write(frame: pd.DataFrame, file: Path) -> None:
    """Write a table as its program does: truth values as numbers, words of an order as labels of codes."""
    truths, ordered = frame.select_dtypes("boolean"), frame.select_dtypes("category")
    plain, ending = frame.assign(**truths.astype("Float64").astype(float)), file.name.partition(".")[2]
    labels = {name: dict(enumerate(ordered[name].cat.categories, 1)) for name in ordered}
    if "csv" in ending:
        text = frame.to_csv(index=False).replace("\n", "\nArm,Liking,years,,DDMMYYYY,\n", 1).encode()
        file.write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    elif ending == "parquet":
        frame.to_parquet(file)
    elif ending == "dta":
        plain.to_stata(file, write_index=False)
    elif ending == "sav":
        codes = {name: ordered[name].cat.codes.add(1).where(ordered[name].notna()) for name in ordered}
        pyreadstat.write_sav(plain.assign(**codes), str(file), variable_value_labels=labels)
    else:
        pyreadstat.write_xport(plain.astype(dict.fromkeys(labels, object)).fillna(dict.fromkeys(labels, "")), str(file))


def numbers(parts) -> tuple[list, ...]:
    return tuple(torch.cat([getattr(part, name) for part in parts]).tolist() for name in ("x", "y", "weight"))


@pytest.mark.parametrize("cells", TABLES)
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "dta", *OF_SPSS])
def test_every_kind_of_file_is_read_alike(tmp_path, ending, cells) -> None:
    """By a table, as a site's too, a stream, ``predict``, and as queries or a page's population."""
    (frame, schema), file, found = TABLES[cells], tmp_path / f"t.{ending}", tmp_path / "found.parquet"
    write(frame, file)
    form = CsvForm(skip_after_header=int("csv" in ending))
    table = Table(file, schema, **({} if form == PLAIN else {"skip_after_header": 1}))
    assert numbers([table.load().records]) == numbers(TableStream(file, schema, batch_rows=2, form=form)) == READ
    if form != PLAIN:  # queries have no such rows
        frame.to_csv(tmp_path / "queries.csv", index=False)
    assert read_queries(file if form == PLAIN else tmp_path / "queries.csv", schema, form).tolist() == X
    for keep in ((), ("age", "seen", "pain")):
        stream_answers(file, found, schema, lambda x: dict(zip("abcdef", x.T, strict=True)), keep, False, 2, form=form)
        assert pd.read_parquet(found)[[*"abcdef"]].to_numpy().tolist() == X


@pytest.mark.parametrize("cells", TABLES)
@pytest.mark.parametrize("kind", ["pandas", "string", "object", "arrow", "parts", "computed", *OF_POLARS])
def test_every_kind_of_table_is_read_alike(monkeypatch, kind, cells) -> None:
    (frame, schema), found = TABLES[cells], []
    arrow = pa.Table.from_pandas(frame)
    make = {
        **{"string": frame.astype("string"), "object": frame.astype(object), "arrow": arrow},
        **{"parts": pa.concat_tables([arrow[:2], arrow[2:]])},
        **(dict.fromkeys(("polars", "lazy"), polars.from_pandas(frame)) if polars is not None else {}),
    }
    table = make.get(kind, frame)
    whole = {"computed": SimpleNamespace(compute=lambda: frame), "lazy": table.lazy() if kind == "lazy" else table}
    monkeypatch.setattr(
        "torchdpcate.estimators.base.checked_records", lambda *given: found.append(checked_records(*given))
    )
    with pytest.raises(AttributeError):  # of None, in the place of records
        AverageEffect(schema, None).fit(whole.get(kind, table), table["arm"], table["like"])
    assert numbers(found) == READ


def test_lazy_columns_are_refused_and_rows_of_other_cells_are_outside() -> None:
    with pytest.raises(InputError, match="Y is lazy; collect the table once"):
        AverageEffect(SCHEMA, None).fit(FRAME, FRAME["arm"], SimpleNamespace(collect=lambda: FRAME["like"]))
    known, which = SCHEMA.encode_known(FRAME.assign(age=["20", "?", "88", "91", "> 89"]))
    assert (known[:, 0].tolist(), which.tolist()) == ([20, 20, 90], [True, False, True, False, True])


@pytest.mark.parametrize("kind", ["boolean", "Int64", "Float64", "bool[pyarrow]", "double[pyarrow]", "string", object])
def test_missing_values_of_every_type_have_one_line(kind) -> None:
    unit = {"low": 0, "high": 1}
    facts = {"treatment": "a", "outcome": {"name": "y", "kind": "binary", **unit}, "covariates": {"x": unit}}
    column = pd.Series(["1", "0"] if kind == "string" else [1, 0], dtype=kind if kind == "string" else "Int64")
    column = pd.concat([column.astype(kind), pd.Series([None], dtype=kind)], ignore_index=True)
    whole = pd.Series([0, 1, 1])
    line = "1 missing or infinite value; say in the domain file how they are taken: missing"
    frame, schema = pd.DataFrame({"x": [0.5, 0.2, 0.1]}), TableSchema.from_dict(facts)
    for what, given in {"treatment": (column, whole), "outcome": (whole, column)}.items():
        with pytest.raises(InputError, match=f"^{what} has {line}"):
            AverageEffect(schema, PrivacyBudget(1.0, 1e-5)).fit(frame, *given)
    follow_up = {"time": "t", "event": "d", "horizon": 9}
    by_horizon = TableSchema.from_dict({**facts, "outcome": follow_up})
    with pytest.raises(InputError, match="column 'd' has 1 missing value; say in the domain file how they are taken"):
        checked_records(by_horizon, frame, whole, pd.DataFrame({"t": [1, 2, 3], "d": column}), None)
    dropped = TableSchema.from_dict({**facts, "outcome": {**follow_up, "missing": "drop"}})
    found = checked_records(dropped, frame, whole, pd.DataFrame({"t": [1, 2, 3], "d": column}), None)
    assert found.weight.tolist() == [1.0, 1.0, 0.0]


def test_codes_of_missing_values_hold_for_columns_too() -> None:
    unit, frame = {"low": 0, "high": 9}, pd.DataFrame({"x": [0.5] * 4})
    facts = {"treatment": {"name": "a", "missing": "drop"}, "outcome": {"name": "y", "missing": "drop", **unit}}
    schema = TableSchema.from_dict({**facts, "covariates": {"x": unit}, "codes": [-99]}).handling("clip")
    for kind in (list, np.array, pd.Series):
        found = checked_records(
            schema, frame, schema.labels(kind([0, 1, 1, -99])), schema.outcomes(kind([5, -99, 3, 4])), None
        )
        assert (found.weight.tolist(), found.clipped.moved) == ([1.0, 0.0, 1.0, 0.0], {})


@pytest.mark.parametrize(
    ("column", "cells", "words"),
    [
        ("age", ["20", "<15.0", "> 99"], "has 2 non-numeric values, all of them a sign and a number; say what such"),
        ("age", ["20", "90+", "old"], "has 2 non-numeric values, 1 of them a sign and a number; a number has"),
        ("sex", ["f", "M", "x"], r"has 2 values outside .* \['f', 'm'\]; 1 of them by capital letters alone: say what"),
        ("seen", ["01022015", "2015-02-01", "9"], "has 2 values that are no dates as declared; give low and high as"),
        ("pain", ["low", "LOW", "High"], "has 2 non-numeric values; .* for, words: {CELL: VALUE}, or one more of"),
        ("arm", ["no", "YES", "NO"], "has 2 values outside .*; 2 of them by capital letters alone: say what such"),
    ],
)
def test_other_cells_are_refused_and_not_shown(column, cells, words) -> None:
    frame = FRAME.iloc[:3].assign(**{column: cells})
    with pytest.raises(InputError, match=f"column '{column}' {words}") as caught:
        (SCHEMA.encode_treatment if column == "arm" else SCHEMA.encode)(frame)
    assert not any(cell in str(caught.value) for cell in cells[1:] if len(cell) > 1)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"low": 0, "high": 9, "words": {"nan": 9}}, "a code in covariate 'x' is nan; give a finite number"),
        ({"low": 0, "high": 9, "words": {"old": "z"}}, "words of covariate 'x' is 'z'; give a number"),
        ({"low": 0, "high": 9, "words": [9]}, r"words of covariate 'x' are \[9\]; give what each stands for"),
        ({"categories": ["a", "b"], "words": {"c": "d"}}, r"'c' is 'd'; give one of \['a', 'b'\]"),
        ({"categories": ["a", "b"], "words": {"a": "b"}}, "codes of 'x' hold 'a', a category"),
        ({"categories": {"a": 0, "b": 1}}, "write a list; of an outcome with an order give scores:"),
        ({"scores": {"a": 1}, "low": 0}, "give each word its number, without low, high and words"),
        ({"scores": {"1": 1, 1: 2, "b": 0}}, "words of covariate 'x' name a cell twice"),
        ({"kind": "date", "low": "2015-01-01", "high": "2016-01-01", "format": "%d.%m"}, "give it with %d, %m and %Y"),
    ],
)
def test_what_no_cell_stands_for_is_refused(entries, words) -> None:
    with pytest.raises(InputError, match=words):
        TableSchema.from_dict({**FACTS, "covariates": {"x": entries}})


def test_such_a_schema_travels() -> None:
    assert TableSchema.from_dict(SCHEMA.to_dict()) == SCHEMA
    levels = {"name": "like", "categories": ["none", "mild", "severe", "dead"], "success": ["dead", "severe"]}
    several = TableSchema.from_dict({**FACTS, "outcome": levels})
    assert TableSchema.from_dict(several.to_dict()) == several
    assert several.outcomes(["dead", "mild", "severe "]).tolist() == [1.0, 0.0, 1.0]
    TableSchema.from_dict({**FACTS, "outcome": {**levels, "success": levels["categories"][1:]}}).check_written()
    odd = TableSchema.from_dict({**FACTS, "outcome": {"name": "like", "categories": [*np.arange(2)], "success": 0}})
    learner = AverageEffect(odd, PrivacyBudget(1.0, 1e-5))
    with pytest.raises(InputError, match=r"no release's file could hold it as it is \(Object of type int64"):
        learner.fit(FRAME, [0, 1, 0, 1, 0], [0] * 5)
    assert not hasattr(learner, "ledger_")
    with pytest.raises(InputError, match="choose one or some of its categories"):
        TableSchema.from_dict({**FACTS, "outcome": {**levels, "success": levels["categories"]}})


def test_a_row_of_labels_is_told(tmp_path) -> None:
    file, unit = tmp_path / "t.csv", {"low": 0, "high": 9}
    facts = {"treatment": "a", "outcome": {"name": "y", **unit}, "covariates": {"x": unit}}
    file.write_text("a,y,x\nArm,Outcome,years\n0,1,2\n1,2,3\n")
    said = r"all 3 columns .* in the first row, and in no other; .*skip_after_header=1"
    for read in (lambda: Table(file, facts).load(), lambda: TableStream(file, facts)):
        with pytest.raises(InputError, match=said):
            read()
    assert Table(file, facts, skip_after_header=1).load().records.y.tolist() == [1.0, 2.0]
    file.write_text("a,y,x\nArm,Outcome,years\n0,1,?\n1,2,3\n")
    with pytest.raises(InputError, match="3 columns are not as the domain file says:"):
        Table(file, facts).load()


def test_names_that_differ_by_case_are_told() -> None:
    with pytest.raises(InputError, match=r"column 'age' is missing \(and 3 others\); 'AGE' is there"):
        checked_records(SCHEMA, FRAME.rename(columns=str.upper), [0, 1, 0, 1, 0], [0] * 5, None)


def test_a_line_that_is_too_long_is_refused_in_our_words(tmp_path) -> None:
    file, facts = tmp_path / "t.csv", {**FACTS, "covariates": {"x": {"low": 0, "high": 9}}}
    for text in (",".join(f"x{place}" for place in range(200_000)) + "\n", "arm,like,x\n" + "1," * 2_000_000):
        file.write_text(text)
        with pytest.raises(InputError, match="is empty, or one is longer than 1,048,576 bytes; leave columns out"):
            Table(file, facts).load()


TIMES, CODES = [3.0, 4.0, 5.0, 6.0, 12.0, 12.0], [0, 1, 2, 1, 2, 0]
EVENTS = [
    {"name": "s", "success": 1, "censored": 0},
    {"name": "s", "categories": [0, 1, 2], "success": [1], "censored": 0},
    {"name": "w", "success": "relapse", "censored": "end"},
]


def by_horizon(event, **facts) -> TableSchema:
    outcome = {"time": "t", "event": event, "horizon": 10, "kind": "event_by_horizon", **facts}
    return TableSchema.from_dict({**FACTS, "treatment": "a", "outcome": outcome})


@pytest.mark.parametrize("event", EVENTS)
def test_competing_events_never_have_it_and_are_known(event, tmp_path) -> None:
    frame = FRAME.iloc[[0, 1, 2, 3, 4, 0]].assign(a=[0, 1] * 3, t=TIMES, s=CODES)
    frame["w"] = np.array(["end ", "relapse", "death"])[frame["s"]]
    frame.to_csv(tmp_path / "t.csv", index=False)
    for kind, y in {"event_by_horizon": [0, 1, 0, 1, 0, 0], "restricted_mean": [3, 4, 5, 6, 10, 10]}.items():
        schema = by_horizon(event, kind=kind)
        censoring = schema.domain.censoring
        assert TableSchema.from_dict(schema.to_dict()) == schema
        if kind == "event_by_horizon":
            assert "before any that competes" in censoring.words
        else:  # where codes are not declared, nobody knows whether others are among them
            assert ("competes" in censoring.event_words) == ("categories" in event)
        own = frame[list(censoring.columns)]
        given = own, own.to_numpy(), torch.tensor([TIMES, CODES], dtype=torch.float64).T
        found = [checked_records(schema, frame, frame["a"], Y, None) for Y in given]
        for records in (Table(tmp_path / "t.csv", schema).load().records, *found):
            assert (records.y.tolist(), records.follow_up[:, 1].tolist()) == (y, [0, 1, 2, 1, 0, 0])
            assert censoring.observed(records.follow_up).tolist() == [False, *[True] * 5]


@pytest.mark.parametrize("missing", [False, True])
def test_a_missing_event_changes_no_other_record(missing) -> None:
    """It makes a column of integers one of floating point numbers: 1.0 is the event by the name of 1."""
    event = {"name": "d", "success": "1", "censored": "0"}
    outcome = {"time": "t", "event": event, "horizon": 9, "missing": "drop", "codes": [-9]}
    facts = {"treatment": "a", "outcome": outcome, "covariates": {"x": {"low": 0, "high": 1}}}
    frame = pd.DataFrame({"t": 3.0, "d": [1, 0, 2, -9, None if missing else 1]})
    found = TableSchema.from_dict(facts).encode_follow_up(frame)[:, 1].nan_to_num(9)
    assert found.tolist() == [1, 0, 2, 9, 9 if missing else 1]


def test_a_competing_event_is_no_censoring() -> None:
    frame = pd.DataFrame({"t": TIMES, "s": CODES})
    for event in ("s", {"name": "s", "categories": [0, 1]}):
        with pytest.raises(InputError, match=r"has 2 values outside .* a competing event is no censoring: give a"):
            by_horizon(event).encode_follow_up(frame)
    for wrong in ({"success": 1}, {"categories": [0, 1, 2]}, {"categories": 2}):
        with pytest.raises(InputError, match="a competing event is no censoring; give a column"):
            by_horizon({"name": "s", **wrong})
    for wrong in ({"success": 1, "censored": 1}, {"success": 1, "censored": 0, "categories": [1, 2]}):
        with pytest.raises(InputError, match=r"list two or more, each once|without"):
            by_horizon({"name": "s", **wrong})
