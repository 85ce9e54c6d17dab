"""What a Trainer may not do while DP-SGD runs; each refusal says why and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)

from torchdpcate._process import refuse_torchrun
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import PoissonSampler

_LOADER_REMEDY = (
    "train on poisson_loader(dataset, plan.sampling_rate, ...), with Trainer(use_distributed_sampler=False)"
)


def check_trainer(trainer: Trainer, module: LightningModule, plan: DPSGDPlan) -> PoissonSampler:
    """Refuse a fit whose steps would not be those of `plan`; return the sampler that feeds it.

    Raises:
        InputError: naming the first setting that breaks the analysis, and the remedy.
    """
    check_processes(trainer)
    for broken in _settings(trainer, module):
        raise InputError(broken)
    for callback in callbacks(trainer):
        if reason := _callback(callback):
            raise InputError(f"callback {type(callback).__name__} {reason}")
    check_optimizer(trainer.optimizers[0], [p for p in module.parameters() if p.requires_grad])
    return check_sampler(trainer, plan)


def check_processes(trainer: Trainer) -> None:
    """Refuse processes that Lightning or torchrun would start, each with a fit of its own; call before `fit`.

    Raises:
        InputError: there are some.
    """
    refuse_torchrun()
    if trainer.world_size != 1:
        raise InputError(
            f"devices: {trainer.world_size} processes of Lightning's own; use default_trainer(strategy='ddp') "
            "(trainer=ddp or ddp_cpu), or devices=1"
        )


def callbacks(trainer: Trainer) -> list[Callback]:
    """The Trainer's callbacks."""
    return list(vars(trainer)["callbacks"])


def _settings(trainer: Trainer, module: LightningModule) -> Iterator[str]:
    if not module.automatic_optimization:
        yield "automatic_optimization=False: DPSGD counts the Trainer's own steps; use automatic optimization"
    if trainer.gradient_clip_val:
        yield "gradient_clip_val clips batches, not records; leave it None and set plan.max_grad_norm"
    if trainer.accumulate_grad_batches != 1:
        yield f"accumulate_grad_batches={trainer.accumulate_grad_batches}: a step is one batch; set it to 1"
    if trainer.precision not in ("32-true", "64-true"):
        # a record's gradient would depend on the others: bfloat16 rounds by 4e-3, differently by the batch's size
        yield f"precision={trainer.precision!r} rounds gradients; set Trainer(precision='32-true')"
    if trainer.lr_scheduler_configs:
        yield "configure_optimizers gave a scheduler; DP-SGD runs at a fixed, public learning rate"


def _callback(callback: Callback) -> str | None:
    if isinstance(callback, EarlyStopping):
        return "stops by a private figure; fix the number of steps beforehand"
    if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
        return f"chooses by the private figure {callback.monitor!r}; set monitor=None"
    if isinstance(callback, StochasticWeightAveraging | LearningRateFinder | BatchSizeFinder):
        return "reads the records in passes that nobody counts; remove it"
    if isinstance(callback, GradientAccumulationScheduler) and callback.going_to_accumulate_grad_batches():
        return "accumulates batches, but a step is one Poisson sample; remove it"
    return None


def check_optimizer(optimizer: torch.optim.Optimizer, trainable: Sequence[torch.nn.Parameter]) -> None:
    """Refuse an optimizer that does not train exactly the module's `trainable` parameters.

    Raises:
        InputError: some parameter is in one and not in the other.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if held != {id(p) for p in trainable}:
        raise InputError(
            "configure_optimizers: the optimizer's parameters are not the module's trainable ones; what is "
            "clipped is not what trains; pass self.parameters(), or freeze the rest by requires_grad=False"
        )


def check_weights(module: torch.nn.Module) -> None:
    """Refuse a module whose training diverged.

    Raises:
        NumericalError: a weight is not finite.
    """
    if not all(bool(p.isfinite().all()) for p in module.parameters()):
        raise NumericalError("training left weights that are not finite; lower learning_rate")


def check_sampler(trainer: Trainer, plan: DPSGDPlan) -> PoissonSampler:
    """The Poisson sampler of the loader the Trainer really uses, after whatever Lightning did to it.

    Raises:
        InputError: it is not our sampler, or not at the plan's rate.
    """
    loader = trainer.train_dataloader
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, PoissonSampler):
        found = type(sampler if sampler is not None else loader).__name__
        raise InputError(f"train_dataloaders: batches come from a {found}, not a PoissonSampler; {_LOADER_REMEDY}")
    if sampler.sampling_rate != plan.sampling_rate:
        raise InputError(
            f"train_dataloaders: sampling_rate={sampler.sampling_rate} but plan.sampling_rate="
            f"{plan.sampling_rate}; {_LOADER_REMEDY}"
        )
    return sampler
