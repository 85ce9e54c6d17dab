"""``torchdpcate predict``: stream a table through a release, or, the curator, through a run's online service."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from torchdpcate._files import refuse_existing
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data._frames import MOST_BYTES
from torchdpcate.data.stream import stream_answers
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combined import CombinedEffect
from torchdpcate.release.combined_lines import CombinedAverage, CombinedSubgroups
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import Release, load_release
from torchdpcate.release.subgroups import SubgroupRelease

REFUSE, MISSING = "refuse", "missing"
ONLINE = "online"
"""Folder of a run's online service, in the curator's."""


def predict(
    release: str,
    input: str,
    output: str,
    most_bytes: int | None = None,
    keep: Sequence[str] | None = None,
    interval: bool = False,
    level: float | None = None,
    outside: str = REFUSE,
    overwrite: bool = False,
    form: CsvForm = PLAIN,
) -> None:
    """Write the effects, or a rule's decisions, at the rows of ``input`` to ``output``, in constant memory.

    Args:
        release: Release file, or the run folder that holds it; or, the curator's side, the folder of an online service,
            ``RUN/curator/online``. Its run has paid for all answers, so that they cost nothing more.
        input: A table with the schema's covariate columns.
        output: csv or parquet file to write, whole or not at all.
        most_bytes: What a row group of a parquet file may unpack to; None for 1 GiB.
        keep: Columns of the input to be written before the answers.
        interval: Whether to write the confidence interval of each effect, columns ``low`` and ``high``.
        level: Of the intervals; None for 0.95.
        outside: ``"missing"`` leaves the answers of rows outside the domain empty and counts these rows, ``"refuse"``
            refuses the table.
        overwrite: Whether the output may take the place of a file that is there.
        form: How the input is written, if it is csv.

    Raises:
        InputError: An output that is there, a damaged release, missing columns, rows outside the domain, intervals that
            the release lacks.
        ReleaseFileError: The service's state or history is damaged, changed, or of another run.
    """
    service = Path(release).name == ONLINE and Path(release).is_dir()
    loaded = _opened(release) if service else load_release(release)
    if isinstance(loaded, AverageEffectRelease | CombinedAverage):
        raise InputError(
            f"{release}: is an average effect, one number and no column; torchdpcate verify shows it with its interval"
        )
    if level is not None and not interval:
        raise InputError(f"level = {level}: is that of intervals; add --interval")
    if os.path.exists(input) and os.path.exists(output) and os.path.samefile(input, output):
        raise InputError(f"output {output} is the input; give another name")
    if not overwrite:
        refuse_existing(output, "output", "add --overwrite")
    what = "effect" if service else loaded.column
    if interval:
        answers = _answers(loaded, release, 0.95 if level is None else level)
    elif service:
        answers = _asked(loaded)
    else:
        answers = lambda x: loaded.as_columns(loaded.answer(x))  # noqa: E731
    columns = (TextColumn("predicting"), BarColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("predict", total=None)
        done = stream_answers(
            Path(input),
            Path(output),
            loaded.schema,
            answers,
            keep=keep or (),
            missing_outside=outside == MISSING,
            on_progress=lambda rows: progress.update(bar, completed=rows),
            most_bytes=MOST_BYTES if most_bytes is None else most_bytes,
            form=form,
        )
    print(f"{done.rows - done.outside:,} {what}s ({loaded.privacy.headline}) written to {output}")
    if service:
        print("by the run's online service: its run has paid for all answers together, and nothing more was spent")
    if outside == MISSING:
        print(f"{done.outside:,} of {done.rows:,} rows are outside the domain, their answers missing")


def _opened(folder: str) -> Any:
    from torchdpcate.estimators.cate.online.service import OnlineService  # GPyTorch, which no reader needs

    return OnlineService.open(folder)


def _asked(service: Any) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function to the answers of a service; without rows it is not asked."""
    return lambda x: {"effect": service.answer_tensor(x) if len(x) else torch.empty(0, dtype=torch.float64)}


def _answers(release: Any, path: str, level: float) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function to effects and their confidence intervals.

    Raises:
        InputError: The release has none.
    """
    found_at: Callable[[Tensor, float], Any]
    if isinstance(release, ComposedRelease | CombinedEffect):
        found_at = release.interval
    elif isinstance(release, SubgroupRelease | CombinedSubgroups):
        found_at = release.interval_at
    else:
        what = f"a release of {release.kind}" if isinstance(release, Release) else "an online service"
        raise InputError(f"{path}: is {what}, which has no interval of an effect at a row; leave --interval out")
    found_at(release.schema.grid(1), level)  # refuses before anything is read

    def answers(x: Tensor) -> dict[str, Tensor]:
        shape = (len(release.arms), 2) if release.arms else (2,)
        found = torch.from_numpy(found_at(x, level)) if len(x) else torch.empty(0, *shape, dtype=torch.float64)
        low, high = found.unbind(-1)
        return release.as_columns(release.answer(x)) | release.as_columns(low, "low") | release.as_columns(high, "high")

    return answers
