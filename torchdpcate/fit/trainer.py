"""The Trainer that fits small modules quietly; Lightning is imported when one is made."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from torchdpcate._process import refuse_torchrun
from torchdpcate.errors import InputError
from torchdpcate.privacy.guarantee import Condition, of_library, own_methods

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer


def default_trainer(
    *, progress: bool = False, logger: Any = None, log_folder: str | None = None, **settings: Any
) -> Trainer:
    """A quiet Trainer on one device: no logger unless one is named, no checkpoint unless requested, no summary.

    Args:
        progress: show a progress bar.
        logger: `csv`, `tensorboard` or `mlflow`, which write the losses of each training into `log_folder`; or one of
            Lightning's own, which writes where it was told. A loss is the curator's: nothing pays for it.
        log_folder: the curator's folder for it, and for the trained network where `enable_checkpointing` requests it
            and no callback keeps it, see `watching.CuratorsCheckpoint`.
        settings: further arguments of `lightning.Trainer`, which win over ours.

    Raises:
        InputError: a device or a logger that is not there, several devices, a logger or a checkpoint without its
            folder, or settings that Lightning refuses.

    Example:
        >>> default_trainer(accelerator="cpu", max_steps=5).max_steps
        5
    """
    check_accelerator(settings.get("accelerator", "auto"))
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    from torchdpcate.fit.watching import CuratorsCheckpoint, LossLog, TrainingBar

    callbacks = list(settings.pop("callbacks", None) or [])
    if progress:
        callbacks.append(TrainingBar())
    keeps = settings.get("enable_checkpointing") and not any(isinstance(callback, Checkpoint) for callback in callbacks)
    if log_folder is None and (keeps or isinstance(logger, str)):
        what = "enable_checkpointing = True" if keeps else f"logger = {logger}"
        raise InputError(f"{what}: give log_folder, a folder of the curator's, for what is written must not leave")
    if keeps:
        callbacks.append(CuratorsCheckpoint(str(log_folder)))
    if isinstance(logger, str):
        callbacks.append(LossLog(logger, str(log_folder)))
    quiet: dict[str, Any] = {
        "devices": 1,
        "logger": False if isinstance(logger, str) else logger or False,
        "default_root_dir": log_folder,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
    }
    try:
        with quiet_lightning():
            trainer = Trainer(callbacks=callbacks, **{**quiet, **settings})
    except (MisconfigurationException, ValueError) as error:  # the latter of an accelerator that is none
        told = " ".join(str(error).split())
        raise InputError(f"trainer: {told}; use trainer.accelerator=cpu or correct its settings") from None
    check_one_process(trainer)
    return trainer


def check_accelerator(name: Any) -> None:
    """Refuse a GPU where torch sees none, without Lightning, whose import takes seconds.

    Args:
        name: The Trainer's `accelerator`.

    Raises:
        InputError: There is no GPU.
    """
    if name in ("gpu", "cuda", "mps") and not torch.accelerator.is_available():
        raise InputError(f"trainer.accelerator={name}: torch finds no GPU here; use trainer.accelerator=cpu")


def check_one_process(trainer: Trainer) -> None:
    """Refuse several processes, each of which would fit, charge and release on its own; call before `fit`.

    Raises:
        InputError: torchrun's, or those of a strategy of Lightning's.
    """
    from lightning.pytorch.strategies import SingleDeviceStrategy

    refuse_torchrun()
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise InputError(
            f"trainer: {type(trainer.strategy).__name__} of {trainer.num_devices} device(s): training takes one "
            "process on one device; give devices=1 and no strategy"
        )


_KNOWN = (
    "ModelCheckpoint",
    "LearningRateMonitor",
    "ProgressBar",
    "TQDMProgressBar",
    "RichProgressBar",
    "ModelSummary",
    "RichModelSummary",
    "DeviceStatsMonitor",
    "GradientAccumulationScheduler",
)
"""Lightning's callbacks that change nothing of a fit, as far as `DPSGD` does not refuse their settings."""


