"""Several runs on the same records: warned of, added up by ``budget.shared``, refused beyond its total."""

import importlib.metadata
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import TABLE, mode, one_line, table
from torchdpcate.cli.main import main
from torchdpcate.cli.sweep import total_line
from torchdpcate.privacy.shared_ledger import SharedLedger

WORDS = ["task=average_effect", *TABLE, "effect=covariate_balancing", "privacy.delta=0"]
SHARED = ["budget.shared=shared/ledger.sqlite", "budget.total.epsilon=2.5", "budget.total.delta=0"]


def complaint(capsys, *words: str) -> str:
    """What a run says of other runs."""
    capsys.readouterr()
    assert main(["train", *WORDS, *words]) == 0
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert all(line.startswith("torchdpcate: warning: ") for line in lines)
    return "".join(line for line in lines if "same files" in line or "same records" in line)


def test_a_second_run_on_the_same_records_says_so(here, capsys):
    assert complaint(capsys, "run_dir=runs/a") == ""
    said = complaint(capsys, "run_dir=runs/b")
    assert said.startswith("torchdpcate: warning: run_dir = runs/b: is on the same files as runs/a: what you publish")
    assert "budget.shared=LEDGER" in said
    assert len(said.splitlines()) == 1
    kept = Path("runs/a/curator/records.sha256")
    assert mode(kept) == 0o600
    digest = kept.read_text().strip()
    assert all(digest not in path.read_text(errors="replace") for path in Path("runs/a/release").iterdir())


@pytest.mark.slow
def test_other_records_fixed_noise_and_a_damaged_neighbour_say_nothing(here, capsys):
    for name, damaged in (("x", ""), ("y", "no digest")):
        Path(f"{name}/curator").mkdir(parents=True)
        Path(f"{name}/curator/records.sha256").write_text(damaged)
    assert complaint(capsys, "run_dir=a") == ""
    table(500).to_csv("other.csv", index=False)
    assert complaint(capsys, "run_dir=b", "data.path=other.csv") == ""
    assert complaint(capsys, "run_dir=c", "privacy.noise_seed=1") == ""
    said = complaint(capsys, "-m", "run_dir=s", "privacy.epsilon=1,2")
    assert said.count("same files") == 1
    assert f"/s/0: is on the same files as {Path('a').absolute()}" in said
    assert said.count("each run of a sweep spends a budget of its own on the same records") == 2


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
    noise = r"warning: privacy.epsilon = 0.1: the noise to expect, \S+ of .*, is [2-9]\d% of the outcome's"
    assert re.search(noise, capsys.readouterr().err)


def test_a_second_run_adds_up_and_the_third_is_refused(here, capsys):
    assert complaint(capsys, *SHARED, "run_dir=a") == ""
    assert complaint(capsys, SHARED[0], "privacy.epsilon=1.25", "run_dir=b") == ""
    files = sorted(Path().rglob("*"))
    assert main(["train", *WORDS, SHARED[0], "run_dir=c"]) == 2
    assert "exceeds what the total of epsilon = 2.5, delta = 0 leaves, epsilon = 0.25" in one_line(capsys)
    assert sorted(Path().rglob("*")) == files
    assert main(["ledger", "shared/ledger.sqlite"]) == 0
    shown = capsys.readouterr().out
    assert "left: epsilon 0.25, delta 0" in shown
    assert shown.count("fitted, certified") == 2
    assert main(["report", "b"]) == 0
    tuning = json.loads(Path("b/release/privacy.json").read_text())["tuning"]
    assert tuning["runs"] == 2
    said = "run 2 of a ledger over the same records: in all epsilon = 2.25, delta = 0 spent"
    assert tuning["text"].startswith(f"{said}, of at most epsilon = 2.5, delta = 0, also where")
    assert said in Path("b/release/release.html").read_text()
    assert main(["ledger", "a/curator/ledger.sqlite"]) == 2
    assert "is the ledger of one run" in one_line(capsys)


