"""The program as users run it: what it writes, and one line with exit code 2 for each mistake."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.helpers import QUICK, TABLE, one_line
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release


@pytest.fixture
def run(finished):
    """One finished run on generated data."""
    return finished("data=dataset1", "data.n=1200", "queries.count=25", *QUICK)


def test_verify_prints_text_and_json(run, capsys):
    path = str(run / "release" / "release.safetensors")
    assert main(["verify", path]) == 0
    printed = capsys.readouterr().out
    assert "agrees with itself" in printed
    assert "certified" in printed
    assert main(["verify", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "function"
    assert shown["privacy"]["level"] == "certified"


@pytest.fixture
def released(run, tmp_path):
    """A copy of the run's release, in a folder of its own."""
    return Path(shutil.copy(run / "release" / "release.safetensors", tmp_path))


@pytest.mark.parametrize(
    ("word", "message"), [("--card", "report RELEASE writes release.html"), ("--facts", "say who publishes")]
)
def test_options_that_went_write_nothing(word, message, released, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["verify", str(released), word]) == 2
    assert f"is no longer there; {message}" in one_line(capsys).replace("torchdpcate report", "report")
    assert sorted(tmp_path.rglob("*")) == before


def test_predict_takes_the_limit_on_memory(run, tmp_path, capsys):
    source, target = tmp_path / "in.parquet", tmp_path / "out.csv"
    release = load_release(run / "release" / "release.safetensors")
    pd.DataFrame(release.domain.grid(50).numpy(), columns=list(release.schema.columns)).to_parquet(source)
    words = ["predict", str(run / "release" / "release.safetensors"), str(source), "-o", str(target)]
    assert main([*words, "--most-bytes", "100"]) == 2
    shown = capsys.readouterr().err
    assert "--most-bytes" in shown
    assert shown.count("\n") == 1
    assert main([*words, "--most-bytes", "0"]) == 2
    assert not target.exists()
    assert main([*words, "--most-bytes", str(1 << 20)]) == 0


EACH = [
    ["task=average_effect", "privacy.epsilon=24"],
    QUICK,
    ["task=owl", "weights=constant"],
    ["task=policy_selection"],
]


@pytest.mark.first(1)
@pytest.mark.parametrize("words", EACH, ids=str)
def test_a_fixed_noise_seed_claims_nothing_anywhere(words, here, capsys):
    assert main(["train", *TABLE, *words, "privacy.noise_seed=1", "run_dir=r"]) == 0
    shown = capsys.readouterr().out
    assert "NOT PRIVATE" in shown
    assert "epsilon" not in shown
    stated = (here / "r" / "release" / "privacy.md").read_text()
    assert "NOT PRIVATE" in stated
    assert not re.search("certified|entropy", stated)
    summary = json.loads((here / "r" / "curator" / "summary.json").read_text())
    assert summary["epsilon"] is None
    assert all(account["epsilon"] is None for account in summary["spent"].values())


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "no.safetensors", "people.csv", "-o", "o.csv"],
        ["verify", "no"],
    ],
)
def test_a_missing_release_is_one_line(command, here, capsys):
    assert main(command) == 2
    assert "no such file" in one_line(capsys)


def test_our_own_fault_is_exit_code_one(monkeypatch, here, capsys):
    def fail(*_args):
        raise RuntimeError("a value 7777.5 of a record")

    monkeypatch.setattr("torchdpcate.cli.run.PrivacyBudget", fail)
    assert main(["train", *TABLE, *QUICK]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    told = r"torchdpcate: internal error: RuntimeError in run.py, line \d+ \(--debug shows the rest\)"
    assert re.fullmatch(told, last)
