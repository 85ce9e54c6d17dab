"""Tables as people have them, by the command line: each is read as it should be, or refused in a line with a remedy."""

import gzip
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.cli.main import main
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

DOMAIN = """
treatment: treat
outcome: {name: y, low: 0, high: 10}
covariates:
  age: {low: 18, high: 80}
  sex: {categories: [F, M]}
overlap: 0.1
propensity: 0.5
origin: protocol
"""


FACTS = yaml.safe_load(DOMAIN)


def records(n: int = 400) -> pd.DataFrame:
    """Return a trial's records; the effect is 1."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 81, n), "sex": rng.choice(["F", "M"], n), "treat": np.arange(n) % 2})
    frame["y"] = (3 + frame["treat"] + rng.uniform(-1, 1, n)).round(2)
    return frame


@pytest.fixture
def train(tmp_path, capsys) -> Any:
    """Return a function that trains on a table and returns the exit status, what was printed, and the errors."""

    def run(table: pd.DataFrame | str | Path, *words: str, domain: str = DOMAIN, task: str = "average_effect") -> Any:
        if isinstance(table, pd.DataFrame):
            table.to_csv(tmp_path / "t.csv", index=False)
        path = tmp_path / "t.csv" if isinstance(table, pd.DataFrame) else table
        (tmp_path / "d.yaml").write_text(domain)
        given = [f"task={task}", "data=table", f"data.path={path}", f"data.domain={tmp_path / 'd.yaml'}"]
        rc = main(["train", *given, f"run_dir={tmp_path / 'run'}", "privacy.delta=0", *words])
        out, err = capsys.readouterr()
        complaints = [line for line in err.splitlines() if not line.startswith("torchdpcate: warning: ")]
        refused = rc == 2 and all(line.startswith("- ") for line in complaints[1:])
        assert rc == 0 or (refused and not (tmp_path / "run").exists())
        return rc, out, err

    return run


@pytest.fixture
def read(tmp_path) -> Any:
    """Return a function that reads a frame as a csv file."""

    def load(table: pd.DataFrame, facts: dict = FACTS) -> Any:
        table.to_csv(tmp_path / "t.csv", index=False)
        return Table(tmp_path / "t.csv", facts).load()

    return load


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [[], ["data.stream=true"]])
def test_values_that_are_clipped_are_counted_for_the_curator_alone(train, tmp_path, words) -> None:
    """Codes of missing values: the refusal requests them first, and clipping says how many values it moved."""
    frame = records()
    frame.loc[frame.index % 16 == 0, "y"] = -99.0
    frame.loc[[1, 3], "age"] = 99
    refused = train(frame, *words)[2]
    assert "covariate 'age' has 2 values outside its declared bounds [18, 80]; " in refused or "'y' has 25" in refused
    assert "codes of missing values" in refused
    assert "-99.0" not in refused
    _, out, err = train(frame, "data.out_of_bounds=clip", *words)
    shown = " ".join(out.split())
    assert "unreleased: values moved to their bounds y 25 of 400 (6.25 %), age 2 of" in shown
    assert "warning: column 'y': 25 of 400 (6.25 %) values were outside the declared bounds [0, 10]" in err
    assert "'age'" not in err  # half a percent
    run = tmp_path / "run"
    facts = json.loads((run / "curator" / "summary.json").read_text())
    assert facts["moved_to_bounds"] == {"rows": 400, "values": {"y": 25, "age": 2}}
    assert not any("moved_to_bounds" in path.read_text(errors="ignore") for path in (run / "release").rglob("*"))
    assert main(["audit", "leak", str(run)]) == 0


def csv(frame: pd.DataFrame, **how: Any) -> str:
    return frame.to_csv(index=False, **how)


def packed(frame: pd.DataFrame) -> bytes:
    """Return what a workbook begins with: it is a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("xl/worksheets/sheet1.xml", csv(frame))
    return buffer.getvalue()


SEMICOLONS = "separates columns by semicolons; give data.separator=semicolon (predict, domain: --separator semicolon)"
SAVE = "save it as comma-separated UTF-8"
STARTS = {
    "semicolons, no header": (lambda f: csv(f, sep=";", header=False), SEMICOLONS),
    "bars": (lambda f: csv(f, sep="|"), "separates columns by bars; give data.separator=bar"),
    "a preamble": (lambda f: "# export 2024\n# n, by site = 3\n" + csv(f), "comments (#); delete all lines before"),
    "a title": (lambda f: "Export of 2024\n" + csv(f), "header are passed over by data.skip_lines=NUMBER"),
    "UTF-16 without a mark": (lambda f: csv(f).encode("utf-16-le"), "as UTF-16 does; give data.encoding=utf-16-le"),
    "a workbook": (packed, "is a workbook (xlsx) or a zip file; " + SAVE),
    "parquet": (lambda f: f.to_parquet(), "is a parquet file; give it a name that ends in .parquet"),
    "packed": (lambda f: gzip.compress(csv(f).encode()), "is packed by gzip; give it a name that ends in .csv.gz"),
    "a header in Latin-1": (
        lambda f: csv(f.rename(columns={"age": "Größe"})).encode("latin-1"),
        "save the file as UTF-8, or give data.encoding=latin-1",
    ),
}


