"""Several steps in a turn of the Trainer's loop: they are its own steps, and are taken where nobody can tell."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tests.fit.nuisance_cases import Recorder, fit, plan
from torchdpcate.fit import dp_sgd
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.training import TailAverage

DOUBLE = {"precision": "64-true"}


class Listens(Callback):
    """Hears a hook within a step, so that the Trainer takes its own."""

    def on_after_backward(self, trainer, pl_module):
        pass


class Order(Callback):
    """What is called when, and how far the Trainer has counted."""

    def __init__(self):
        self.calls = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.calls.append(("start", trainer.global_step, len(batch[0])))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.calls.append(("end", trainer.global_step))
        self.loss = outputs["loss"]


@pytest.fixture
def turns(monkeypatch):
    """Turns in which bursts were taken."""
    counted, step = [], dp_sgd._Bursts.training_step

    def counting(self, batch, batch_idx):
        counted.append(1)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(dp_sgd._Bursts, "training_step", counting)
    return counted


def trained(domain, dataset, *callbacks, steps=110, trainer=DOUBLE):
    torch.manual_seed(3)
    module, order, recorder = TrainableNuisances(domain, width=8), Order(), Recorder()
    callbacks = [TailAverage(steps), order, recorder, *callbacks]
    private = fit(module, dataset, plan(steps=steps), mode="chain", callbacks=callbacks, trainer=trainer)
    return module, order, recorder, private


@pytest.mark.first(1)
@pytest.mark.parametrize("trainer", [DOUBLE, {}])
def test_steps_of_a_burst_are_those_of_the_trainer(domain, dataset, turns, trainer):
    (one, order, recorder, private), (two, usual, expected, other) = (
        trained(domain, dataset, *callbacks, trainer=trainer) for callbacks in ([], [Listens()])
    )
    assert len(turns) == 2
    assert order.calls == usual.calls
    assert len(order.calls) == 220
    exact = trainer is DOUBLE
    torch.testing.assert_close(order.loss, usual.loss, rtol=1e-12 if exact else 1e-5, atol=0)
    assert private.steps == other.steps == 110
    near = {"rtol": 1e-10, "atol": 1e-12} if exact else {"rtol": 1e-4, "atol": 1e-5}
    for ours, theirs in zip(recorder.weights, expected.weights, strict=True):
        torch.testing.assert_close(ours, theirs, **near)
    torch.testing.assert_close(list(one.parameters()), list(two.parameters()), **near)
    assert one.automatic_optimization
    assert "training_step" not in vars(one)


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
    ],
)
def test_where_somebody_listens_the_trainer_takes_its_own(domain, dataset, turns, tmp_path, kind, callbacks, trainer):
    if "logger" in trainer:
        trainer = {"logger": CSVLogger(tmp_path)}
    private = fit(kind(domain, width=4), dataset, plan(steps=4), callbacks=callbacks, trainer=trainer)
    assert private.steps == 4
    assert not turns