MISTAKES = {
    "a new one without a total": (SHARED[:1], "is new; state the total"),
    "a filter that is none": ([*SHARED, "budget.total.filter=most"], "choose from sums, gaussian"),
    "no delta for Gaussian noise": ([*SHARED, "budget.total.filter=gaussian"], "use filter=sums"),
    "fixed noise": ([*SHARED, "privacy.noise_seed=1"], "noise of a fixed seed protects nobody"),
    "other machines": (
        ["-m", "hydra/launcher=submitit_slurm", "seed=0,1", SHARED[0]],
        "hydra/launcher=submitit_slurm: its runs may be on other machines, where the lock of budget.shared need not",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_run(here, capsys, case):
    words, message = MISTAKES[case]
    assert main(["train", *WORDS, *words, "run_dir=r"]) == 2
    assert message in one_line(capsys)
    assert not Path("r").exists()


def test_generated_data_have_no_total(here, capsys):
    assert main(["train", "task=average_effect", *SHARED, "run_dir=r"]) == 2
    assert "generated data are nobody's records" in one_line(capsys)


def installed(name: str) -> bool:
    """Whether a distribution of an extra is there."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize(("launcher", "extra"), [("joblib", "joblib"), ("submitit_slurm", "submitit")])
def test_a_launcher_without_its_extra_names_it(launcher, extra, here, capsys):
    if installed(f"hydra-{extra}-launcher"):
        pytest.skip(f"hydra-{extra}-launcher is installed")
    assert main(["train", "-m", f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2", "seed=0,1", "run_dir=s"]) == 2
    error = one_line(capsys)
    assert f"hydra/launcher={launcher}: " in error
    assert f"hydra-{extra}-launcher" in error
    assert not Path("s").exists()


@pytest.mark.slow
@pytest.mark.skipif(not installed("hydra-joblib-launcher"), reason="needs hydra-joblib-launcher")
def test_a_sweep_in_two_processes_shares_its_total(here, capsys):
    words = ["train", "-m", *WORDS, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1"]
    assert main([*words, *SHARED, "run_dir=s"]) == 0
    assert SharedLedger.load("shared/ledger.sqlite").left().epsilon == pytest.approx(0.5)
    spent = "sweep: 2 runs over the same records have spent epsilon 2, delta 0 together"
    assert spent in capsys.readouterr().out
    assert main([*words, SHARED[0], "run_dir=t"]) == 2
    shown = capsys.readouterr()
    assert "exceeds what the total" in shown.err
    assert "over the same records" not in shown.out  # nothing was spent


def totals(text: str) -> list[str]:
    return [line for line in text.splitlines() if "over the same records" in line and "warning" not in line]


@pytest.mark.slow
def test_a_sweep_ends_at_the_total_and_says_what_it_has_spent(here, capsys):
    assert main(["train", "-m", *WORDS, *SHARED, "privacy.epsilon=0.5,1,2", "run_dir=s"]) == 2
    shown = capsys.readouterr()
    assert "a run of epsilon = 2" in shown.err
    assert "spends a budget of its own" not in shown.err
    assert [(Path("s") / str(job) / "curator" / "summary.json").exists() for job in range(3)] == [True, True, False]
    assert main(["report", "s"]) == 0
    said = "people: 2 runs over the same records have spent epsilon 1.5, delta 0 together"
    assert totals(capsys.readouterr().out) == [said]
    assert said in Path("s/curator/report.html").read_text()


@pytest.mark.slow
def test_a_sweep_on_generated_data_has_nothing_to_protect(here, capsys):
    assert (
        main(
            ["train", "-m", "task=average_effect", "effect=covariate_balancing", "data.n=400", "seed=0,1", "run_dir=s"]
        )
        == 0
    )
    assert main(["report", "s"]) == 0
    assert totals(capsys.readouterr().out) == []


@pytest.mark.slow
def test_a_run_that_failed_on_its_way_has_spent_all_the_same(here, capsys, monkeypatch):
    from torchdpcate.cli import run

    def fail(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(run, "write_release", fail)
    assert main(["train", "-m", *WORDS, "privacy.epsilon=0.5,1", "run_dir=s"]) == 1
    (line,) = totals(capsys.readouterr().out)
    assert "2 runs over the same records have spent epsilon 1.5, delta 0 together" in line


@pytest.mark.slow
def test_noise_of_a_fixed_seed_has_no_total(here, capsys):
    assert main(["train", "-m", *WORDS, "seed=0,1", "privacy.noise_seed=1", "run_dir=s"]) == 0
    (line,) = totals(capsys.readouterr().out)
    assert "no total is known, for 2 of them has no proved claim" in line


def test_the_composition_of_many_runs_is_that_of_randomized_responses():
    """k runs of (epsilon, delta): 1 - (1 - delta)^k for the lost ones, and the binomial law of the others."""
    k, epsilon, delta = 60, 0.2, 1e-6
    line = total_line([(epsilon, delta)] * k)
    assert "have spent epsilon 12, delta 6e-05 together" in line
    found, at = (float(word) for word in line.split("epsilon ")[-1].split(", delta "))
    lost = 1 - (1 - delta) ** k
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    places = np.arange(k + 1)
    chance = np.array([math.comb(k, i) * p**i * (1 - p) ** (k - i) for i in places])
    loss = (2 * places - k) * epsilon

    def spent(eps: float) -> float:
        return lost + (1 - lost) * float(np.clip(1 - np.exp(eps - loss), 0, None) @ chance)

    assert at == pytest.approx(2 * k * delta, rel=1e-12)
    assert spent(found * 1.01) <= at <= spent(found * 0.97)
