"""Who may read what a run writes: the curator's files their owner alone, the release everybody, whatever the umask."""

import os
from pathlib import Path

import pytest

from tests.cli.helpers import EACH, mode, one_line
from torchdpcate.cli.main import main
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def check(run: Path) -> None:
    """Every file of a run is the reader's or the curator's, and has the mode that it should have."""
    for path in run.rglob("*"):
        own = path.relative_to(run).parts[0]
        assert own in ("release", "curator"), path
        if own == "release":
            assert mode(path) == (0o755 if path.is_dir() else 0o644), path
        else:
            assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.slow
@pytest.mark.parametrize("kind", EACH)
def test_a_run(kind, here, umask, monkeypatch):
    """And no file of the curator's can be read by others at any moment: each writer leaves it as it should be."""
    monkeypatch.setattr("torchdpcate.cli.run.seal", lambda folder: None)
    assert main(["train", *EACH[kind], "run_dir=r"]) == 0
    check(here / "r")
    assert main(["report", "r"]) == 0
    check(here / "r")


@pytest.mark.slow
def test_a_sweep(here, umask):
    assert main(["train", "-m", *EACH["policy"], "seed=0,1", "run_dir=s"]) == 0
    for run in ("0", "1"):
        check(here / "s" / run)
    assert mode(here / "s" / "multirun.yaml") == 0o600
    assert main(["report", "s"]) == 0
    assert {path.name for path in (here / "s").iterdir()} <= {"0", "1", "multirun.yaml", "curator", "release"}
    assert mode(here / "s" / "curator") == 0o700


@pytest.mark.slow
def test_answers_are_refused_in_a_folder_that_others_can_read(here, capsys):
    assert main(["train", *EACH["online"], "run_dir=r"]) == 0
    words = ["predict", "r/curator/online", "people.csv", "-o", "answers.csv"]
    assert main(words) == 0
    assert mode(Path("r/curator/online/service.sqlite")) == 0o600
    os.chmod("r/curator/online", 0o755)
    os.remove("answers.csv")
    capsys.readouterr()
    assert main(words) == 2
    assert "chmod 700 r/curator/online" in one_line(capsys)
    assert not Path("answers.csv").exists()
    os.chmod("r/curator/online", 0o700)
    assert main(words) == 0


def test_a_ledger_is_its_owners_and_so_is_a_folder_made_for_it(tmp_path, umask):
    budget = {"all": PrivacyBudget(1.0, 0.0)}
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    for folder in ("there", "new/curator"):
        Ledger(budget, tmp_path / folder / "ledger.sqlite")
        assert {mode(path) for path in (tmp_path / folder).iterdir()} == {0o600}
    assert mode(tmp_path / "new" / "curator") == 0o700
    assert mode(tmp_path / "there") == 0o755
