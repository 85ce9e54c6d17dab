"""Steps of a fit without what the Trainer does around each of them, where nobody would see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

from torchdpcate.nuisance.joint_strategy import JointStrategy
from torchdpcate.nuisance.record_loss import RecordLossModule

if TYPE_CHECKING:
    from torchdpcate.nuisance.engines import ChainEngine

_BURST = 64
"""Steps between two looks of the Trainer's own loop, which then notices signals."""

_SILENT = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Hooks inside a step."""

_OWN = (
    *_SILENT,
    "training_step",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)
"""What a module may do in a step."""


def own_hooks(module: LightningModule) -> list[str]:
    """What a module does in a step beside what a `RecordLossModule` does."""
    replaced = set(vars(module)) - {"backward", "training_step"}  # the engine's own stand there
    return [
        name for name in _OWN if getattr(type(module), name) is not getattr(RecordLossModule, name) or name in replaced
    ]


def direct(trainer: Any, module: LightningModule) -> bool:
    """Whether nobody would miss what the Trainer does around a step: no hook inside it, no logger, no validation.

    Callbacks are called before and after each step as ever.
    """
    if not isinstance(module, RecordLossModule):
        return False
    heard = [callback for callback in _callbacks(trainer) if any(_overridden(callback, name) for name in _SILENT)]
    return (
        not own_hooks(module)
        and not heard
        and type(trainer.strategy) in (SingleDeviceStrategy, JointStrategy)
        and type(trainer.precision_plugin) in (Precision, DoublePrecision)
        and type(trainer.profiler) is PassThroughProfiler
        and not (trainer.loggers or trainer.enable_validation or trainer.datamodule)
    )


class DirectSteps:
    """Takes the place of a training loop's `advance`, for the length of one fit.

    Each call takes some steps: what a callback may see of one, its counters and the order of what is done are those of
    the Trainer's own, so that a checkpoint between two steps is the same.

    Args:
        trainer: Its loop.
        module: What trains.
        engine: Clips, see `ChainEngine`.
    """

    def __init__(self, trainer: Trainer, module: Any, engine: ChainEngine) -> None:
        self.trainer, self.module, self.engine = trainer, module, engine
        self.loop: Any = trainer.fit_loop.epoch_loop
        self.usual = self.loop.advance
        self.starts, self.ends = (
            [getattr(callback, name) for callback in _callbacks(trainer) if _overridden(callback, name)]
            for name in ("on_train_batch_start", "on_train_batch_end")
        )
        self.device = trainer.strategy.root_device
        self.plain = type(trainer.precision_plugin) is Precision

    def attach(self) -> None:
        """Take the place."""
        self.loop.advance = self.advance

    def detach(self) -> None:
        """Leave it."""
        vars(self.loop).pop("advance", None)

    def advance(self, fetcher: Any) -> None:
        """Take some steps, or what the Trainer would do where a fit goes on from a checkpoint.

        Raises:
            StopIteration: There are no more batches.
        """
        if self.loop.restarting:
            self.usual(fetcher)
            return
        self.loop.val_loop.restarting = False
        seen, taken = self.loop.batch_progress, self.loop.automatic_optimization.optim_progress.optimizer.step.total
        for step in range(_BURST):
            if step:
                self.loop._batches_that_stepped += 1  # the Trainer counts the last one
            self._step(fetcher)
            if seen.is_last_batch or taken.completed == self.loop.max_steps or self.trainer.should_stop:
                return
            if self.trainer.received_sigterm:
                return

    def _step(self, fetcher: Any) -> None:
        trainer, module, loop, connector = self.trainer, self.module, self.loop, self.trainer._logger_connector
        seen, results, names = loop.batch_progress, loop._results, vars(module)
        batch, _, _ = next(fetcher)
        index = loop.batch_idx + 1
        seen.is_last_batch = fetcher.done
        batch = self._placed(batch)
        seen.increment_ready()
        connector._first_loop_iter = connector._first_loop_iter is None
        results.batch, results.batch_size, results.dataloader_idx = batch, None, None
        before, names["_current_fx_name"] = names["_current_fx_name"], "on_train_batch_start"
        for hook in self.starts:
            hook(trainer, module, batch, index)
        seen.increment_started()
        names["_current_fx_name"] = "training_step"
        output = self._trained(batch)
        seen.increment_processed()
        names["_current_fx_name"] = "on_train_batch_end"
        for hook in self.ends:
            hook(trainer, module, output, batch, index)
        names["_current_fx_name"] = before
        if results:  # something was logged
            connector.on_batch_end()
        results.batch = results.batch_size = None
        seen.increment_completed()

    def _placed(self, batch: Any) -> Any:
        """The batch where the module trains, in its precision."""
        if self.plain and isinstance(batch, list) and all(isinstance(part, Tensor) for part in batch):
            return [part if part.device == self.device else part.to(self.device) for part in batch]
        batch = self.trainer.precision_plugin.convert_input(batch)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _trained(self, batch: Any) -> dict[str, Tensor]:
        """Losses, clipped sums, and the step, whose guard counts it before noise is drawn."""
        counted = self.loop.automatic_optimization.optim_progress.optimizer
        counted.step.increment_ready()
        if self.plain:
            loss = self.engine.train(batch)
        else:
            with self.trainer.precision_plugin.train_step_context():
                loss = self.engine.train(batch)
        counted.zero_grad.increment_ready()
        counted.zero_grad.increment_started()
        counted.zero_grad.increment_completed()
        self.trainer.optimizers[0].step()
        counted.step.increment_completed()
        return {"loss": loss.detach()}


def _callbacks(trainer: Trainer) -> list[Callback]:
    return list(vars(trainer)["callbacks"])


def _overridden(callback: Callback, name: str) -> bool:
    return getattr(type(callback), name) is not getattr(Callback, name) or name in vars(callback)
