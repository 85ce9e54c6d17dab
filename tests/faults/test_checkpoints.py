"""A run is resumed from a checkpoint, which is a pickle: no code in it runs, and a damaged one spends nothing."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from lightning.pytorch import Callback

from tests.faults.guards import Touch, bounded
from tests.faults.mutations import byte_faults, examples
from tests.fit.nuisance_cases import Foreign, Interrupt, Save, plan
from torchdpcate._files import state_folder
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.trainable import stated_privacy
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")

BLOCKS = {"nuisance": PrivacyBudget(5.0, 1e-5)}
SAVED, INTERRUPTED, PLANNED = 5, 8, 20


def run(ledger: Ledger, checkpoint: Path | None = None, callbacks: tuple = ()) -> Foreign:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((60, 3), (60,)))

    def trainer(**settings: Any) -> Any:
        settings["callbacks"] = [*settings["callbacks"], *callbacks]
        return default_trainer(accelerator="cpu", **settings)

    return train(
        Foreign(),
        CausalData(x, (y > 0.5).double(), y),
        trainer,
        batch_size=10,
        epochs=1,
        seed=0,
        plan=plan(noise_multiplier=8.0, steps=PLANNED),
        noise=NoiseSource.system(),
        ledger=ledger,
        ckpt_path=checkpoint,
    )


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> tuple[Path, Path]:
    """Checkpoint and ledger of a run that ended after 8 of 20 steps."""
    folder = tmp_path_factory.mktemp("run")
    checkpoint, ledger = folder / "last.ckpt", folder / "ledger.sqlite"
    with pytest.raises(KeyboardInterrupt):
        run(Ledger(BLOCKS, ledger), callbacks=(Save(SAVED, checkpoint), Interrupt(INTERRUPTED)))
    return checkpoint, ledger


@pytest.fixture
def resume(interrupted, tmp_path) -> Callable[[bytes], Ledger]:
    """Resume from the bytes of a checkpoint, on a copy of the ledger; returns the ledger."""

    def call(data: bytes) -> Ledger:
        checkpoint, ledger = tmp_path / "c.ckpt", tmp_path / "ledger.sqlite"
        checkpoint.write_bytes(data)
        ledger.write_bytes(interrupted[1].read_bytes())
        shutil.rmtree(state_folder(), ignore_errors=True)  # as on another machine, which knows no other copy
        run(Ledger.load(ledger), checkpoint)
        return Ledger.load(ledger)

    return call


class Steps(Callback):
    """Counts the steps of one process, and ends it at one as the kernel does, with no time to settle anything."""

    def __init__(self, last: int = PLANNED + 1) -> None:
        self.last, self.steps = last, 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1
        if self.steps == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(checkpoint: Path, ledger: Path) -> None:
    run(Ledger(BLOCKS, ledger), callbacks=(Save(SAVED, checkpoint), Steps(INTERRUPTED)))


def test_a_killed_training_goes_on_from_its_checkpoint_and_pays_each_step_once(tmp_path):
    checkpoint, path = tmp_path / "last.ckpt", tmp_path / "ledger.sqlite"
    child = multiprocessing.get_context("spawn").Process(target=killed, args=(checkpoint, path))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    stated, before, weights = stated_privacy(checkpoint), path.read_bytes(), []
    assert (stated["budget"], stated["ledger"], stated["steps"]) == (BLOCKS["nuisance"].to_dict(), str(path), SAVED)
    assert Ledger.load(path).entry(0).count == 12  # two chunks of 6: what was not settled stays spent
    for _ in range(2):
        path.write_bytes(before)
        shutil.rmtree(state_folder(), ignore_errors=True)
        steps = Steps()
        weights.append(run(Ledger.load(path), checkpoint, (steps,)).net[0].weight)
        assert steps.steps == PLANNED - 12
        assert [entry.count for entry in Ledger.load(path).entries] == [PLANNED]
        assert Ledger.load(path).spent()["total"]["epsilon"] <= BLOCKS["nuisance"].epsilon
    assert not torch.equal(*weights)  # noise and samples are the system's, drawn anew


UNACCOUNTED = {
    "no steps of DPSGD are stated in it": lambda states: states.pop("DPSGD"),
    "no ledger counted its steps": lambda states: states["DPSGD"].update(budget=None, entry=None),
    "its noise or its ledger is of a test": lambda states: states["DPSGD"].update(private=False),
}


@pytest.mark.parametrize("why", UNACCOUNTED)
def test_weights_that_nobody_accounted_for_are_no_private_ones(interrupted, resume, tmp_path, why):
    content, path = torch.load(interrupted[0], weights_only=True), tmp_path / "other.ckpt"
    UNACCOUNTED[why](content["callbacks"])
    torch.save(content, path)
    with pytest.raises(InputError, match=rf"^.*other.ckpt: is not private, for {why}; .*$"):
        stated_privacy(path)
    if "counted" in why:  # now they are
        assert resume(path.read_bytes()).entries[-1].count == PLANNED
    else:
        with pytest.raises(InputError, match="was fixed" if "test" in why else "nobody counted its steps"):
            resume(path.read_bytes())


@pytest.mark.parametrize("environment", [{}, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}], ids=["plain", "forced"])
def test_code_in_a_checkpoint_does_not_run(resume, interrupted, tmp_path, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made, path = tmp_path / "made", tmp_path / "evil.ckpt"
    content = torch.load(interrupted[0], weights_only=True)
    content["callbacks"]["DPSGD"]["block"] = Touch(made)
    torch.save(content, path)
    with pytest.raises(InputError, match=r"c\.ckpt: not a checkpoint"):
        resume(path.read_bytes())
    assert not made.exists()


def test_a_damaged_checkpoint_spends_nothing(interrupted, resume, tmp_path):
    before = Ledger.load(interrupted[1]).entries

    @examples(25)
    @given(byte_faults(interrupted[0].read_bytes()))
    def check(data):
        with bounded():
            try:
                assert resume(data).entries[0].count >= INTERRUPTED
            except (InputError, RuntimeError, KeyError, TypeError):  # the others are Lightning's, of what it applies
                assert Ledger.load(tmp_path / "ledger.sqlite").entries == before

    check()
