"""``torchdpcate train``: Hydra composes the configuration, a task runs it."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from torchdpcate._files import PRIVATE
from torchdpcate._process import imported, refuse_torchrun
from torchdpcate._progress import progress
from torchdpcate.cli.overrides import (
    checked_overrides,
    configuration,
    options_first,
    readable_words,
    sweep_words,
    text_of,
    with_implied_table,
)
from torchdpcate.errors import InputError, PrivacyWarning
from torchdpcate.registry import check_classes, conf_dir

_FOLDER = "hydra.sweep.dir="


def train(overrides: Sequence[str]) -> None:
    """Run the configured task once, or once for every point of a sweep.

    Args:
        overrides: Hydra's command-line words.

    Raises:
        InputError: A user's mistake in the configuration or the data.
    """
    refuse_torchrun()
    words = _prepared(overrides)
    try:
        composed("train", words, _job)
    finally:
        folder = next((Path(text_of(word)) for word in words if word.startswith(_FOLDER)), None)
        if folder is not None:
            from torchdpcate.cli.report import say_table
            from torchdpcate.cli.sweep import say_total

            say_table(folder)
            say_total(folder)


def composed(command: str, overrides: Sequence[str], job: Callable[[DictConfig], None]) -> None:
    """Compose the configuration of command-line words, once or for every point of a sweep, and do a job with it.

    Args:
        command: Name of the command.
        overrides: Hydra's command-line words.
        job: What is done with a configuration.

    Raises:
        InputError: A user's mistake in the words, or of the job.
    """
    words = with_implied_table(_prepared(overrides))
    with checked_overrides(words):
        one = configuration(words)
        if one is None:
            _by_hydra(command, words, job)
            return
        before = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(one)
        with read_write(one), open_dict(one):
            del one["hydra"]
        try:
            check_classes(OmegaConf.to_container(one))
            job(one)
        finally:
            HydraConfig.instance().cfg = before


def _by_hydra(command: str, words: Sequence[str], job: Callable[[DictConfig], None]) -> None:
    """Let Hydra show the configuration of words, or do a job with it at every point of a sweep."""
    from unittest import mock

    failures: list[Exception] = []
    process = os.getpid()

    def guarded(config: DictConfig) -> None:
        try:
            check_classes(OmegaConf.to_container(config))
            job(config)
        except Exception as error:
            # Hydra would print lines of its own; a launcher's worker process has no other way to report.
            if os.getpid() != process:
                raise
            failures.append(error)

    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(guarded)
    # Hydra reads its words from sys.argv, and hides errors unless HYDRA_FULL_ERROR is set.
    given = mock.patch.object(sys, "argv", [f"torchdpcate {command}", *sweep_words(words)])
    with given, mock.patch.dict(os.environ, {"HYDRA_FULL_ERROR": "1"}):
        main()
    if failures:
        raise failures[0]


def _prepared(overrides: Sequence[str]) -> list[str]:
    """Return the words as Hydra's grammar takes them, options first, and with the folder of a sweep."""
    return _sweep_folder(readable_words(options_first(overrides)))


def _sweep_folder(overrides: Sequence[str]) -> list[str]:
    """Name the folder of a sweep, whose runs are numbered inside it: that of ``run_dir=PATH``, or one by the time."""
    words = list(overrides)
    if not {"-m", "--multirun"} & set(words) or any(word.startswith(_FOLDER) for word in words):
        return words
    named = [word for word in words if word.startswith("run_dir=")]
    if named:
        _check_place(Path(text_of(named[-1])))
    folder = named[-1].removeprefix("run_dir=") if named else f"multirun/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    return [*words, f"{_FOLDER}{folder}"]


def _job(config: DictConfig) -> None:
    """Run the task."""
    accelerator = OmegaConf.select(config, "trainer.accelerator", default="cpu")
    if accelerator != "cpu":
        from torchdpcate.fit.trainer import check_accelerator

        check_accelerator(accelerator)
    runner = imported("torchdpcate.cli.run")  # late: a mistake in the words needs none of what it imports
    folder = run_folder(config)
    bars = progress(bool(OmegaConf.select(config, "trainer.progress", default=False)))
    task = hydra.utils.instantiate(config.task)
    quiet = warnings.catch_warnings(action="ignore", category=PrivacyWarning)  # run says it in its own words
    with bars, quiet, closing(task):
        runner.run(task, config, folder)


def run_folder(config: DictConfig) -> Path:
    """Return the folder of this run, which must not exist yet.

    Raises:
        InputError: It exists, and not because Hydra made it a moment ago for this point of a sweep.
    """
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        folder = Path(HydraConfig.get().runtime.output_dir)
        with suppress(OSError):
            (folder.parent / "multirun.yaml").chmod(PRIVATE)  # Hydra's, with the paths of the curator's files
        taken = folder.exists() and any(folder.iterdir())
    else:
        default = Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
        folder = default if config.run_dir is None else Path(str(config.run_dir))
        taken = folder.exists()
    if taken:
        raise InputError(f"run_dir = {folder}: exists already; choose another folder or remove it")
    _check_place(folder)
    return folder


def _check_place(folder: Path) -> None:
    """Refuse a folder that cannot be made, before any record is read; nothing is left of the trial.

    Raises:
        InputError: It cannot be made, or is a file.
    """
    made: list[Path] = []
    try:
        made = list(takewhile(lambda path: not path.exists(), (folder, *folder.absolute().parents)))
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"run_dir = {folder}: cannot be made ({error.strerror}); choose another folder") from None
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()
