"""``budget.shared``: runs on the same records add up, and the one beyond the total is refused before it spends."""

import json
from pathlib import Path

import pytest

from tests.cli.helpers import TABLE, one_line, table
from torchdpcate.cli.main import main

WORDS = ["task=average_effect", *TABLE, "privacy.delta=0"]
SHARED = ["budget.shared=shared/ledger.sqlite", "budget.total.epsilon=2.5", "budget.total.delta=0"]


def test_a_second_run_adds_up_and_the_third_is_refused(here, capsys):
    assert main(["train", *WORDS, *SHARED, "run_dir=a"]) == 0
    assert main(["train", *WORDS, SHARED[0], "privacy.epsilon=1.25", "run_dir=b"]) == 0
    capsys.readouterr()
    files = sorted(Path().rglob("*"))
    assert main(["train", *WORDS, SHARED[0], "run_dir=c"]) == 2
    assert "exceeds what the total of epsilon = 2.5, delta = 0 leaves, epsilon = 0.25" in one_line(capsys)
    assert sorted(Path().rglob("*")) == files
    assert main(["ledger", "shared/ledger.sqlite"]) == 0
    shown = capsys.readouterr().out
    assert "left: epsilon 0.25, delta 0" in shown
    assert shown.count("fitted, certified") == 2
    assert main(["verify", "b/release/release.safetensors"]) == 0
    tuning = json.loads(Path("b/release/privacy.json").read_text())["tuning"]
    assert tuning["runs"] == 2
    assert tuning["text"].startswith(
        "run 2 of a ledger over the same records: in all epsilon = 2.25, delta = 0 spent, of at most epsilon = 2.5, "
        "delta = 0, also where"
    )


@pytest.mark.slow
def test_a_sweep_ends_at_the_total(here, capsys):
    words = ["train", "-m", *WORDS, *SHARED, "privacy.epsilon=1,1.5,2", "run_dir=s"]
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "a run of epsilon = 2" in errors
    assert "spends a budget of its own" not in errors
    assert [(Path("s") / str(job) / "curator" / "summary.json").exists() for job in range(3)] == [True, True, False]


MISTAKES = {
    "a new one without a total": (WORDS + SHARED[:1], "is new; state the total"),
    "a filter that is none": (WORDS + SHARED + ["budget.total.filter=most"], "choose from sums, gaussian"),
    "no delta for Gaussian noise": (WORDS + SHARED + ["budget.total.filter=gaussian"], "use filter=sums"),
    "fixed noise": (WORDS + SHARED + ["privacy.noise_seed=1"], "noise of a fixed seed protects nobody"),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_run(here, capsys, case):
    words, message = MISTAKES[case]
    assert main(["train", *words, "run_dir=r"]) == 2
    assert message in one_line(capsys)
    assert not Path("r").exists()


@pytest.mark.slow
def test_other_records_are_refused_and_other_columns_are_not(here, capsys):
    assert main(["train", *WORDS, *SHARED, "run_dir=a"]) == 0
    text = Path("domain.yaml").read_text()
    Path("fewer.yaml").write_text(text.replace("  black:\n    categories:\n    - 0\n    - 1\n", ""))
    assert main(["train", *WORDS, SHARED[0], "data.domain=fewer.yaml", "run_dir=b"]) == 0
    table(300).to_csv("others.csv", index=False)
    capsys.readouterr()
    assert main(["train", *WORDS, SHARED[0], "data.path=others.csv", "run_dir=c"]) == 2
    assert "is of other records" in one_line(capsys)
    assert not Path("c").exists()


@pytest.mark.slow
def test_a_ledger_of_one_run_is_not_shared(here, capsys):
    assert main(["train", *WORDS, "run_dir=a"]) == 0
    capsys.readouterr()
    assert main(["ledger", "a/curator/ledger.sqlite"]) == 2
    assert "is the ledger of one run" in one_line(capsys)
