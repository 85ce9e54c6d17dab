"""Small modules and runs that the nuisance tests share."""

from __future__ import annotations

import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn

from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, poisson_loader
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.privacy.noise import NoiseSource

N, Q = 60, 3


class Foreign(LightningModule):
    """A module that knows nothing of privacy, as a user would write it."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(Q, 4), layer or nn.Tanh(), nn.Linear(4, 1))

    def training_step(self, batch, batch_idx):
        x, _, y = batch
        return nn.functional.mse_loss(self.net(x).squeeze(-1), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Recorder(Callback):
    """Weights before each step, its batch, and the gradient that the optimizer used."""

    def __init__(self) -> None:
        self.weights, self.batches, self.grads = [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.weights.append([p.detach().clone() for p in pl_module.parameters()])
        self.batches.append(batch)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.grads.append([p.grad.clone() for p in pl_module.parameters() if p.requires_grad])


class Interrupt(Callback):
    """Raises after step `after`."""

    def __init__(self, after: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.after, self.error, self.seen = after, error, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen += 1
        if self.seen == self.after:
            raise self.error


class Save(Callback):
    """Writes a checkpoint after step `after` of this run."""

    def __init__(self, after: int, path) -> None:
        self.after, self.path, self.seen = after, path, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen += 1
        if self.seen == self.after:
            trainer.save_checkpoint(self.path)


def plan(**changes) -> DPSGDPlan:
    """Ten expected records in each of 20 steps, unless changed."""
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 0.5, "sampling_rate": 10 / N, "steps": 20}
    return DPSGDPlan(**{**settings, **changes})


def fit(module, dataset, plan, *, seed=0, callbacks=(), loader=None, ckpt_path=None, trainer=None, **settings):
    """One private fit from a fixed noise source; returns the callback."""
    noise = NoiseSource.fixed(seed)
    loader = loader or poisson_loader(dataset, plan.sampling_rate, plan.steps, noise)
    private = DPSGD(plan, noise, **settings)
    limits = {"max_epochs": -1, "max_steps": plan.steps, "accelerator": "cpu", **(trainer or {})}
    trainer = default_trainer(callbacks=[private, *callbacks], **limits)
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return private
