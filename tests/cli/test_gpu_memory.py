"""A GPU that runs out of memory: one line that names the setting to lower, and a ledger that keeps what was spent."""

import pytest
import torch

from tests.cli.helpers import QUICK, TABLE, one_line
from tests.registered import SmoothSensitivity
from torchdpcate.cli.main import main
from torchdpcate.estimators.cate import composition
from torchdpcate.fit.linear_taps import LinearTaps
from torchdpcate.heads.recipes import LinearSecondStage
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
    monkeypatch.setattr(LinearTaps, "uses", after(3, LinearTaps.uses))
    assert main(["train", *TABLE, *QUICK, "run_dir=r"]) == 2
    said = one_line(capsys)
    assert "lower batch_size, or use trainer.accelerator=cpu" in said
    (entry,) = Ledger.load(here / "r" / "curator" / "ledger.sqlite").entries
    assert entry.count == entry.planned == 3
    assert not (here / "r" / "release").exists()


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["nuisance=additive"], ["nuisance=wide_and_deep"]])
def test_a_composition_names_the_setting_and_its_charge_stays(here, capsys, monkeypatch, words):
    monkeypatch.setattr(LinearTaps, "uses", after(2, LinearTaps.uses))
    assert main(["train", *TABLE, *words, "trainer.progress=false", "force=true", "run_dir=r"]) == 2
    assert "take nuisance=auto, or use trainer.accelerator=cpu" in one_line(capsys)
    assert Ledger.load(here / "r" / "curator" / "ledger.sqlite").entries
    assert not (here / "r" / "release").exists()


@pytest.mark.slow
def test_a_second_stage_and_a_release_name_theirs(here, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(LinearSecondStage, "fit", full)
        assert main(["train", *TABLE, *QUICK, "run_dir=r"]) == 2
        assert "second_stage: the GPU has too little memory; lower its features" in one_line(capsys)
    monkeypatch.setattr(SmoothSensitivity, "prepare", full)
    words = ["release=queries", "mechanism=smooth_sensitivity", "queries.count=5", "force=true", "run_dir=s"]
    assert main(["train", "data=dataset1", "data.n=900", *QUICK, *words]) == 2
    assert (
        "mechanism = smooth_sensitivity: the GPU has too little memory; lower queries.count" in capsys.readouterr().err
    )
    assert Ledger.load(here / "s" / "curator" / "ledger.sqlite").entries


def test_where_nothing_was_spent_nothing_is_left(here, capsys, monkeypatch):
    before = {path.name for path in here.iterdir()}
    monkeypatch.setattr(composition, "fit_composition", full)
    assert main(["train", *TABLE, "force=true", "run_dir=r"]) == 2
    assert "task = cate: the GPU has too little memory; take fewer records" in one_line(capsys)
    assert {path.name for path in here.iterdir()} == before
