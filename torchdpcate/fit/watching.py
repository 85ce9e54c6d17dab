"""What is seen of a training while it runs: its progress, and its losses, in the curator's folder alone.

A loss is a number of the records that nothing pays for. It must never leave with a release, nor for a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from rich.progress import Progress

from torchdpcate._files import private_folder
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

KINDS = ("csv", "tensorboard", "mlflow")
_NEEDS = {"tensorboard": ("tensorboard", "tensorboardX"), "mlflow": ("mlflow",)}
_EXPERIMENT = "torchdpcate"


def check_logger(kind: str) -> None:
    """Refuse a logger that is not known, or whose library is not there.

    Args:
        kind: One of ``KINDS``.

    Raises:
        InputError: Says which there are, or what to install.

    Example:
        >>> check_logger("csv")
    """
    if kind not in KINDS:
        raise InputError(f"trainer.logger = {kind}: choose one of {', '.join(KINDS)}, or null for none")
    needed = _NEEDS.get(kind, ())
    if needed and not any(find_spec(name) for name in needed):
        raise InputError(f"trainer.logger = {kind}: needs {needed[0]}; pip install {needed[0]}")


class CuratorsLogger(Logger):
    """Logs into a folder which its owner alone may enter, and to no server.

    Nothing is made before the first number is logged. Each training has a folder, or a run, of its own. Settings of the
    environment that would send losses elsewhere are not followed, and MLflow's reports of its use are turned off.

    Args:
        kind: ``csv``, ``tensorboard`` or ``mlflow``.
        folder: The curator's; it is made, or must be one that others may not enter.

    Raises:
        InputError: See ``check_logger``.
    """

    def __init__(self, kind: str, folder: str | Path) -> None:
        check_logger(kind)
        self.kind, self.folder = kind, Path(os.path.abspath(folder))
        self._made: Logger | None = None

    @property
    def name(self) -> str:
        """Which logger it is."""
        return self.kind

    @property
    def version(self) -> None:
        """No version: each training's is the logger's own to choose."""
        return None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers.

        Args:
            metrics: The numbers by their names.
            step: Of the training.

        Raises:
            InputError: A folder that others may enter.
        """
        if self._made is None:
            for folder in (self.folder.parent, self.folder):  # the curator's folder may not be there yet
                if folder == self.folder or not folder.exists():
                    private_folder(folder)
            self._made = _made(self.kind, self.folder)
        self._made.log_metrics(dict(metrics), step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Log nothing: the run's configuration is in the curator's folder."""

    def save(self) -> None:
        """Write what was logged."""
        if self._made is not None:
            self._made.save()

    def finalize(self, status: str) -> None:
        """End.

        Args:
            status: How the training ended.
        """
        if self._made is not None:
            self._made.finalize(status)


def _made(kind: str, folder: Path) -> Logger:
    """Return Lightning's logger for a folder."""
    from lightning.pytorch import loggers

    if kind == "csv":
        return loggers.CSVLogger(folder, name="csv")
    if kind == "tensorboard":
        return loggers.TensorBoardLogger(folder, name="tensorboard", default_hp_metric=False)
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true", MLFLOW_LOGGING_LEVEL="WARNING")
    return loggers.MLFlowLogger(
        experiment_name=_EXPERIMENT,
        tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
        artifact_location=(folder / "mlflow").as_uri(),
        log_model=False,
    )


class LossLog(Callback):
    """Logs the loss of each step, of the records that were sampled for it."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the loss.

        Args:
            trainer: The Trainer, which counts the steps.
            pl_module: What trains.
            outputs: The loss, or a dict that has it.
            batch: The step's records.
            batch_idx: The step within its pass.
        """
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if trainer.logger is not None and loss is not None and loss.numel():
            trainer.logger.log_metrics({"loss": float(loss.detach().double().mean())}, step=trainer.global_step)


class TrainingBar(Callback):
    """A progress bar that says what trains and counts its steps."""

    def __init__(self) -> None:
        self._bar = Progress()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar.

        Args:
            trainer: The Trainer, which knows how many steps there are.
            pl_module: What trains.
        """
        private = trainer.max_steps > 0
        name = type(pl_module).__name__.removeprefix("Trainable")
        total = trainer.max_steps if private else trainer.num_training_batches * (trainer.max_epochs or 1)
        self._bar = Progress(transient=False)
        self._bar.add_task(f"{name}{', DP-SGD' if private else ''}", total=total, completed=trainer.global_step)
        self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Count a step."""
        self._bar.advance(self._bar.task_ids[0])

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As ``on_train_end``."""
        self._bar.stop()
