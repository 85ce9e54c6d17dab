"""Steps without the Trainer's own: nobody can tell the difference, and they are taken only where that is so."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from tests.nuisance.cases import Foreign, Interrupt, N, Recorder, Save, fit, plan
from torchdpcate.nuisance.averaging import TailAverage
from torchdpcate.nuisance.direct_steps import DirectSteps
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.poisson import poisson_loader
from torchdpcate.nuisance.trainable import TrainableNuisances
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

DOUBLE = {"precision": "64-true"}


class Listens(Callback):
    """Hears a hook within a step, so that the Trainer takes its own."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pass


class Order(Callback):
    """What is called when, and how far the Trainer has counted."""

    def __init__(self):
        self.calls = []

    def note(self, name, trainer, module, index):
        progress = trainer.fit_loop.epoch_loop.batch_progress
        counts = progress.current.ready, progress.current.started, progress.current.processed
        self.calls.append((name, index, trainer.global_step, module._current_fx_name, counts, progress.is_last_batch))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.note("start", trainer, pl_module, batch_idx)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.note("end", trainer, pl_module, batch_idx)
        self.loss = outputs["loss"]


@pytest.fixture
def taken(monkeypatch):
    """How many steps were direct."""
    counted, step = [], DirectSteps._step

    def counting(self, fetcher):
        step(self, fetcher)
        counted.append(1)

    monkeypatch.setattr(DirectSteps, "_step", counting)
    return counted


def trained(domain, dataset, *callbacks, path=None, after=7, steps=150):
    torch.manual_seed(3)
    module, order, recorder = TrainableNuisances(domain, width=8), Order(), Recorder()
    saving = [] if path is None else [Save(after, path)]
    callbacks = [TailAverage(steps), order, recorder, *saving, *callbacks]
    private = fit(module, dataset, plan(steps=steps), mode="chain", callbacks=callbacks, trainer=DOUBLE)
    return module, order, recorder, private


def test_direct_steps_are_those_of_the_trainer(domain, dataset, taken, tmp_path):
    found = [
        trained(domain, dataset, path=tmp_path / "direct.ckpt", after=70),
        trained(domain, dataset, Listens(), path=tmp_path / "usual.ckpt", after=70),
    ]
    assert len(taken) == 150
    (one, order, recorder, private), (two, usual, expected, other) = found
    assert order.calls == usual.calls
    assert len(order.calls) == 300
    torch.testing.assert_close(order.loss, usual.loss, rtol=1e-12, atol=0)
    assert private.steps == other.steps == 150
    for ours, theirs in zip(recorder.weights, expected.weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(list(one.parameters()), list(two.parameters()), rtol=1e-10, atol=1e-12)
    saved = [torch.load(tmp_path / name, weights_only=True) for name in ("direct.ckpt", "usual.ckpt")]
    assert saved[0]["loops"] == saved[1]["loops"]
    assert saved[0]["global_step"] == saved[1]["global_step"] == 70
    assert saved[0]["callbacks"].keys() == saved[1]["callbacks"].keys()


def test_a_resumed_fit_ends_at_the_same_count(domain, dataset, taken, tmp_path):
    path, ledger = tmp_path / "some.ckpt", Ledger({"nuisance": PrivacyBudget(1e4, 1e-5)}, private=False)
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        fit_interrupted(domain, dataset, path, ledger)
    assert ledger.entry(0).count == 9
    before = len(taken)
    module = TrainableNuisances(domain, width=8)
    private = fit(module, dataset, plan(), mode="chain", ledger=ledger, ckpt_path=path)
    # the two steps behind the checkpoint are spent, and not taken again
    assert (private.spent, private.steps, ledger.entry(0).count) == (20, 18, 20)
    assert len(taken) - before == 10  # the first one after a checkpoint is the Trainer's


def fit_interrupted(domain, dataset, path, ledger):
    noise, module = NoiseSource.fixed(0), TrainableNuisances(domain, width=8)
    callbacks = [DPSGD(plan(), noise, ledger, mode="chain"), Save(7, path), Interrupt(9)]
    trainer = default_trainer(max_epochs=-1, max_steps=20, accelerator="cpu", callbacks=callbacks)
    try:
        trainer.fit(module, poisson_loader(dataset, plan().sampling_rate, 20, noise))
    except SystemExit as error:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt from error
    finally:
        assert "advance" not in vars(trainer.fit_loop.epoch_loop)


def test_what_a_module_logs_is_kept(domain, dataset, taken):
    class Logs(TrainableNuisances):
        def record_loss(self, batch):
            losses = super().record_loss(batch)
            self.log("records", float(len(losses)))
            return losses

    class Seen(Callback):
        def on_train_end(self, trainer, pl_module):
            self.metrics = dict(trainer.callback_metrics)

    seen, sizes = Seen(), Recorder()
    fit(Logs(domain, width=4), dataset, plan(steps=5), mode="chain", callbacks=[seen, sizes])
    assert len(taken) == 5
    assert seen.metrics["records"] == len(sizes.batches[-1][0])


class OwnStep(TrainableNuisances):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)


class OwnTransfer(TrainableNuisances):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


class Validates(TrainableNuisances):
    def validation_step(self, batch, batch_idx):
        pass

    def val_dataloader(self):
        return DataLoader(torch.zeros(2, 1))


@pytest.mark.parametrize(
    ("kind", "callbacks", "trainer"),
    [
        (OwnStep, [], {}),
        (OwnTransfer, [], {}),
        (Validates, [], {}),
        (TrainableNuisances, [Listens()], {}),
        (TrainableNuisances, [], {"logger": True}),
        (TrainableNuisances, [], {"profiler": "simple"}),
    ],
)
def test_where_somebody_listens_the_trainer_takes_its_own(domain, dataset, taken, tmp_path, kind, callbacks, trainer):
    if "logger" in trainer:
        trainer = {"logger": CSVLogger(tmp_path)}
    private = fit(kind(domain, width=4), dataset, plan(steps=4), callbacks=callbacks, trainer=trainer)
    assert private.steps == 4
    assert not taken


def test_other_engines_take_the_trainers_steps(dataset, taken):
    fit(Foreign(nn.Tanh()), dataset, plan(steps=4))
    assert not taken


def test_several_passes_over_the_loader(domain, dataset, taken):
    epochs = []
    for callbacks in ([], [Listens()]):
        noise, run = NoiseSource.fixed(0), plan(steps=20)
        private = DPSGD(run, noise, mode="chain")
        trainer = default_trainer(max_epochs=-1, max_steps=20, accelerator="cpu", callbacks=[private, *callbacks])
        trainer.fit(TrainableNuisances(domain, width=4), poisson_loader(dataset, 10 / N, 7, noise))
        assert private.steps == trainer.global_step == len(taken) == 20
        epochs.append(trainer.current_epoch)
    assert epochs[0] == epochs[1]
