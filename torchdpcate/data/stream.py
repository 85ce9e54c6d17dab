"""Effects of a table of any length, row by row, in constant memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchdpcate._files import atomic_path
from torchdpcate.data._frames import MOST_BYTES, among_rows, arrow_path, file_kind, iter_frames
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError


def stream_effects(
    input: str | Path,
    output: str | Path,
    schema: TableSchema,
    effect_fn: Callable[[Tensor], Tensor],
    column: str = "effect",
    batch_rows: int = 65536,
    on_progress: Callable[[int], object] | None = None,
    most_bytes: int = MOST_BYTES,
) -> int:
    """Read covariates from a file, and write one answer a row to another, batch by batch.

    Args:
        input: csv, csv.gz or parquet with the schema's covariate columns; no other is read.
        output: csv, csv.gz or parquet with the one column ``column``, rows in the input's order. It is
            written under a temporary name and renamed when complete; on any error nothing is left.
        schema: Public facts of the covariates, with what becomes of those outside their bounds.
        effect_fn: Encoded covariates, float64 [B, q], to answers [B].
        column: Name of the column written.
        batch_rows: Rows a batch, at most; memory grows with it and not with the file.
        on_progress: Called after each batch with the number of rows done.
        most_bytes: What a row group of a parquet file may unpack to.

    Returns:
        The number of rows written.

    Raises:
        InputError: Missing file or column, values missing, not numeric or outside the domain (which
            column, how many, among which rows), or an output that cannot be written.
    """
    if batch_rows < 1:
        raise InputError(f"batch_rows is {batch_rows}; give 1 or more")
    done = 0
    with _whole_or_nothing(Path(output), column) as write:
        for frame in iter_frames(input, schema.columns, schema.text_columns, batch_rows, most_bytes):
            with among_rows(input, done + 1, done + len(frame)):
                x = schema.within(schema.encode(frame), "query")
            write(effect_fn(x))
            done += len(frame)
            if on_progress is not None:
                on_progress(done)
    return done


class _Writer(Protocol):
    def write_batch(self, batch: Any) -> None: ...

    def close(self) -> None: ...


@contextmanager
def _whole_or_nothing(output: Path, column: str) -> Iterator[Callable[[Tensor], None]]:
    """Open a writer on a temporary file; rename it if all went well, remove it if not."""
    import pyarrow as pa

    kind = file_kind(output, "output")
    if not os.path.isdir(output.parent):
        raise InputError(f"output {str(output)!r}: there is no folder {str(output.parent)!r}; make it first")
    writer: _Writer | None = None
    try:
        with atomic_path(output) as temporary:

            def write(answers: Tensor) -> None:
                nonlocal writer
                array = pa.array(answers.detach().cpu().numpy())
                schema = pa.schema([(column, array.type)])
                writer = writer or _open(arrow_path(temporary, "output"), kind, schema)
                writer.write_batch(pa.record_batch([array], schema=schema))

            yield write
            if writer is None:
                write(torch.empty(0, dtype=torch.float64))
            assert writer is not None
            writer.close()
    except OSError as error:
        raise InputError(f"output {str(output)!r} cannot be written: {error.strerror or error}") from None


def _open(path: str, kind: str, schema: Any) -> _Writer:
    from pyarrow import parquet

    return parquet.ParquetWriter(path, schema) if kind == "parquet" else _CsvWriter(path, schema)


class _CsvWriter:
    """A csv with a plain header, compressed if its name ends so."""

    def __init__(self, path: str, schema: Any) -> None:
        import pyarrow as pa
        from pyarrow import csv

        self._file = pa.output_stream(path)
        self._file.write((",".join(schema.names) + "\n").encode())
        self._writer = csv.CSVWriter(self._file, schema, write_options=csv.WriteOptions(include_header=False))

    def write_batch(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._file.close()
