"""``sweep.resume``: an interrupted sweep continues; and sweeps of several processes, which share one total."""

import importlib.metadata
import json
from pathlib import Path

import pytest

from tests.cli.helpers import TABLE, one_line
from torchdpcate.cli import run
from torchdpcate.cli.main import main
from torchdpcate.privacy.shared_ledger import SharedLedger

OWL = ["task=owl", *TABLE, "weights.propensity=0.5", "privacy.delta=0", "force=true"]
SWEEP = ["train", "-m", *OWL, "run_dir=s", "privacy.epsilon=0.5,1"]
SHARED = ["budget.shared=shared/ledger.sqlite", "budget.total.epsilon=3", "budget.total.delta=0"]


def installed(name: str) -> bool:
    """Whether a distribution of an extra is there."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def stamps() -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path("s").glob("*/curator/summary.json")}


@pytest.mark.slow
def test_an_interrupted_sweep_continues(here, capsys, monkeypatch):
    kept = run.write_release

    def interrupt(release, folder):
        if release.privacy.epsilon == 1:
            raise KeyboardInterrupt
        kept(release, folder)

    monkeypatch.setattr(run, "write_release", interrupt)
    assert main([*SWEEP, *SHARED]) == 130
    before = stamps()
    assert list(before) == ["s/0/curator/summary.json"]
    monkeypatch.setattr(run, "write_release", kept)
    capsys.readouterr()
    assert main([*SWEEP, *SHARED, "sweep.resume=true"]) == 0
    shown = capsys.readouterr().out
    assert "s/0: finished before" in shown
    assert stamps().keys() == {"s/0/curator/summary.json", "s/1/curator/summary.json"}
    assert stamps()["s/0/curator/summary.json"] == before["s/0/curator/summary.json"]
    # what was spent before the interruption counts, in the sweep's line and in the shared ledger
    assert (Path("s") / "1.interrupted.1" / "curator" / "ledger.sqlite").is_file()
    assert "3 runs over the same records have spent epsilon 2.5" in shown
    assert SharedLedger.load("shared/ledger.sqlite").left().epsilon == pytest.approx(0.5)
    assert main([*SWEEP, *SHARED, "sweep.resume=true"]) == 0
    assert len(SharedLedger.load("shared/ledger.sqlite").runs) == 3


@pytest.mark.slow
def test_a_finished_run_of_other_words_is_refused(here, capsys):
    assert main([*SWEEP]) == 0
    before = stamps()
    assert json.loads(Path("s/1/curator/summary.json").read_text())["requested"]["words"]["privacy.epsilon"] == "1"
    capsys.readouterr()
    assert main([*SWEEP[:-1], "privacy.epsilon=0.5,2", "sweep.resume=true"]) == 2
    assert "s/1 is a finished run of other words (privacy.epsilon)" in one_line(capsys)
    Path("s/1/curator/summary.json").write_text("[]")
    assert main([*SWEEP, "sweep.resume=true"]) == 2
    assert "damaged" in one_line(capsys)
    assert stamps().keys() == before.keys()


def test_one_run_is_not_resumed(here, capsys):
    assert main(["train", *OWL, "run_dir=r", "sweep.resume=true"]) == 2
    assert "sweep.resume=true: is for sweeps" in one_line(capsys)
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("launcher", "extra"), [("joblib", "joblib"), ("submitit_local", "submitit"), ("submitit_slurm", "submitit")]
)
def test_a_launcher_without_its_extra_names_it(launcher, extra, here, capsys):
    if installed(f"hydra-{extra}-launcher"):
        pytest.skip(f"hydra-{extra}-launcher is installed")
    assert main(["train", "-m", f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2", "seed=0,1", "run_dir=s"]) == 2
    error = one_line(capsys)
    assert f"hydra/launcher={launcher}: " in error
    assert f"hydra-{extra}-launcher" in error
    assert not Path("s").exists()


@pytest.mark.parametrize("launcher", ["submitit_slurm", "ray"])
def test_a_shared_ledger_over_several_machines_is_refused_before_any_run(launcher, here, capsys):
    assert main(["train", "-m", f"hydra/launcher={launcher}", *OWL, "seed=0,1", "run_dir=s", SHARED[0]]) == 2
    expected = f"hydra/launcher={launcher}: its runs may be on other machines, where the lock of budget.shared need not"
    assert expected in one_line(capsys)
    assert not Path("s").exists()
    assert not Path("shared").exists()


@pytest.mark.slow
@pytest.mark.skipif(not installed("hydra-joblib-launcher"), reason="needs hydra-joblib-launcher")
def test_a_parallel_sweep_shares_its_total(here, capsys):
    words = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1", "budget.total.epsilon=3"]
    assert main(["train", "-m", *OWL, *words, "run_dir=s", SHARED[0], "budget.total.delta=0"]) == 0
    assert SharedLedger.load("shared/ledger.sqlite").left().epsilon == pytest.approx(1.0)
    spent = "sweep: 2 runs over the same records have spent epsilon 2, delta 0 together"
    assert spent in capsys.readouterr().out
    assert main(["train", "-m", *OWL, *words, "run_dir=s", "sweep.resume=true", SHARED[0], "budget.total.delta=0"]) == 0
    assert spent in capsys.readouterr().out
    assert main(["train", "-m", *OWL, *words, "run_dir=t", SHARED[0], "budget.total.delta=0"]) == 2
    shown = capsys.readouterr()
    assert "exceeds what the total" in shown.err
    assert "over the same records" not in shown.out  # of two runs one was refused
    assert SharedLedger.load("shared/ledger.sqlite").left() is None
    assert main(["train", "-m", "task=owl", "data.n=300", *words[:3], "privacy.delta=0", "force=true"]) == 0
    assert "over the same records" not in capsys.readouterr().out  # generated, in a folder of the present time
    assert len(list(Path("multirun").glob("*/*/curator/summary.json"))) == 2


@pytest.mark.slow
@pytest.mark.skipif(not installed("hydra-submitit-launcher"), reason="needs hydra-submitit-launcher")
def test_a_sweep_by_submitit_on_this_machine(here, capsys):
    words = ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=10", "seed=0,1"]
    assert main(["train", "-m", *OWL, *words, "run_dir=s"]) == 0
    assert all((Path("s") / str(job) / "curator" / "summary.json").is_file() for job in range(2))
    assert "sweep: 2 runs over the same records have spent epsilon 2, delta 0 together" in capsys.readouterr().out
