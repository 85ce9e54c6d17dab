import itertools

import pandas as pd
import pytest
import torch

from torchdpcate.data._csv import CsvForm
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

FACTS = {
    "treatment": "treat",
    "outcome": {"name": "costs", "low": 0, "high": 90000},
    "covariates": {"age": {"low": 0, "high": 100}, "größe": {"low": 0, "high": 3}, "sex": {"categories": ["F", "M"]}},
    "propensity": 0.5,
}
N = 12


def records() -> pd.DataFrame:
    frame = pd.DataFrame({"treat": [0, 1] * (N // 2), "age": range(20, 20 + N), "sex": ["F", "M", "M"] * (N // 3)})
    return frame.assign(größe=1.5, costs=[1234.5 + 5000 * i for i in range(N)])


def grouped(value: float, thousands: str, decimal: str) -> str:
    return f"{value:,.2f}".translate({ord(","): thousands, ord("."): decimal})


def text(separator: str = ",", decimal: str = ".", thousands: str = "", end: str = "") -> str:
    frame = records()
    frame["costs"] = [grouped(value, thousands, decimal) for value in frame["costs"]]
    frame["größe"] = frame["größe"].map(lambda value: str(value).replace(".", decimal))
    return frame.to_csv(index=False, sep=separator, lineterminator=end + "\n")


HEADER = text().splitlines()[0]
TOTALS = "Total\n,31.5,,1.5,\n"
FORMS = {
    "German": (text(";", ",", "."), {"separator": "semicolon", "decimal": "comma", "thousands": "point"}),
    "French": (text(";", ",", "\u202f"), {"separator": "semicolon", "decimal": "comma", "thousands": "space"}),
    "Swiss": (text("\t", ".", "'"), {"separator": "tab", "thousands": "apostrophe"}),
    "American": (text(",", ".", ","), {"thousands": "comma"}),
    "commas in quotes": (text(",", ","), {"decimal": "comma"}),
    "Excel's line": ("sep=;\r\n" + text(";"), {"separator": "semicolon"}),
    "Excel's line of commas": ("sep=,\n" + text(), {}),
    "trailing, header too": (text(end=","), {}),
    "a title": ("Export, of 2024\n\n" + text(), {"skip_lines": 2}),
}
ENCODINGS = ["utf-8-sig", "latin-1", "cp1252", "utf-16"]


@pytest.mark.parametrize("name", FORMS)
def test_a_declared_form_is_read_and_a_usual_one_refused_by_its_setting(tmp_path, name) -> None:
    content, settings = FORMS[name]
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    read = Table(path, FACTS, **settings).load().records
    assert read.x[:, 0].tolist() == list(range(20, 20 + N))
    assert read.x[:, 1].tolist() == [1.5] * N
    assert read.y.tolist() == pytest.approx(records()["costs"].round(2).tolist())
    stream = TableStream(path, FACTS, batch_rows=5, form=CsvForm(**settings))
    assert torch.equal(torch.cat([batch.y for batch in stream]), read.y)
    for setting in settings:
        left = {key: value for key, value in settings.items() if key != setting}
        messages = []
        for make in (lambda: Table(path, FACTS, **left).load(), lambda: TableStream(path, FACTS, form=CsvForm(**left))):  # noqa: B023
            with pytest.raises(InputError) as caught:
                make()
            messages.append(str(caught.value))
        for message in messages:
            assert f"data.{setting}" in message
            assert "1234" not in message
            assert "31.5" not in message
            assert all(line.startswith("- ") for line in message.splitlines()[1:])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_are_named_by_the_refusal(tmp_path, encoding) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text(), encoding=encoding)
    assert Table(path, FACTS, encoding=encoding).load().n == N
    for other in {"utf-8", "latin-1", "utf-16"} - {encoding}:
        if {encoding, other} in ({"utf-8-sig", "utf-8"}, {"cp1252", "latin-1"}):  # the same letters here
            continue
        with pytest.raises(InputError, match=r"data\.encoding"):
            Table(path, FACTS, encoding=other).load()


@pytest.mark.parametrize(
    ("content", "settings", "words"),
    [
        (text(";", ","), {"separator": "semicolon", "decimal": "comma", "thousands": "space"}, None),
        (text(), {"separator": "semicolon"}, "separates columns by commas; give data.separator=comma"),
        (text(), {"decimal": "comma"}, "give data.decimal=point"),
        (text(end=",").replace(",\n", "\n", 1), {}, "a separator at the end of each row; write it without"),
        (text().replace("\n1,", f"\n{HEADER}\n1,"), {}, "holds its own name in 6 of its rows; .* delete these rows"),
        (text() + TOTALS, {}, "Expected 5 columns, got 1; .* delete last rows that are no records"),
        (text() + TOTALS.partition("\n")[2], {}, "column 'treat' has 1 missing value"),
        (text(), {"skip_lines": 99}, "data.skip_lines = 99 passes over all of it; give the number of lines before"),
        (text(), {"skip_lines": N + 1}, f"data.skip_lines = {N + 1} passes over all of it"),
        (text(), {"skip_lines": 2}, "has the file a header, .* data.skip_lines = 2 may pass over it"),
    ],
)
def test_a_form_that_the_file_has_not_is_refused(tmp_path, content, settings, words) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    if words is None:
        assert Table(path, FACTS, **settings).load().n == N
        return
    with pytest.raises(InputError, match=words):
        Table(path, FACTS, **settings).load()


def test_labels_are_words_where_the_domain_declares_words_else_numbers(tmp_path) -> None:
    """As test_cells.py has it of words; codes of Stata begin with 0."""
    path, frame, unit = tmp_path / "t.dta", records().drop(columns="größe"), {"low": -9, "high": 99}
    frame.assign(sex=frame["sex"].astype("category")).to_stata(path, write_index=False)
    facts = FACTS | {"covariates": {"sex": {"categories": ["F", "M"]}}}
    read = Table(path, facts).load().records
    assert read.x[:, 0].tolist() == [0.0, 1.0, 1.0] * (N // 3)
    for entry in ({"categories": [0, 1]}, unit):
        assert torch.equal(Table(path, facts | {"covariates": {"sex": entry}}).load().records.x, read.x)
    with pytest.raises(InputError, match="column 'arm' is missing"):
        Table(path, {**facts, "treatment": "arm"}).load()
    (tmp_path / "t.sas7bdat").write_bytes(b"no such file" * 999)
    with pytest.raises(InputError, match="cannot be read as a file of SAS"):
        Table(tmp_path / "t.sas7bdat", facts).load()


def test_all_numbers_of_a_declared_form_are_read() -> None:
    for separator, value in itertools.product(("", "."), (0.5, 12.0, 999.99, 1000.0, 1234567.25)):
        written = f"{value:,.2f}".translate({ord(","): separator or None, ord("."): ","})
        assert CsvForm(decimal="comma", thousands="point").is_number(written)
