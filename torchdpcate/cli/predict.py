"""``torchdpcate predict``: stream a table through a release, or, the curator, through a run's online service."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from torchdpcate._files import atomic_path, refuse_existing
from torchdpcate.data._csv import PLAIN, CsvForm, read_numbers
from torchdpcate.data._frames import MOST_BYTES, about, arrow_path, column_types, file_kind, iter_frames
from torchdpcate.data.checked import every_fault
from torchdpcate.data.facts import check_integer
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.release.file import load_release

if TYPE_CHECKING:
    import pandas as pd


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
        rows, missing = stream_answers(
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
    print(f"{rows - missing:,} {what}s ({loaded.privacy.headline}) written to {output}")
    if service:
        print("by the run's online service: its run has paid for all answers together, and nothing more was spent")
    if outside == MISSING:
        print(f"{missing:,} of {rows:,} rows are outside the domain, their answers missing")


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
    own = getattr(release, "interval", None) if getattr(release, "function", None) is release else None
    found_at = getattr(release, "interval_at", own)
    if found_at is None:
        what = f"a release of {release.kind}" if hasattr(release, "kind") else "an online service"
        raise InputError(f"{path}: is {what}, which has no interval of an effect at a row; leave --interval out")
    found_at(release.schema.grid(1), level)  # refuses before anything is read

    def answers(x: Tensor) -> dict[str, Tensor]:
        shape = (len(release.arms), 2) if release.arms else (2,)
        found = torch.from_numpy(found_at(x, level)) if len(x) else torch.empty(0, *shape, dtype=torch.float64)
        low, high = found.unbind(-1)
        return release.as_columns(release.answer(x)) | release.as_columns(low, "low") | release.as_columns(high, "high")

    return answers


def stream_answers(
    input: str | Path,
    output: str | Path,
    schema: TableSchema,
    answers: Callable[[Tensor], Mapping[str, Tensor]],
    keep: Sequence[str] = (),
    missing_outside: bool = False,
    batch_rows: int = 65536,
    on_progress: Callable[[int], object] | None = None,
    most_bytes: int = MOST_BYTES,
    form: CsvForm = PLAIN,
) -> tuple[int, int]:
    """Read covariates from a file, and write one row of answers for each to another, batch by batch.

    Args:
        input: A table, as ``Table`` reads it, with the schema's covariate columns; no other is read but the
            kept ones.
        output: csv, csv.gz or parquet with the kept columns and those of the answers, rows in the input's order. It is
            written under a temporary name and renamed when complete; on any error nothing is left.
        schema: Public facts of the covariates, with what becomes of those outside their bounds.
        answers: Encoded covariates, float64 [B, q], to columns [B] by their names, the same ones for every batch.
        keep: Columns of the input to be written before the answers, as they are.
        missing_outside: Whether rows outside the domain have missing answers, instead of being refused.
        batch_rows: Rows a batch, at most; memory grows with it and not with the file.
        on_progress: Called after each batch with the number of rows done.
        most_bytes: What a row group of a parquet file may unpack to.
        form: How the input is written, if it is csv; the output has commas, decimal points and UTF-8.

    Returns:
        How many rows there were, and how many of them outside the domain.

    Raises:
        InputError: Missing file or column, values missing, not numeric or outside the domain (which
            column, how many, among which rows), a kept column whose name is that of an answer, or an output that cannot
            be written.
    """
    check_integer("batch_rows", batch_rows)
    columns = list(dict.fromkeys([*schema.columns, *keep]))
    words, kept = schema.text_in(input), tuple(dict.fromkeys(keep))
    text = words | set(keep)
    done = outside = 0
    with _whole_or_nothing(Path(output)) as write:
        types = column_types(input, kept, form)
        for frame in iter_frames(input, columns, text, batch_rows, most_bytes, form):
            with about(f"{input}, rows {done + 1} to {done + len(frame)}"):
                read = _numbers(frame, schema.columns, text - words, form)
                with every_fault(read, schema, "query"):
                    x, known = _covariates(schema, read, missing_outside)
            write(_table(frame, kept, types, answers(x), known))
            done, outside = done + len(frame), outside + int((~known).sum())
            if on_progress is not None:
                on_progress(done)
        if not done:
            nothing = dict.fromkeys(
                answers(torch.empty(0, schema.domain.dimension, dtype=torch.float64)), torch.empty(0)
            )
            empty = {name: values.double() for name, values in nothing.items()}
            write(_table(None, kept, types, empty, np.empty(0, dtype=bool)))
    return done, outside


def _numbers(frame: "pd.DataFrame", covariates: Sequence[str], text: frozenset[str], form: CsvForm) -> "pd.DataFrame":
    """Return the covariates, numbers among them that were read as text to be kept as they are written."""
    import pandas as pd
    import pyarrow as pa

    found = frame[list(covariates)]
    for name in text & set(covariates):
        if not pd.api.types.is_numeric_dtype(frame[name]):  # what is no number stays text, which the schema counts
            words = pa.array(frame[name], pa.large_string(), from_pandas=True)
            found = found.assign(**{name: read_numbers(words, name, form).to_pandas()})
    return found


def _covariates(schema: TableSchema, frame: "pd.DataFrame", missing_outside: bool) -> tuple[Tensor, np.ndarray]:
    if missing_outside:
        return schema.encode_known(frame)
    return schema.within(schema.encode(frame), "query"), np.ones(len(frame), dtype=bool)


def _table(
    frame: "pd.DataFrame | None",
    kept: Sequence[str],
    types: Mapping[str, Any],
    answers: Mapping[str, Tensor],
    known: np.ndarray,
) -> Any:
    """Return one batch of the output."""
    import pyarrow as pa

    twice = [name for name in kept if name in answers]
    if twice:
        raise InputError(f"keep = {twice[0]}: is the name of a column of answers; rename it in the table")
    arrays = {name: pa.array([] if frame is None else frame[name], type=types[name], from_pandas=True) for name in kept}
    for name, values in answers.items():
        found = values.detach().cpu().numpy()
        spread = np.zeros(len(known), dtype=found.dtype)
        spread[known] = found
        arrays[name] = pa.array(spread, mask=~known)
    return pa.record_batch(list(arrays.values()), names=list(arrays))


@contextmanager
def _whole_or_nothing(output: Path) -> Iterator[Callable[[Any], None]]:
    """Open a writer on a temporary file; rename it if all went well, remove it if not."""
    kind = file_kind(output, "output", written=True)
    if not os.path.isdir(output.parent):
        raise InputError(f"output {str(output)!r}: there is no folder {str(output.parent)!r}; make it first")
    writer: Any = None
    try:
        with atomic_path(output) as temporary, ExitStack() as files:

            def write(batch: Any) -> None:
                nonlocal writer
                writer = writer or _open(files, arrow_path(temporary, "output"), kind, batch.schema)
                writer.write_batch(batch)

            yield write
    except OSError as error:
        raise InputError(f"output {str(output)!r} cannot be written: {error.strerror or error}") from None


def _open(files: ExitStack, path: str, kind: str, schema: Any) -> Any:
    """Return a writer of batches: of a csv with a plain header, compressed if its name ends so, or of parquet."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    if kind == "parquet":
        return files.enter_context(parquet.ParquetWriter(path, schema))
    file = files.enter_context(pa.output_stream(path))
    file.write((",".join(map(_csv_name, schema.names)) + "\n").encode())
    return files.enter_context(csv.CSVWriter(file, schema, write_options=csv.WriteOptions(include_header=False)))


def _csv_name(name: str) -> str:
    """Return a name for a csv header, quoted where it must be."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\r\n') else name
