"""Whether a user's loss is what DP-SGD can clip: a mean of one term a record, as far as three records tell."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Metric

from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import PoissonLoader

_TOLERANCE = 1e-3  # of the loss; float32 rounds by 1e-6, and a sum in place of a mean is off by its number of terms


def check_loss(trainer: Trainer, module: LightningModule) -> None:
    r"""Refuse a training step whose loss of three records is not the mean of their losses one by one.

    .. math:: \ell(\{1, 2, 3\}) = \tfrac13 \sum_i \ell(\{i\})

    A sum over the batch, a mean by weights of the batch, a contrast between records, and shapes [B, 1] and [B] that
    broadcast all fail: a clipped record would then move what others add.  It is a trial and no proof: dropout is off,
    and a step that is random besides is not judged.  Nothing is logged, metrics are reset, and
    what the step leaves in attributes and lists of the module is taken back.

    Args:
        trainer: at its first batch; its loader is a `PoissonLoader`, else nothing is tried.
        module: its training step is called, without a graph.

    Raises:
        InputError: it is no such mean.
    """
    loader: Any = trainer.train_dataloader
    records = len(loader.dataset) if isinstance(loader, PoissonLoader) else 0  # type: ignore[arg-type]
    if records < 3:
        return
    three = [0, records // 2, records - 1]  # apart: tables are often sorted by class
    with torch.no_grad(), torch.random.fork_rng(), _aside(module):
        together = _loss(trainer, module, three)
        if together is None or together != _loss(trainer, module, three):
            return
        alone = [_loss(trainer, module, [record]) for record in three]
    mean = sum(loss for loss in alone if loss is not None) / 3
    size = max(abs(together), *(abs(loss) for loss in alone if loss is not None), 0.0)  # terms may cancel in a mean
    if abs(together - mean) > _TOLERANCE * size:
        # without the losses: nothing pays for them, and a message goes farther than the curator's folder
        raise InputError(
            "training_step: its loss of three records is not the mean of their losses one by one; DPSGD needs a mean "
            "of one term a record: reduction='mean', no class weights in it, no sum and no contrast of records, and "
            "predictions and targets of one shape"
        )


def _loss(trainer: Trainer, module: LightningModule, records: Sequence[int]) -> float | None:
    loader: Any = trainer.train_dataloader
    batch = loader.collate_fn(loader.dataset.__getitems__(list(records)))
    batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
    step: Any = type(module).training_step  # on the module itself an engine's own may stand
    given = (module, batch, 0) if len(inspect.signature(step).parameters) > 2 else (module, batch)
    with trainer.precision_plugin.train_step_context():
        found = step(*given)
    loss = found.get("loss") if isinstance(found, dict) else found
    return None if loss is None else float(loss)


@contextmanager
def _aside(module: LightningModule) -> Iterator[None]:
    """Call the module's step without a trace: in eval mode, silent, and its attributes and lists put back."""
    modes = [(part, part.training) for part in module.modules()]
    before = dict(vars(module))
    lists = [(value, list(value)) for value in before.values() if isinstance(value, list)]
    vars(module).update(log=_nothing, log_dict=_nothing)
    module.eval()
    try:
        yield
    finally:
        vars(module).clear()
        vars(module).update(before)
        for value, items in lists:
            value[:] = items
        for part, training in modes:
            part.training = training
            if isinstance(part, Metric):
                part.reset()


def _nothing(*_: Any, **__: Any) -> None:
    """Log nothing."""
