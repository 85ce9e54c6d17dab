"""``torchdpcate plan``: the noise to expect of a run, by the words of ``train`` and public facts; no record is read."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from torchdpcate._files import PUBLIC, write_text
from torchdpcate.errors import InputError

_OWN = ("n", "precision")
_METADATA = "metadata"


def plan(overrides: Sequence[str]) -> None:
    """Plan the configured task: print the noise to expect, and with ``run_dir`` write ``plan.json`` and ``plan.png``.

    Args:
        overrides: Words of ``torchdpcate train``, and ``n=NUMBER`` or ``n=metadata`` and ``precision=NUMBER``.

    Raises:
        InputError: What ``train`` would refuse, in the same words; or a number of records that is not known.
    """
    from torchdpcate.cli.train import composed

    if {"-m", "--multirun"} & set(overrides):
        raise InputError("-m: a plan has no sweeps; its table shows other n and epsilon")
    given = {word.partition("=")[0]: word.partition("=")[2] for word in overrides if word.partition("=")[0] in _OWN}
    rest = [word for word in overrides if word.partition("=")[0] not in _OWN]
    precision = _number("precision", given["precision"]) if "precision" in given else None
    composed("plan", rest, lambda config: _job(config, given.get("n"), precision))


def _job(config: DictConfig, n: str | None, precision: float | None) -> None:
    """Plan one task."""
    from torchdpcate.cli.plan_report import PlanReport  # late, as the imports of train's job
    from torchdpcate.cli.run import check_unit, configure, log_into
    from torchdpcate.cli.task import TaskSpec
    from torchdpcate.cli.train import run_folder
    from torchdpcate.privacy.budget import PrivacyBudget

    folder = None if config.run_dir is None else run_folder(config)
    task: TaskSpec = hydra.utils.instantiate(config.task)
    log_into(Path("curator") / "logs", config)  # which a plan never makes
    configure(task, config)
    task.study = task.public()
    task.study = _with_records(task.study, config, n)
    check_unit(config, task.study.unit)
    budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    task.learner = task.learner_of(budget)
    task.check()
    report = PlanReport.of(task, budget, precision)
    if folder is not None:
        _write(report, folder)
    report.show(folder)


def _with_records(study: Any, config: DictConfig, n: str | None) -> Any:
    """Return the public facts with the number of records.

    Raises:
        InputError: It is not known, or not a positive integer.
    """
    from dataclasses import replace

    if n is None:
        if study.n is None:
            raise InputError(
                "n: the number of records is not known without reading them; give n=NUMBER (or n=metadata, which "
                "reads it from the metadata of a parquet file)"
            )
        return study
    if n == _METADATA:
        source = hydra.utils.instantiate(config.data)
        if not hasattr(source, "stated_rows"):
            raise InputError(f"n = {n}: is for data=table alone; give n=NUMBER")
        return replace(study, n=source.stated_rows())
    number = _number("n", n)
    if number != int(number):
        raise InputError(f"n = {n}: give a positive integer")
    return replace(study, n=int(number))


def _number(name: str, text: str) -> float:
    with suppress(ValueError):
        number = float(text.replace("_", ""))
        if 0 < number < float("inf"):
            return number
    raise InputError(f"{name} = {text}: give a positive number")


def _write(report: Any, folder: Path) -> None:
    """Write the plan's files into a new folder."""
    from torchdpcate.evaluation.curator_figures import plan_figure
    from torchdpcate.evaluation.figures import save_figure

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "plan.json", json.dumps(report.to_dict(), indent=2) + "\n", PUBLIC)
    save_figure(plan_figure(**report.figure()), folder / "plan.png")
