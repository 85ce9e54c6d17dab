"""Tables as people have them, by the command line: each is read as it should be, or refused in a line with a remedy."""

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.helpers import leaks, one_line, summary
from torchdpcate.cli.main import main
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.errors import InputError

FACTS = {
    "treatment": "treat",
    "outcome": {"name": "y", "low": 0, "high": 10},
    "covariates": {"age": {"low": 18, "high": 80}, "sex": {"categories": ["F", "M"]}},
    "overlap": 0.1,
    "propensity": 0.5,
    "origin": "protocol",
}
TRAIN = ["train", "task=average_effect", "data.path=t.csv", "data.domain=d.yaml", "run_dir=run"]


def records(n: int = 400) -> pd.DataFrame:
    """Return a trial's records; the effect is 1."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 81, n), "sex": rng.choice(["F", "M"], n), "treat": np.arange(n) % 2})
    frame["y"] = (3 + frame["treat"] + rng.uniform(-1, 1, n)).round(2)
    return frame


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """Write the domain file into the present folder."""
    monkeypatch.chdir(tmp_path)
    Path("d.yaml").write_text(yaml.safe_dump(FACTS))


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [[], ["data.stream=true"]])
def test_values_that_are_clipped_are_counted_for_the_curator_alone(capsys, words) -> None:
    """Codes of missing values: the refusal names them first, and clipping says how many values it moved."""
    frame = records()
    frame.loc[frame.index % 16 == 0, "y"] = -99.0
    frame.loc[[1, 3], "age"] = 99
    frame.to_csv("t.csv", index=False)
    assert main([*TRAIN, *words]) == 2
    refused = one_line(capsys)
    assert "covariate 'age' has 2 values outside its declared bounds [18, 80]; " in refused or "'y' has 25" in refused
    assert "codes of missing values" in refused
    assert "-99.0" not in refused
    assert main([*TRAIN, "data.out_of_bounds=clip", *words]) == 0
    out, err = capsys.readouterr()
    shown = " ".join(out.split())
    assert "unreleased: values moved to their bounds y 25 of 400 (6.25 %), age 2 of" in shown
    assert "warning: column 'y': 25 of 400 (6.25 %) values were outside the declared bounds [0, 10]" in err
    assert "'age'" not in err  # half a percent
    assert summary("run")["moved_to_bounds"] == {"rows": 400, "values": {"y": 25, "age": 2}}
    assert not any("moved_to_bounds" in path.read_text(errors="ignore") for path in Path("run/release").rglob("*"))
    assert leaks("run") == ()


LEVELS = ["none", "mild", "severe"]
EVENT = {"time": "t", "event": {"name": "end", "success": "relapse", "censored": "left"}, "kind": "event_by_horizon"}
ANSWERS = {  # entries of outcomes, and their effects; that of an event is 0 where death is taken for censoring
    "competing events": (EVENT | {"horizon": 10, "censoring": {"floor": 0.3}}, -0.352),
    "a score": ({"name": "y", "low": 0, "high": 10}, 1.0),
    "scores of words": ({"name": "like", "scores": {"none": 0, "mild": 1, "severe": 2}}, 2 / 3),
    "several successes": ({"name": "like", "categories": LEVELS, "success": LEVELS[1:]}, 1 / 3),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("outcome", ANSWERS)
def test_a_file_whose_cells_carry_words_has_its_effect(outcome) -> None:
    """Labels below the header, words of one width, blanks, ages with a sign; within four standard errors or more."""
    (entry, truth), random, frame = ANSWERS[outcome], np.random.default_rng(1), records(4_000)
    means = np.array([frame["treat"] * 0 + 10, 20 / (1 + 9 * frame["treat"]), frame["treat"] * 0 + 30])
    times = random.exponential(means)
    frame["t"], frame["end"] = times.min(0), np.array([" relapse", "death", "left "])[times.argmin(0)]
    frame["like"] = np.array(["none  ", "mild  ", "severe"])[(frame["treat"] + random.integers(0, 3, 4_000)).clip(0, 2)]
    frame["sex"] = np.where(frame.index % 50 == 0, "  ", frame["sex"] + " ")
    frame["age"] = frame["age"].astype(object).where(frame["age"] < 80, "> 79")
    labels = ",".join(frame.columns.str.upper())
    Path("t.csv").write_text(frame.to_csv(index=False).replace("\n", f"\n{labels}\n", 1))
    more, known = {"age": {"words": {"> 79": 80}}, "sex": {"missing": "indicator"}}, FACTS["covariates"]
    facts = {"outcome": entry, "covariates": {name: known[name] | more[name] for name in more}}
    Path("d.yaml").write_text(yaml.safe_dump(FACTS | facts))
    assert main([*TRAIN, "data.skip_after_header=1", "privacy.epsilon=1000"]) == 0
    assert summary("run")["estimate"] == pytest.approx(truth, abs=0.1)
    assert ("by a released curve of 10 parts" in Path("run/release/privacy.md").read_text()) == ("time" in entry)


def csv(**how) -> str:
    return records(40).to_csv(index=False, **how)


def packed() -> bytes:
    """Return what a workbook begins with: it is a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("xl/worksheets/sheet1.xml", csv())
    return buffer.getvalue()


