"""Full-batch steps of DP-SGD in Lightning, and the layer and optimizer of a linear fit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from torchdpcate._process import gpu_memory, terminable, threads_for
from torchdpcate.composition.linear_fit import LinearFit
from torchdpcate.composition.newton_points import NewtonPoints
from torchdpcate.composition.shares import StepEvent
from torchdpcate.composition.steps import summation_error
from torchdpcate.errors import InputError
from torchdpcate.nuisance.checks import check_processes, check_weights
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import poisson_loader
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.trainer import interruptible, quiet_lightning
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.noise import NoiseSource

_SLACK = 2.0**-15
"""Share of the clip norm above the bound of a gradient: what gradients are clipped to is less by 2^-16 of it, and
Opacus adds 1e-6 to a norm before it compares, so that neither binds."""


_AT_ONCE = 2**14  # records that are summed at once: rounding of their sums grows with it


def at_once(mode: str, max_physical_batch: int | None) -> int | None:
    """Return how many records pass at once where the user gives no number; None for all, which modes but chain take.

    Example:
        >>> at_once("auto", None), at_once("auto", 90), at_once("ghost", None)
        (16384, 90, None)
    """
    return _AT_ONCE if max_physical_batch is None and mode in ("auto", "chain") else max_physical_batch


def full_batches(event: StepEvent, count: int, n: int, p: int, batch: int | None = None) -> DPSGDPlan:
    """Return DP-SGD steps at rate 1 that cost this event each, for gradients of norm at most 1 of n records.

    Args:
        event: Of one step.
        count: Number of steps.
        n: Number of records.
        p: Trained numbers.
        batch: Records that pass at once; None for all.

    Raises:
        InputError: The event is pure.

    Example:
        >>> full_batches(GaussianEvent(20.0), 100, 500, 3).event
        DPSGDEvent(noise_multiplier=40.0, sampling_rate=1.0)
    """
    if not isinstance(event, GaussianEvent):
        raise InputError("delta = 0: DP-SGD takes Gaussian steps; give privacy.delta above 0, or nuisance=auto")
    # a replaced record moves the sum of clipped gradients by two clip norms
    clip = 1 + _SLACK + math.sqrt(p) * summation_error(n, 1.0, batch) / 2
    return DPSGDPlan(2 * event.noise_multiplier, clip, 1.0, count)


def train(
    module: LightningModule,
    records: tuple[Tensor, ...],
    plans: Sequence[DPSGDPlan],
    noise: NoiseSource,
    trainer: Callable[..., Trainer],
    mode: str = "auto",
    max_physical_batch: int | None = None,
) -> None:
    """Take noisy steps on all records, in float64; the caller has paid for them.

    Args:
        module: Its record losses have gradients of norm at most 1, else they are clipped.
        records: What a batch of ``module`` is made of, each [n, ...].
        plans: One run of steps after another.
        noise: Where the noise comes from.
        trainer: Makes a Trainer from keyword arguments.
        mode: See ``DPSGD``.
        max_physical_batch: See ``DPSGD``.

    Raises:
        InputError: Settings of the Trainer that break the analysis, or a GPU with too little memory.
        NumericalError: Training diverged.
    """
    data = TensorDataset(*records)
    size = sum(parameter.numel() for parameter in module.parameters())
    with quiet_lightning(), interruptible(), terminable(), threads_for(size), torch.random.fork_rng():
        try:
            for plan in plans:
                loader = poisson_loader(data, plan.sampling_rate, plan.steps, noise)
                limits = {"max_epochs": 1, "max_steps": plan.steps, "precision": "64-true"}
                private = DPSGD(plan, noise, mode=mode, max_physical_batch=max_physical_batch)
                with gpu_memory("training of a nuisance", "lower max_physical_batch of nuisance or nuisance.solver"):
                    made = trainer(callbacks=[private], **limits)
                    check_processes(made)
                    made.fit(module, loader)
        finally:
            module.trainer = None  # whose loaders hold the records
    check_weights(module)


class LinearLayer(RecordLossModule):
    """One linear layer of features without a bias, trained by scaled steps from zero.

    Args:
        fit: What is fitted; its losses are divided by their slope.
        points: The steps.
    """

    def __init__(self, fit: LinearFit, points: NewtonPoints) -> None:
        super().__init__()
        n, p = fit.predictors.shape
        self.fit, self.points, self.units = fit, points, n * fit.slope
        self.layer = nn.utils.skip_init(nn.Linear, p, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.layer.weight)

    def record_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Weighted losses `[B]` over the slope, of a batch of predictors, weights and targets."""
        predictors, weights, targets = batch
        fit = replace(self.fit, predictors=predictors, weights=weights, targets=targets)
        return weights * fit.losses(self.layer(predictors).squeeze(1)) / fit.slope

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Scaled steps, by the sum of gradients in the loss's own units."""
        return ScaledSteps(self.parameters(), self.points, self.units)


class ScaledSteps(torch.optim.Optimizer):
    """Steps of one layer's weight by ``NewtonPoints``.

    Args:
        parameters: The one weight, [1, p].
        points: Where steps lead.
        units: The sum's gradient over that which an optimizer gets.
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
        self.points.step(weight.grad.flatten().cpu() * self.units)
        weight.copy_(self.points.theta[None])
        return loss
