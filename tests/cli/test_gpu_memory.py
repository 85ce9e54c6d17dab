"""A GPU that runs out of memory: one line that names the setting to lower, and a ledger that keeps what was spent."""

import torch

from tests.cli.helpers import QUICK, TABLE, one_line
from torchdpcate.cli.main import main
from torchdpcate.estimators.cate import composition
from torchdpcate.fit.engines import GhostEngine
from torchdpcate.fit.linear_taps import LinearTaps
from torchdpcate.privacy.ledger import Ledger


def full(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def after(count, work):
    """Work that has memory for so many calls."""
    calls = []

    def limited(*args, **kwargs):
        calls.append(1)
        return work(*args, **kwargs) if len(calls) <= count else full()

    return limited


def test_training_names_the_batch_and_counts_the_steps_taken(here, capsys, monkeypatch):
    monkeypatch.setattr(GhostEngine, "_clipped", after(3, GhostEngine._clipped))
    assert main(["train", *TABLE, *QUICK, "run_dir=r"]) == 2
    said = one_line(capsys)
    assert "lower batch_size, or use trainer.accelerator=cpu" in said
    (entry,) = Ledger.load(here / "r" / "curator" / "ledger.sqlite").entries
    assert entry.count == entry.planned == 3
    assert not (here / "r" / "release").exists()


def test_a_composition_names_the_setting_and_its_charge_stays(here, capsys, monkeypatch):
    monkeypatch.setattr(LinearTaps, "uses", after(2, LinearTaps.uses))
    assert main(["train", *TABLE, "nuisance=additive", "trainer.progress=false", "force=true", "run_dir=r"]) == 2
    assert "take nuisance=auto, or use trainer.accelerator=cpu" in capsys.readouterr().err.splitlines()[-1]
    assert Ledger.load(here / "r" / "curator" / "ledger.sqlite").entries
    assert not (here / "r" / "release").exists()


def test_where_nothing_was_spent_nothing_is_left(here, capsys, monkeypatch):
    before = {path.name for path in here.iterdir()}
    monkeypatch.setattr(composition, "fit_composition", full)
    assert main(["train", *TABLE, "force=true", "run_dir=r"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "task = cate: the GPU has too little memory; take fewer records" in said
    assert {path.name for path in here.iterdir()} == before
