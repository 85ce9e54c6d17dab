"""A run verifies what it wrote before it announces anything, whatever it releases."""

from dataclasses import replace

import pytest

from tests.cli.test_ends import TASKS
from tests.registered import shipped
from torchdpcate.cli import run
from torchdpcate.cli.main import main
from torchdpcate.privacy.ledger import Ledger

WORDS = {name: words for name, (words, _) in TASKS.items()} | shipped(
    {
        "effect by its plan": ["data.n=600", "privacy.epsilon=8", "queries.count=5"],
        "rule by its plan": ["task=rule", "data.n=600", "privacy.epsilon=8"],
        "two stages": ["task=two_stage_rule", "data.n=400", "queries.count=5"],
    }
)


@pytest.mark.first(1)
@pytest.mark.parametrize("task", WORDS)
def test_a_run_whose_file_does_not_verify_fails_and_the_ledger_counts_it(task, here, capsys, monkeypatch):
    real = run.write_release

    def other(release, folder):
        real(replace(release, privacy=replace(release.privacy, formula="another")), folder)

    monkeypatch.setattr(run, "write_release", other)
    assert main(["train", *WORDS[task], "run_dir=r"]) == 1
    shown = capsys.readouterr()
    complaint = shown.err.splitlines()[-1]
    assert "the release does not verify (" in complaint
    assert "nothing is released, and the ledger counts what was spent" in complaint
    assert "released" not in shown.out
    assert not (here / "r" / "release").exists()
    assert (here / "r" / "curator" / "refused" / "release.safetensors").exists()
    ledger = Ledger.load(here / "r" / "curator" / "ledger.sqlite")
    assert ledger.spent()["total"]["epsilon"] > 0
