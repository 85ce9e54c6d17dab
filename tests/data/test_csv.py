import itertools

import pandas as pd
import pytest
import torch
import yaml

from torchdpcate.cli.main import main
from torchdpcate.data._csv import CsvForm
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError
from torchdpcate.papers.oprescu import Dataset1

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
    ("settings", "words"),
    [
        ({"separator": ";"}, "data.separator = ';': choose one of comma, semicolon, tab, bar"),
        ({"decimal": "dot"}, "choose one of point, comma"),
        ({"thousands": "point"}, "is the sign of data.decimal too"),
        ({"encoding": "rot13"}, "is no encoding"),
        ({"encoding": "foo"}, "is no encoding"),
        ({"skip_lines": -1}, "give an integer from 0"),
    ],
)
def test_a_setting_that_there_is_not_is_refused(settings, words) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        CsvForm(**settings)


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


def test_settings_of_csv_files_are_refused_where_there_is_none(tmp_path) -> None:
    path = tmp_path / "t.parquet"
    records().to_parquet(path)
    with pytest.raises(InputError, match=r"data\.separator = tab: is of csv files"):
        Table(path, FACTS, separator="tab").load()


@pytest.mark.parametrize("program", ["dta", "sav", "sas7bdat"])
def test_files_of_other_programs(tmp_path, program) -> None:
    """Labels where the domain declares words, else the numbers; a column is not read twice in two ways."""
    path, frame = tmp_path / f"t.{program}", records().rename(columns={"größe": "size"})
    facts = FACTS | {
        "covariates": {("size" if name == "größe" else name): e for name, e in FACTS["covariates"].items()}
    }
    codes = frame["sex"].map({"F": 1, "M": 2})
    if program == "dta":
        frame.assign(sex=frame["sex"].astype("category")).to_stata(path, write_index=False)
        codes -= 1
    elif program == "sav":
        writer = pytest.importorskip("pyreadstat", reason="files of SPSS need pyreadstat")
        writer.write_sav(frame.assign(sex=codes), path, variable_value_labels={"sex": {1: "F", 2: "M"}})
    else:
        path.write_bytes(b"no such file" * 999)
        with pytest.raises(InputError, match="cannot be read as a file of SAS"):
            Table(path, facts).load()
        return
    read = Table(path, facts).load().records
    assert read.x[:, 2].tolist() == [0.0, 1.0, 1.0] * (N // 3)
    stream = TableStream(path, facts, batch_rows=5)
    assert torch.equal(torch.cat([batch.x for batch in stream]), read.x)
    numbers = {**facts, "covariates": {**facts["covariates"], "sex": {"categories": sorted(map(int, set(codes)))}}}
    assert torch.equal(Table(path, numbers).load().records.x, read.x)
    with pytest.raises(InputError, match="column 'arm' is missing"):
        Table(path, {**facts, "treatment": "arm"}).load()


def test_an_export_file_of_sas(tmp_path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat", reason="it writes the file")
    path, frame = tmp_path / "t.xpt", records().rename(columns={"größe": "size"})
    pyreadstat.write_xport(frame, path, file_format_version=5)
    facts = FACTS | {"covariates": {"age": {"low": 0, "high": 100}, "sex": {"categories": ["F", "M"]}}}
    assert Table(path, facts).load().records.x[:, 0].tolist() == frame["age"].tolist()


def test_domain_takes_the_form_too(tmp_path, capsys) -> None:
    path, draft = tmp_path / "t.csv", tmp_path / "d.yaml"
    path.write_text(text(";", ",", "."), encoding="latin-1")
    words = ["--separator", "semicolon", "--decimal", "comma", "--thousands", "point", "--encoding", "latin-1"]
    assert main(["domain", str(path), "--treatment", "treat", "-o", str(draft), *words]) == 0
    number, levels = {"low": "???", "high": "???"}, {"categories": "???"}
    assert yaml.safe_load(draft.read_text())["covariates"] == {
        "age": number,
        "sex": levels,
        "größe": number,
        "costs": number,
    }
    assert main(["domain", str(path), *words[:-2]]) == 2
    assert "data.encoding" in capsys.readouterr().err


def test_all_numbers_of_a_declared_form_are_read() -> None:
    for separator, value in itertools.product(("", "."), (0.5, 12.0, 999.99, 1000.0, 1234567.25)):
        written = f"{value:,.2f}".translate({ord(","): separator or None, ord("."): ","})
        assert CsvForm(decimal="comma", thousands="point").is_number(written)


def test_the_refusal_of_other_signs_names_each_setting_once_for_each_way(tmp_path) -> None:
    path = tmp_path / "t.csv"
    records().assign(costs=[f"{i},234" for i in range(N)]).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"give data\.thousands=comma, or data\.decimal=comma \(") as caught:
        Table(path, FACTS).load()
    assert len(str(caught.value).replace(str(tmp_path), "")) < 300


def test_queries_of_data_without_settings_say_how_to_save_them(tmp_path) -> None:
    path = tmp_path / "queries.csv"
    path.write_text("x0;x1\n0,5;0,5\n")
    with pytest.raises(InputError, match="by semicolons; save it as comma-separated UTF-8 with decimal points"):
        Dataset1(queries_path=path).load()
    path.write_text('x0,x1\n"0,5",0.5\n')
    with pytest.raises(InputError, match=r"; save it as comma-separated UTF-8 with decimal points$"):
        Dataset1(queries_path=path).load()
