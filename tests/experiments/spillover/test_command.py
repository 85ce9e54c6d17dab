"""The audit of spillover as its command runs it: certified beside uncertified, and one line for each mistake."""

import json
import re

import pytest

from experiments.spillover.__main__ import main

pytestmark = pytest.mark.studies

FILE = "policies.path=policies.yaml"


def one_line(capsys) -> str:
    """The complaint, if stderr holds exactly one line."""
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1, error
    assert error.startswith("spillover: ")
    return error


AUDIT = ["data.n=400", "neighbours=4", "queries.count=20"]


def test_the_spillover_audit_sets_certified_beside_uncertified(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*AUDIT, "folder=found"]) == 0
    shown = capsys.readouterr().out
    assert "m = 180, n = 180, 160 policies, floor 0.1" in shown
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"spillover.json", "spillover.png"}
    report = json.loads((tmp_path / "found" / "spillover.json").read_text())
    learners = {learner["guarantee"]: learner for learner in report["learners"]}
    assert learners["none"]["name"] == "KNeighborsRegressor"
    assert set(learners) == {"stability", "none"}
    assert (report["training"], report["scoring"], report["policies"], report["refuted"]) == (180, 180, 160, False)
    # one neighbour of a nearest-neighbour model moves many scores; ridge fits with enough ridge hardly any
    assert learners["none"]["movement"] > 10 * learners["stability"]["movement"] > 0
    assert learners["stability"]["diagnostics"]["against"] == "truth"
    assert learners["none"]["floor"] == pytest.approx(22)


AUDIT_MISTAKES = {
    "neighbours of nobody": (["neighbours=0"], "neighbours"),
    "no number": (["neighbours=many"], "neighbours = many"),
    "a key twice": (["folder=a", "folder=b"], "folder=b: give each key once"),
    "no such guarantee": (["nuisance_guarantee=hope"], "hope"),
    "paid for": (["nuisance_guarantee=private_nuisances", "trainer.progress=false"], "private"),
    "another task": (["task=cate"], "task=cate: .*leave it out"),
    "unknown setting": (["policies.flor=0.1"], "policies.flor"),
    "no file": ([FILE], "policies.yaml"),
}


@pytest.mark.parametrize("mistake", sorted(AUDIT_MISTAKES))
def test_mistakes_of_the_audit_give_one_line(mistake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, message = AUDIT_MISTAKES[mistake]
    assert main([*AUDIT[:1], *AUDIT[2:], *words]) == 2
    assert re.search(message, one_line(capsys))
    assert not list(tmp_path.iterdir())
