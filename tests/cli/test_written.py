"""A run says "released" of what it has read back and verified, and of nothing else."""

from dataclasses import replace

import pytest

from tests.cli.test_mechanisms import SMALL, run
from torchdpcate.estimators.cate.mechanisms.output import OutputPerturbation
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.release import FunctionRelease
from torchdpcate.verify.file import verify_release

WORDS = ("train", *SMALL, "second_stage=linear", "mechanism=output", "run_dir=run")


def has_another_law(monkeypatch):
    def stated_law(cls, public, head, budget):
        return cls().law(replace(head, ridge=2 * head.ridge), budget)

    monkeypatch.setattr(OutputPerturbation, "stated_law", classmethod(stated_law))
    return "sensitivity = "


def ends_in_an_error(monkeypatch):
    def release_problems(self, head, law, release):
        raise BufferError("of its own")
        yield

    monkeypatch.setattr(OutputPerturbation, "release_problems", release_problems)
    return "BufferError: of its own"


def does_not_load(monkeypatch):
    monkeypatch.setattr(FunctionRelease, "facts", lambda self: {"noise_scale": self.noise_scale})
    return "would not load from its file (KeyError: 'nuisances')"


def test_a_release_that_verifies_is_announced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, complaint = run(*WORDS)
    assert (code, complaint) == (0, "")
    assert "torchdpcate: released" in out
    assert not (tmp_path / "run" / "curator" / "refused").exists()
    assert verify_release(tmp_path / "run")


@pytest.mark.parametrize("fault", [has_another_law, ends_in_an_error, does_not_load])
def test_a_release_that_does_not_verify_is_not_announced(fault, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = fault(monkeypatch)
    code, out, complaint = run(*WORDS)
    assert code == 1
    assert said in complaint
    assert "nothing is released" in complaint
    assert "report" in complaint
    assert len(complaint.splitlines()) == 1
    assert "torchdpcate: released" not in out
    folder = tmp_path / "run"
    assert sorted(path.name for path in folder.iterdir()) == ["curator"]
    spent = Ledger.load(folder / "curator" / "ledger.json").spent()["total"]
    assert spent["epsilon"] == pytest.approx(2.0, rel=1e-3)
