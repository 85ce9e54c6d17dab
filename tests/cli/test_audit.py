"""The command ``torchdpcate audit``: exit codes, one line for a mistake, nothing half-written."""

import json
import re

import pytest

from torchdpcate.audit.report import find
from torchdpcate.cli import audit as command
from torchdpcate.cli.main import main
from torchdpcate.privacy import mechanisms


def test_one_mechanism_is_printed_beside_its_claim(capsys):
    assert main(["audit", "mechanism=laplace", "epsilon=2", "trials=3000"]) == 0
    out = capsys.readouterr().out
    assert "laplace" in out
    assert "certified" in out
    assert "confidence 0.95" in out


@pytest.mark.slow
def test_a_bound_above_the_claim_exits_with_one(capsys, monkeypatch):
    honest = mechanisms.laplace_scale
    monkeypatch.setattr(mechanisms, "laplace_scale", lambda *args: honest(*args) / 2)
    assert main(["audit", "mechanism=laplace", "trials=20000"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    found = re.search(r"claim refuted at confidence 0\.95: laplace: bound (\S+) above the claim 1$", error.strip())
    # What is really spent is 2; the bound of 20,000 trials lies near it, on either side once in twenty runs.
    assert found is not None, error
    assert float(found[1]) == pytest.approx(2.0, abs=0.5)


def test_all_of_the_registry_is_written_into_a_folder(tmp_path, monkeypatch, capsys):
    few = {name: find(name) for name in ("laplace", "k_norm")}
    monkeypatch.setattr(command, "registry", lambda: few)
    folder = tmp_path / "found"
    assert main(["audit", "--all", f"folder={folder}", "trials=2000", "confidence=0.9", "processes=1"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "audit.json", "audit.png"]
    results = json.loads((folder / "audit.json").read_text())["results"]
    assert [(r["mechanism"], r["confidence"], r["trials"]) for r in results] == [
        ("laplace", 0.9, 4000),
        ("k_norm", 0.9, 4000),
    ]
    assert "written:" in capsys.readouterr().out


def test_one_row_of_a_report_is_made_anew(tmp_path, monkeypatch, capsys):
    few, words = {name: find(name) for name in ("laplace", "k_norm")}, [f"folder={tmp_path}", "trials=2000"]
    monkeypatch.setattr(command, "registry", lambda: few)
    assert main(["audit", "--all", *words, "processes=1"]) == 0
    numbers = tmp_path / "audit.json"
    before = json.loads(numbers.read_text())
    before["results"][1]["bound"] = 0.5
    numbers.write_text(json.dumps(before))
    assert main(["audit", "mechanism=k_norm", *words]) == 0
    after = json.loads(numbers.read_text())
    assert after["results"][0] == before["results"][0]
    assert after["results"][1]["bound"] != 0.5
    assert after["results"][1]["attacks"] == before["results"][1]["attacks"]
    assert f"| {after['results'][1]['bound']:.3f} |" in (tmp_path / "README.md").read_text()
    capsys.readouterr()
    for wrong, said in ((["mechanism=gaussian", *words], "no such row"), (["mechanism=k_norm", words[0]], "settings")):
        assert main(["audit", *wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mechanism=nothing"], "mechanism = nothing: no such audit; torchdpcate audit lists all"),
        (["mechanism=laplace", "epsilon=-1"], "epsilon = -1"),
        (["mechanism=laplace", "confidence=2"], "confidence = 2"),
        (["mechanism=laplace", "trials=3"], "trials = 3"),
        (["mechanism=laplace", "--all"], "either mechanism=NAME or --all"),
        (["mechanism=laplace", "folder=x"], "no report to put a row into"),
        (["mechanism=laplace", "processes=2"], "processes:"),
        (["mechanism=laplace", "mechanism=gaussian"], "give each key once"),
        (["--all", "folder=/dev/null/x"], "folder = /dev/null/x: cannot be written to"),
        (["mechanism=laplace", "noise=quiet"], "give --all, leak RUN, or KEY=VALUE"),
        (["mechansim=laplace"], "mechansim=laplace: the nearest is mechanism; give"),
        (["leek", "run"], "leek: the nearest is leak; give"),
        (["leak"], "give one run folder"),
        (["spillover", "neighbours=3"], "torchdpcate study spillover"),
        (["leak", "nowhere"], "nowhere"),
    ],
    ids=str,
)
def test_mistakes_exit_with_two_and_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["audit", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
