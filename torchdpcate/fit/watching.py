"""What is seen of a training while it runs, and kept of it: progress, losses and networks, in the curator's folder.

A loss is a number of the records that nothing pays for. It must never leave with a release, nor for a server.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import Logger
from rich.progress import Progress

from torchdpcate._files import PRIVATE, private_folder
from torchdpcate.errors import InputError
from torchdpcate.fit.trainable import STATE, why_not_private

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

KINDS = ("csv", "tensorboard", "mlflow")
_NEEDS = {"tensorboard": ("tensorboard", "tensorboardX"), "mlflow": ("mlflow",)}
_UNRELEASED = "unreleased-losses"
"""What folders, runs and experiments of losses are called: nothing pays for them."""


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


def _curators(folder: Path) -> Path:
    """Return a folder that its owner alone may enter, made here if need be.

    Raises:
        InputError: Others may enter it.
    """
    for place in (folder.parent, folder):  # the curator's folder may not be there yet
        if place == folder or not place.exists():
            private_folder(place)
    return folder


def _made(kind: str, folder: Path) -> Logger:
    """Return Lightning's logger for a folder."""
    from lightning.pytorch import loggers

    if kind == "csv":
        return loggers.CSVLogger(folder, name=_UNRELEASED)
    if kind == "tensorboard":
        return loggers.TensorBoardLogger(folder, name=_UNRELEASED, default_hp_metric=False)
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true", MLFLOW_LOGGING_LEVEL="WARNING")
    return loggers.MLFlowLogger(
        experiment_name=_UNRELEASED,
        tracking_uri=f"sqlite:///{folder / _UNRELEASED}.db",
        artifact_location=(folder / _UNRELEASED).as_uri(),
        log_model=False,
    )


class CuratorsCheckpoint(Checkpoint):
    """Keeps what a training ends with, in one file whose name says whether its weights are private.

    ``private-NAME-STEPS.ckpt`` is of a network whose steps a ledger has counted, see ``stated_privacy``;
    ``unreleased-NAME-STEPS.ckpt`` is of any other. A further one of the same name gets a number. A module without
    hyperparameters, which no file could make anew, has none: so are those of compositions, which the release holds.

    Args:
        folder: The curator's; it is made, or must be one that others may not enter.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._path: Path | None = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file; anew where the network was changed after its training.

        Raises:
            InputError: A folder that others may enter.
        """
        if not pl_module.hparams:
            return
        if self._path is None:
            callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
            state = next((callback.state_dict() for callback in callbacks if callback.state_key == STATE), None)
            word = "unreleased" if why_not_private(state) else "private"
            steps = trainer.global_step if state is None else state["steps"]
            name = f"{word}-{type(pl_module).__name__}-{steps}"
            folder = _curators(self.folder)
            paths = (folder / f"{name}{f'-{i}' if i else ''}.ckpt" for i in count())
            self._path = next(path for path in paths if not path.exists())
        trainer.save_checkpoint(self._path, weights_only=False)
        self._path.chmod(PRIVATE)


class LossLog(Callback):
    """Logs the loss of each step, of the records that were sampled for it, into a folder that is its owner's alone.

    Nothing is made before the first loss. Each training has a folder, or a run, of its own, whose name says that it is
    unreleased. Settings of the environment that would send losses elsewhere are not followed, and MLflow's reports of
    its use are turned off.

    Args:
        kind: ``csv``, ``tensorboard`` or ``mlflow``.
        folder: The curator's; it is made, or must be one that others may not enter.

    Raises:
        InputError: See ``check_logger``.
    """

    def __init__(self, kind: str, folder: str | Path) -> None:
        check_logger(kind)
        self.kind, self.folder = kind, Path(os.path.abspath(folder))
        self._logger: Logger | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the loss, of ``outputs`` that are it or have it.

        Raises:
            InputError: A folder that others may enter.
        """
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and loss.numel():
            self._logger = self._logger or _made(self.kind, _curators(self.folder))
            self._logger.log_metrics({"loss": float(loss.detach().double().mean())}, step=trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what was logged."""
        if self._logger is not None:
            self._logger.finalize("success")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what was logged."""
        if self._logger is not None:
            self._logger.finalize("failed")


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
