"""``predict`` with what stands beside the answers: kept columns, intervals, rows outside the domain."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.helpers import one_line
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
    "covariates": {"age": {"low": 16, "high": 60}, "site": {"categories": list("abc")}},
    "propensity": 0.5,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A release of effects with intervals, and one of a rule."""
    folder, rng, n = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), 3000
    treat, age = rng.integers(0, 2, n), rng.integers(16, 61, n)
    frame = pd.DataFrame({"treat": treat, "age": age, "site": rng.choice(list("abc"), n)})
    frame["pay"] = np.clip(2 + treat + 0.05 * age + rng.normal(0, 1, n), 0, 10)
    frame.to_csv(folder / "trial.csv", index=False)
    (folder / "trial.yaml").write_text(yaml.safe_dump(DOMAIN))
    words = [f"data.path={folder / 'trial.csv'}", f"data.domain={folder / 'trial.yaml'}"]
    for task in ("cate", "rule"):
        assert main(["train", *words, f"task={task}", f"run_dir={folder / task}"]) == 0
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"id": ["01", "02", "03", "04"], "age": [20, 61, 30, 60], "site": ["a", "b", "z", "c"]})
    frame.to_csv("people.csv", index=False)
    return tmp_path


def test_intervals_and_kept_columns_stand_beside_effects(runs, here, capsys):
    words = ["--keep", "id", "--keep", "site", "--interval", "--level", "0.9", "--outside", "missing"]
    assert main(["predict", str(runs / "cate"), "people.csv", "-o", "out.csv", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 effects (certified) written to out.csv")
    assert "2 of 4 rows are outside the domain, their answers missing" in shown
    found = pd.read_csv("out.csv", dtype={"id": str})
    assert list(found.columns) == ["id", "site", "effect", "low", "high"]
    assert found["id"].tolist() == ["01", "02", "03", "04"]
    assert found["effect"].isna().tolist() == found["low"].isna().tolist() == [False, True, True, False]
    release = load_release(runs / "cate")
    requested = pd.DataFrame({"age": [20, 60], "site": ["a", "c"]})
    np.testing.assert_allclose(found["effect"].dropna(), release.effect(requested))
    np.testing.assert_allclose(found[["low", "high"]].dropna(), release.interval(requested, 0.9))


def test_a_table_without_rows_has_an_answer_without_rows(runs, here):
    Path("none.csv").write_text("id,age,site\n")
    assert main(["predict", str(runs / "cate"), "none.csv", "-o", "out.csv", "--keep", "id", "--interval"]) == 0
    assert Path("out.csv").read_text() == "id,effect,low,high\n"
    assert main(["predict", str(runs / "rule"), "none.csv", "-o", "rule.csv"]) == 0
    assert Path("rule.csv").read_text() == "decision\n"


MISTAKES = {
    "": "rows 1 to 4",
    "--outside missing --keep nobody": "nobody",
    "--outside missing --level 0.9": "add --interval",
    "--outside missing --interval --level 2": "strictly between 0 and 1",
    "--outside nowhere": "invalid choice",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(runs, here, capsys, words):
    assert main(["predict", str(runs / "cate"), "people.csv", "-o", "out.csv", *words.split()]) == 2
    assert MISTAKES[words] in one_line(capsys)
    assert not Path("out.csv").exists()


def test_a_file_that_is_there_is_overwritten_by_a_word_alone(runs, here, capsys):
    Path("out.csv").write_text("mine")
    words = ["predict", str(runs / "cate"), "people.csv", "-o", "out.csv", "--outside", "missing"]
    assert main(words) == 2
    assert "output = out.csv: exists already; choose another name, or add --overwrite" in one_line(capsys)
    assert Path("out.csv").read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert Path("out.csv").read_text().startswith("effect\n")


def test_a_rule_has_no_interval(runs, here, capsys):
    assert main(["predict", str(runs / "rule"), "people.csv", "-o", "out.csv", "--interval"]) == 2
    assert "no interval of an effect at a row" in one_line(capsys)