def is_known(part: object) -> bool:
    """Return whether a callback or a logger is the library's, or one of Lightning's that changes nothing of a fit.

    Args:
        part: The callback or logger; a class of the user's, and one with a method replaced, is none.

    Example:
        >>> from lightning.pytorch.callbacks import LambdaCallback, LearningRateMonitor
        >>> is_known(LearningRateMonitor()), is_known(LambdaCallback())
        (True, False)
    """
    kind = type(part)
    lightning = kind.__module__.startswith("lightning.pytorch.callbacks.") and kind.__name__ in _KNOWN
    lightning |= kind.__module__.startswith("lightning.pytorch.loggers.")
    return of_library(part) or (lightning and not own_methods(part))


def user_trainer(trainer: Callable[..., Trainer] | None) -> tuple[Condition, ...]:
    """Return the condition that a Trainer of the user's brings; none for `default_trainer` with plain settings.

    A callback, and whatever else stands in a Trainer, sees the records and the losses. It could keep the weights of the
    least loss, or end the fit by it.

    Args:
        trainer: Makes a Trainer from keyword arguments; None is `default_trainer`.

    Example:
        >>> user_trainer(partial(default_trainer, accelerator="cpu"))
        ()
        >>> user_trainer(lambda **settings: default_trainer(**settings))[0].name
        'trainer'
    """
    settings, own = _settings(trainer or default_trainer)
    strange = [] if own else ["its factory"]
    for name, value in settings.items():
        parts = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        strange += [name for part in parts if not (isinstance(part, _PLAIN) or is_known(part))]
    if not strange:
        return ()
    text = (
        f"what the user put into the Trainer ({', '.join(dict.fromkeys(strange))}) ends training, and chooses weights "
        "and settings, by public facts alone; not tried"
    )
    return (Condition("trainer", text),)


_PLAIN = str | int | float | None


def made(trainer: Callable[..., Trainer], callbacks: Sequence[Callback], **settings: Any) -> Trainer:
    """Return a Trainer with callbacks beside those that a partial function names; it is of one process.

    Args:
        trainer: Makes a Trainer from keyword arguments.
        callbacks: The fit's own, which come first.
        settings: Further keyword arguments.

    Raises:
        InputError: See `check_one_process`.
    """
    beside = trainer.keywords.get("callbacks") if isinstance(trainer, partial) else None
    found = trainer(callbacks=[*callbacks, *(beside or [])], **settings)
    check_one_process(found)
    return found


def _settings(trainer: Callable[..., Trainer]) -> tuple[dict[str, Any], bool]:
    """Return what a maker of Trainers sets, and whether it is the library's own: Lightning is then not needed."""
    settings = trainer.keywords if isinstance(trainer, partial) else {}
    return settings, (trainer.func if isinstance(trainer, partial) else trainer) is default_trainer


def check_device(trainer: Callable[..., Trainer]) -> torch.device:
    """Return a Trainer's device; one that is not there is refused, before anything is spent.

    Lightning is not imported for the library's own on the CPU, which is always there.

    Args:
        trainer: makes a Trainer from keyword arguments.

    Raises:
        InputError: a device that is not there, or settings that Lightning refuses.

    Example:
        >>> check_device(default_trainer)
        device(type='cpu')
    """
    settings, own = _settings(trainer)
    if own and settings.get("accelerator", "cpu") == "cpu":
        return torch.device("cpu")
    return trainer().strategy.root_device


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keep Lightning's banners, and its advice that a small data set does not need, off the console."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "opacus")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for advice in (
            ".*does not have many workers.*",
            ".*`max_epochs` was not set.*",
            ".*GPU available but not.*",
            ".*treespec, LeafSpec.*",
            "Checkpoint directory .* exists.*",
        ):
            warnings.filterwarnings("ignore", advice)
        try:
            for logger in loggers:
                logger.setLevel(max(logger.level, logging.WARNING))
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C stay a KeyboardInterrupt: Lightning exits the process instead, and leaves SIGINT ignored."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as exit_:
        if isinstance(exit_.__context__, KeyboardInterrupt):
            raise exit_.__context__ from None
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and handler is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, handler)
