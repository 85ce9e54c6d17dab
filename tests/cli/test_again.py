"""A second run on the same file says so in one line that names ``budget.shared``."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.helpers import TABLE, one_line, table
from torchdpcate.cli.main import main

WORDS = ["task=average_effect", *TABLE, "privacy.delta=0"]
SHARED = ["budget.shared=shared/ledger.sqlite", "budget.total.epsilon=9", "budget.total.delta=0"]


def complaint(capsys, *words: str, sweep: bool = False) -> str:
    """What a run says of other runs."""
    capsys.readouterr()
    assert main(["train", *(["-m"] if sweep else []), *WORDS, *words]) == 0
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert all(line.startswith("torchdpcate: warning: ") for line in lines)
    return "".join(line for line in lines if "same files" in line or "same records" in line)


def test_a_second_run_on_the_same_records_says_so(here, capsys):
    assert complaint(capsys, "run_dir=runs/a") == ""
    said = complaint(capsys, "run_dir=runs/b")
    assert said.startswith("torchdpcate: warning: run_dir = runs/b: is on the same files as runs/a: what you publish")
    assert "budget.shared=LEDGER" in said
    assert len(said.splitlines()) == 1
    table(500).to_csv("other.csv", index=False)
    assert complaint(capsys, "run_dir=runs/c", "data.path=other.csv") == ""
    kept = Path("runs/a/curator/records.sha256")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not list(Path("runs").glob("*/release/records*"))
    digest = kept.read_text().strip()
    assert all(digest not in path.read_text(errors="replace") for path in Path("runs/a/release").iterdir())


@pytest.mark.slow
def test_a_shared_ledger_says_nothing_and_the_card_knows_which_release_it_is(here, capsys):
    assert complaint(capsys, *SHARED, "run_dir=a", "privacy.epsilon=1") == ""
    assert complaint(capsys, SHARED[0], "run_dir=b", "privacy.epsilon=2") == ""
    shutil.copy("people.csv", "copy.csv")
    assert "files as a and 1 more:" in complaint(capsys, "run_dir=c", "data.path=copy.csv")
    assert complaint(capsys, "run_dir=d", "privacy.noise_seed=1") == ""
    assert main(["verify", "b", "--card", "-o", "card"]) == 0
    card = Path("card/card.html").read_text()
    assert "run 2 of a ledger over the same records: in all epsilon = 3, delta = 0 spent" in card


@pytest.mark.slow
def test_a_sweep_says_it_of_the_runs_before(here, capsys):
    complaint(capsys, "run_dir=a")
    said = complaint(capsys, "run_dir=s", "privacy.epsilon=1,2", sweep=True)
    assert said.count("same files") == 1
    assert f"/s/0: is on the same files as {Path('a').absolute()}:" in said
    assert said.count("each run of a sweep spends a budget of its own on the same records") == 2
    assert "files as a and 2 more:" in complaint(capsys, "run_dir=b")


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["", "no digest"])
def test_a_damaged_neighbour_is_no_obstacle(here, capsys, damaged):
    Path("x/curator").mkdir(parents=True)
    Path("x/curator/records.sha256").write_text(damaged)
    assert complaint(capsys, "run_dir=a") == ""


def test_a_state_that_cannot_be_written_is_refused_before_anything_is_spent(here, capsys, monkeypatch):
    """It keeps how far the ledger has come."""
    state = here / "state" / "torchdpcate"
    state.parent.mkdir()
    state.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent))
    assert main(["train", *WORDS, "run_dir=far/away/a"]) == 2
    assert "set XDG_STATE_HOME to a folder of yours that lasts" in one_line(capsys)
    assert not Path("far/away/a").exists()
    assert state.is_file()


@pytest.mark.slow
def test_a_large_budget_and_much_noise_are_warned_of(here, capsys):
    assert main(["train", *WORDS, "privacy.epsilon=11", "run_dir=a"]) == 0
    said = capsys.readouterr().err
    assert "warning: privacy.epsilon = 11: above 10 the guarantee says little" in said
    assert "of the outcome's range" not in said
    assert main(["train", *WORDS, "privacy.epsilon=0.1", "run_dir=b"]) == 0
    said = capsys.readouterr().err
    assert re.search(
        r"warning: privacy.epsilon = 0.1: the noise to expect, \S+ of .*, is [2-9]\d% of the outcome's", said
    )