@pytest.mark.parametrize("kind", STARTS)
def test_a_file_of_another_kind_is_refused_with_its_remedy(tmp_path, capsys, kind) -> None:
    write, remedy = STARTS[kind]
    content = write(records(40))
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    messages = []
    for read in (lambda: Table(path, FACTS).load(), lambda: TableStream(path, FACTS)):
        with pytest.raises(InputError) as caught:
            read()
        messages.append(str(caught.value))
    assert main(["domain", str(path), "-o", str(tmp_path / "draft.yaml")]) == 2
    assert not (tmp_path / "draft.yaml").exists()
    for message in (*messages, capsys.readouterr().err):
        assert remedy in message
        assert len(message.splitlines()) == 1
        assert not any(cell in message for cell in (*map(str, records(40)["y"]), "Gr", "years"))


def test_a_column_that_is_not_read_may_be_there_twice_or_in_another_encoding(tmp_path, capsys) -> None:
    """``domain`` and ``train`` agree: what cannot be a covariate is left out of the draft, and not read."""
    frame = records(40).assign(id=1, note="größer").rename(columns={"y": "pay"})
    frame.insert(0, "Id", 2)
    path = tmp_path / "t.csv"
    path.write_bytes(csv(frame.rename(columns={"Id": "id"})).encode("latin-1"))
    assert Table(path, {**FACTS, "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"}}).load().n == 40
    assert main(["domain", str(path), "--treatment", "treat", "--outcome", "pay"]) == 0
    out = capsys.readouterr().out
    assert "# left out: id, there more than once; rename all but one to use it" in out
    assert "# left out: note, not in UTF-8; save the file as UTF-8, or give --encoding latin-1, to use it" in out
    assert list(yaml.safe_load(out)["covariates"]) == ["age", "sex"]
    for name, words in (("id", "there more than once; rename"), ("note", "not in UTF-8; save")):
        assert main(["domain", str(path), "--outcome", name]) == 2
        assert f"outcome = {name}: the column is {words}" in capsys.readouterr().err
        facts = {**FACTS, "outcome": {"name": name, "low": 0, "high": 1, "better": "higher"}}
        with pytest.raises(InputError, match="2 times; rename" if name == "id" else "save the file as UTF-8"):
            Table(path, facts).load()


def estimate(out: str) -> float:
    return float(re.search(r"^estimate +(\S+)$", out, re.MULTILINE)[1])


@pytest.mark.parametrize("codes", [("No", "Yes"), (1, 2)])
def test_arms_by_other_names_are_read_as_the_message_says(read, codes) -> None:
    told = records(40).assign(treat=[codes[arm] for arm in records(40)["treat"]])
    with pytest.raises(InputError, match=r"domain: treatment: {name: COLUMN, categories: \[CONTROL, TREATED\]}"):
        read(told)
    named = {**FACTS, "treatment": {"name": "treat", "categories": list(codes)}}
    assert read(told, named).records.a.tolist() == records(40)["treat"].tolist()


@pytest.mark.slow
def test_a_trial_without_covariates_takes_a_column_of_zeros(train, tmp_path, capsys) -> None:
    frame = records()[["treat", "y"]]
    none = DOMAIN.replace("covariates:\n  age: {low: 18, high: 80}\n  sex: {categories: [F, M]}", "covariates: %s")
    refused = train(frame, domain=none % "{}")[2]
    assert "add a column of zeros to the table, and none: {low: 0, high: 1}" in refused
    assert main(["domain", str(tmp_path / "t.csv"), "--treatment", "treat", "--outcome", "y"]) == 2
    assert "add a column of zeros, with low: 0 and high: 1" in capsys.readouterr().err
    given = none % "{none: {low: 0, high: 1}}"
    out = train(frame.assign(none=0), "privacy.epsilon=1000", domain=given)[1]
    assert estimate(out) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("written", ["50%", "50 %", "1/2", "0,5", "0.5"])
def test_a_propensity_is_a_number_with_a_point(written) -> None:
    with pytest.raises(InputError, match=r"propensity is .*; write a number with a decimal point, such as 0\.5"):
        TableSchema.from_dict({**FACTS, "propensity": written})
    assert TableSchema.from_dict({**FACTS, "propensity": "2024"}).propensity_column == "2024"
    with pytest.raises(InputError, match="overlap is '5%'; give a number"):
        TableSchema.from_dict({**FACTS, "overlap": "5%"})


def test_what_is_too_small_or_far_away_is_named(train, capsys) -> None:
    refused = train(records(40), "privacy.epsilon=1e-9")[2]
    assert "is too much for its grid, or these are too many numbers; give a larger privacy.epsilon" in refused
    for ending in ("csv", "parquet"):
        with pytest.raises(InputError, match="an address is not read: download the file first"):
            Table(f"https://example.org/t.{ending}", FACTS).load()
        assert main(["domain", f"https://example.org/t.{ending}"]) == 2
        assert "an address is not read: download the file first" in capsys.readouterr().err
