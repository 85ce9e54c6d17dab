"""Full-batch steps of DP-SGD in Lightning, and the layer and optimizer of a linear fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from torchdpcate._signals import terminable
from torchdpcate._threads import threads_for
from torchdpcate.composition.linear_fit import Aimed, NewtonPoints
from torchdpcate.nuisance.checks import check_weights
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import poisson_loader
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.trainer import interruptible, quiet_lightning
from torchdpcate.privacy.noise import NoiseSource

CLIP_NORM = 1 + 2.0**-15
"""Clip norm for gradients of norm at most 1: what they are clipped to is less by 2^-16 of it, and Opacus adds 1e-6 to
a norm before it compares, so that neither binds."""


def full_batch_plan(steps: int, mu: float) -> DPSGDPlan:
    """Return steps at rate 1 that are mu-GDP together, for gradients of norm at most 1.

    Example:
        >>> full_batch_plan(100, 0.5).event
        DPSGDEvent(noise_multiplier=40.0, sampling_rate=1.0)
    """
    # a replaced record moves the sum of clipped gradients by two clip norms
    return DPSGDPlan(2 * math.sqrt(steps) / mu, CLIP_NORM, 1.0, steps)


def train_steps(
    module: LightningModule,
    records: tuple[Tensor, ...],
    steps: int,
    mu: float,
    noise: NoiseSource,
    trainer: Callable[..., Trainer],
    mode: str = "auto",
) -> None:
    """Take noisy steps on all records, in float64; the caller has paid for mu.

    Args:
        module: Its record losses have gradients of norm at most 1, else they are clipped.
        records: What a batch of ``module`` is made of, each [n, ...].
        steps: How many.
        mu: Of all of them.
        noise: Where the noise comes from.
        trainer: Makes a Trainer from keyword arguments.
        mode: See ``DPSGD``.
    """
    plan = full_batch_plan(steps, mu)
    size = sum(p.numel() for p in module.parameters())
    with quiet_lightning(), interruptible(), terminable(), threads_for(size), torch.random.fork_rng():
        loader = poisson_loader(TensorDataset(*records), plan.sampling_rate, steps, noise)
        callbacks = [DPSGD(plan, noise, mode=mode)]
        limits = {"max_epochs": 1, "max_steps": steps, "precision": "64-true"}
        try:
            trainer(callbacks=callbacks, **limits).fit(module, loader)
        finally:
            module.trainer = None  # whose loaders hold the records
    check_weights(module)


class LinearLayer(RecordLossModule):
    """One linear layer of features without a bias, trained by scaled steps from zero.

    Args:
        loss: Of the predictor; its slope divides it.
        points: The steps.
        shape: n and p.
    """

    def __init__(self, loss: Aimed, points: NewtonPoints, shape: torch.Size) -> None:
        super().__init__()
        self.loss, self.points, self.n = loss.loss, points, shape[0]
        self.layer = nn.utils.skip_init(nn.Linear, shape[1], 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.layer.weight)

    def record_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Weighted losses `[B]` over the slope."""
        psi, target, weights = batch
        return weights * self.loss(self.layer(psi).squeeze(1), target).value / self.loss.slope

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Scaled steps, by the sum of gradients in the loss's own units."""
        return ScaledSteps(self.parameters(), self.points, self.n * self.loss.slope)


class ScaledSteps(torch.optim.Optimizer):
    """Steps of one layer's weights by ``NewtonPoints``.

    Args:
        parameters: The one weight, [1, p].
        points: Where steps lead; kept on the weight's device.
        units: The sum's gradient over the one that an optimizer gets: records times slope.
    """

    def __init__(self, parameters: Any, points: NewtonPoints, units: float) -> None:
        super().__init__(parameters, {})
        self.points, self.units = points, units

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Move the weight."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (weight,) = (p for group in self.param_groups for p in group["params"])
        theta, gradient = weight.flatten().cpu(), weight.grad.flatten().cpu() * self.units
        weight.copy_(self.points.step(theta, gradient)[None].to(weight))
        return loss