STARTS = {  # beyond the forms of tests/data/test_csv.py
    "bars": (csv(sep="|").encode(), "separates columns by bars; give data.separator=bar"),
    "a preamble": (b"# export 2024\n# n, by site = 3\n" + csv().encode(), "comments (#); delete all lines before"),
    "a title": (b"Export of 2024\n" + csv().encode(), "header are passed over by data.skip_lines=NUMBER"),
    "UTF-16 without a mark": (csv().encode("utf-16-le"), "as UTF-16 does; give data.encoding=utf-16-le"),
    "a workbook": (packed(), "is a workbook (xlsx) or a zip file; save it as comma-separated UTF-8"),
    "parquet": (records(40).to_parquet(), "is a parquet file; give it a name that ends in .parquet"),
    "packed": (gzip.compress(csv().encode()), "is packed by gzip; give it a name that ends in .csv.gz"),
    "a header in Latin-1": (csv().replace("age", "Größe").encode("latin-1"), "as UTF-8, or give data.encoding=latin-1"),
}


@pytest.mark.parametrize("kind", STARTS)
def test_a_file_of_another_kind_is_refused_with_its_remedy(capsys, kind) -> None:
    content, remedy = STARTS[kind]
    Path("t.csv").write_bytes(content)
    for words in (TRAIN, ["domain", "t.csv", "-o", "draft.yaml"]):
        assert main(words) == 2
        message = one_line(capsys)
        assert remedy in message
        assert not any(cell in message for cell in (*map(str, records(40)["y"]), "Gr"))
    assert not Path("draft.yaml").exists()
    assert not Path("run").exists()


def test_a_column_that_is_not_read_may_be_there_twice_or_in_another_encoding(capsys) -> None:
    """``domain`` and ``train`` agree: what cannot be a covariate is left out of the draft, and not read."""
    frame = records(40).assign(id=1, note="größer").rename(columns={"y": "pay"})
    frame.insert(0, "Id", 2)
    Path("t.csv").write_bytes(frame.rename(columns={"Id": "id"}).to_csv(index=False).encode("latin-1"))
    assert Table("t.csv", FACTS | {"outcome": {"name": "pay", "low": 0, "high": 10}}).load().n == 40
    assert main(["domain", "t.csv", "--treatment", "treat", "--outcome", "pay"]) == 0
    out = capsys.readouterr().out
    assert "# left out: id, there more than once; rename all but one to use it" in out
    assert "# left out: note, not in UTF-8; save the file as UTF-8, or give --encoding latin-1, to use it" in out
    assert list(yaml.safe_load(out)["covariates"]) == ["age", "sex"]
    for name, words in (("id", "there more than once; rename"), ("note", "not in UTF-8; save")):
        assert main(["domain", "t.csv", "--outcome", name]) == 2
        assert f"outcome = {name}: the column is {words}" in one_line(capsys)


@pytest.mark.slow
def test_a_trial_without_covariates_takes_a_column_of_zeros(capsys) -> None:
    records().assign(none=0).drop(columns=["age", "sex"]).to_csv("t.csv", index=False)
    Path("d.yaml").write_text(yaml.safe_dump(FACTS | {"covariates": {}}))
    assert main(TRAIN) == 2
    assert "add a column of zeros to the table, and none: {low: 0, high: 1}" in one_line(capsys)
    Path("d.yaml").write_text(yaml.safe_dump(FACTS | {"covariates": {"none": {"low": 0, "high": 1}}}))
    assert main([*TRAIN, "privacy.epsilon=1000"]) == 0
    assert summary("run")["estimate"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("written", ["50 %", "1/2", "0,5", "0.5"])
def test_a_propensity_is_a_number_with_a_point(written) -> None:
    with pytest.raises(InputError, match=r"propensity is .*; write a number with a decimal point, such as 0\.5"):
        TableSchema.from_dict({**FACTS, "propensity": written})
    assert TableSchema.from_dict({**FACTS, "propensity": "2024"}).propensity_column == "2024"


def test_an_address_is_no_file(capsys) -> None:
    for ending in ("csv", "parquet"):
        for words in (
            [*TRAIN, f"data.path=https://example.org/t.{ending}"],
            ["domain", f"https://example.org/t.{ending}"],
        ):
            assert main(words) == 2
            assert "an address is not read: download the file first" in one_line(capsys)
