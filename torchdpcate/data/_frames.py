"""Csv and parquet files to pandas frames, batch by batch, reading only the columns named."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate.data._arrays import listed
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_CSV, _PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
_BLOCK_BYTES = 1 << 20


def file_kind(path: str | Path, what: str = "data file") -> str:
    """Return ``"csv"`` or ``"parquet"`` by the file's name.

    Raises:
        InputError: the name ends in neither.
    """
    name = str(path).lower()
    if name.endswith(_CSV):
        return "csv"
    if name.endswith(_PARQUET):
        return "parquet"
    raise InputError(f"{what} {str(path)!r} is neither csv nor parquet; use {', '.join(_CSV + _PARQUET)}")


def arrow_path(path: str | Path, what: str = "data file") -> str:
    """Return the path as Arrow takes it: its bytes read as UTF-8, whatever the locale makes of them.

    Raises:
        InputError: the name is not UTF-8.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise InputError(f"{what} {str(path)!r}: its name is not UTF-8; rename it") from None


def read_frame(paths: Any, columns: Sequence[str], text: Collection[str] = ()) -> "pd.DataFrame":
    """Return the columns of one file, or of several laid end to end, as one frame.

    Args:
        paths: a path, or a list of paths.
        columns: the columns to read; no other is.
        text: those among them that hold words: there ``NA`` is a word, not a missing value.

    Raises:
        InputError: a file is missing, empty or broken, or lacks a column.
    """
    import pandas as pd

    files = [paths] if isinstance(paths, str | Path) else list(paths)
    frames = [frame for file in files for frame in iter_frames(file, columns, text)]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        raise InputError(f"data file {listed(files)} holds no rows; bring records")
    return pd.concat(frames, ignore_index=True)


def iter_frames(
    path: str | Path, columns: Sequence[str], text: Collection[str] = (), batch_rows: int = 65536
) -> Iterator["pd.DataFrame"]:
    """Yield the columns of a file in frames of at most `batch_rows` rows, in constant memory.

    Raises:
        InputError: as `read_frame`.
    """
    read = {"csv": _csv_batches, "parquet": _parquet_batches}[file_kind(path)]
    if not os.path.isfile(path):
        raise InputError(f"data file {str(path)!r} does not exist; check the path")
    with _readable(path):
        for batch in read(arrow_path(path), list(columns), batch_rows):
            for start in range(0, batch.num_rows, batch_rows):
                yield _to_pandas(batch.slice(start, batch_rows), text)


def _csv_batches(path: str, columns: list[str], batch_rows: int) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    from pyarrow import csv

    # Everything is read as text, so that what is not a number can be counted rather than abort.
    read = csv.ReadOptions(block_size=_BLOCK_BYTES)
    parse = csv.ParseOptions(newlines_in_values=True)
    with csv.open_csv(path, read, parse) as reader:
        _check_columns(reader.schema.names, columns, path)
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    with csv.open_csv(path, read, parse, convert) as reader:
        yield from reader


def _parquet_batches(path: str, columns: list[str], batch_rows: int) -> "Iterator[pa.RecordBatch]":
    from pyarrow import parquet

    # By default pyarrow buffers ahead and keeps the whole file in memory while it iterates.
    with parquet.ParquetFile(path, buffer_size=_BLOCK_BYTES, pre_buffer=False) as file:
        _check_columns(file.schema_arrow.names, columns, path)
        yield from file.iter_batches(batch_rows, columns=columns)


def _check_columns(there: list[str], needed: list[str], path: str) -> None:
    for name in needed:
        if name not in there:
            raise InputError(f"{path}: column {name!r} is missing; there are: {listed(there)}")
        if there.count(name) > 1:
            raise InputError(f"{path}: column {name!r} is there {there.count(name)} times; rename the others")


def _to_pandas(batch: "pa.RecordBatch", text: Collection[str]) -> "pd.DataFrame":
    """Turn columns of numbers written as text into numbers where that works for all of them.

    Text that is not UTF-8 is refused here: pandas would find it much later, and show it.
    """
    import pyarrow as pa
    from pyarrow import compute

    arrays = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
            array = compute.cast(array, pa.large_string())
        array.validate(full=True)
        if pa.types.is_string(array.type) and name not in text:
            # What is no number stays text: the schema parses it value by value, and counts.
            with suppress(pa.ArrowInvalid):
                array = compute.cast(array, pa.float64())
        arrays.append(array)
    return pa.record_batch(arrays, names=batch.schema.names).to_pandas()


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    """Turn a reader's errors into one line of ours."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        # pyarrow quotes the row it stumbled over; a message must not show records.
        detail = re.sub(r"(got \d+): .*", r"\1", " ".join(str(error).split()))[:160]
        raise InputError(f"data file {str(path)!r} cannot be read: {detail}") from None


@contextmanager
def among_rows(path: str | Path, first: int, last: int) -> Iterator[None]:
    """Say in which rows of which file, counted from 1, an InputError arose."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}, rows {first} to {last}: {error}") from None


@contextmanager
def about(path: Any) -> Iterator[None]:
    """Start the message of an InputError with the file it is about."""
    try:
        yield
    except InputError as error:
        name = path if isinstance(path, str | Path) else ", ".join(str(part) for part in path)
        message = str(error)
        raise InputError(message if str(name) in message else f"{name}: {message}") from None
