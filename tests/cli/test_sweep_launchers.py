"""Sweeps of several processes, which share one total."""

import importlib.metadata
from pathlib import Path

import pytest

from tests.cli.helpers import TABLE, one_line
from torchdpcate.cli.main import main
from torchdpcate.privacy.shared_ledger import SharedLedger

OWL = ["task=owl", *TABLE, "weights=constant", "privacy.delta=0", "force=true"]
SHARED = ["budget.shared=shared/ledger.sqlite", "budget.total.epsilon=3", "budget.total.delta=0"]


def installed(name: str) -> bool:
    """Whether a distribution of an extra is there."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


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
    assert main(["train", "-m", *OWL, *words, "run_dir=t", SHARED[0], "budget.total.delta=0"]) == 2
    shown = capsys.readouterr()
    assert "exceeds what the total" in shown.err
    assert "over the same records" not in shown.out  # of two runs one was refused
    assert SharedLedger.load("shared/ledger.sqlite").left() is None
