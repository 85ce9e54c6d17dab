"""Parquet files batch by batch, if what they say that they unpack to is no more than it may be."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchdpcate.data._arrays import check_columns
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData, ParquetFile

_BLOCK_BYTES = 1 << 20
_MOST_ROWS_A_BYTE = 1000  # records of people differ from each other, and need more than that
_NO_LENGTHS = "DELTA_BYTE_ARRAY"


def parquet_batches(path: str, columns: list[str], batch_rows: int, most_bytes: int) -> "Iterator[pa.RecordBatch]":
    """Yield the columns of a file; text stays in dictionaries, so that a word is in memory once.

    Args:
        path: The file, as Arrow takes it.
        columns: The columns to read.
        batch_rows: Rows of a batch, at most.
        most_bytes: Unpacked size of the columns in one row group, at most.

    Raises:
        InputError: A column that is missing or neither numbers nor words, or a file that unpacks to more than it may.
    """
    from pyarrow import parquet

    # By default pyarrow buffers ahead and keeps all of the file in memory while it iterates.
    settings = {"buffer_size": _BLOCK_BYTES, "pre_buffer": False}
    with parquet.ParquetFile(path, **settings) as file:
        check_columns(file.schema_arrow.names, columns, path)
        _check_types(file.schema_arrow, columns, path)
        metadata = file.metadata
        leaves = [i for i, name in _leaves(file) if name in columns]
        text = [
            name for i, name in _leaves(file) if i in leaves and file.schema.column(i).physical_type == "BYTE_ARRAY"
        ]
        text = [name for name in text if not _is_decimal(file.schema_arrow.field(name).type)]
        _check_sizes(metadata, leaves, text, path, most_bytes)
    with parquet.ParquetFile(path, metadata=metadata, read_dictionary=text, **settings) as file:
        yield from file.iter_batches(batch_rows, columns=columns)


def stated_rows(path: str) -> int:
    """Return the number of rows that a file says it has."""
    from pyarrow import parquet

    return parquet.read_metadata(path).num_rows


def _leaves(file: "ParquetFile") -> list[tuple[int, str]]:
    return [(i, file.schema.column(i).path) for i in range(len(file.schema))]


def _check_types(schema: "pa.Schema", columns: list[str], path: str) -> None:
    for name in columns:
        kind = _kind(schema.field(name).type)
        if kind is not None:
            raise InputError(f"{path}: column {name!r} holds {kind}, not numbers or words; write them as numbers")


def _kind(type_: "pa.DataType") -> str | None:
    """Return what a column holds if it is neither numbers nor words."""
    import pyarrow as pa

    kinds = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return "values of a type of its own"
    if kinds.is_dictionary(type_):
        return _kind(type_.value_type)
    if kinds.is_temporal(type_):
        return "times"
    if kinds.is_nested(type_):
        return "lists or the like"
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_boolean, kinds.is_null)
    words = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    raw = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)
    return None if any(test(type_) for test in (*numbers, *words, *raw)) else "values of another kind"


def _is_decimal(type_: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_decimal(type_)


def _check_sizes(metadata: "FileMetaData", leaves: list[int], text: list[str], path: str, most_bytes: int) -> None:
    """Refuse what would take more memory, or more time, than a table of its size may."""
    held = os.path.getsize(path.encode())  # Arrow takes UTF-8 whatever the locale's encoding is
    if metadata.num_rows > _MOST_ROWS_A_BYTE * held:
        raise InputError(
            f"{path}: {metadata.num_rows:,} rows in a file of {held:,} bytes: these are no records; "
            "write it without compression and dictionaries if they are"
        )
    for group in range(metadata.num_row_groups):
        chunks = [metadata.row_group(group).column(leaf) for leaf in leaves]
        for chunk in chunks:
            if chunk.path_in_schema in text and _NO_LENGTHS in chunk.encodings:
                raise InputError(
                    f"{path}: column {chunk.path_in_schema!r} is in {_NO_LENGTHS}, which does not state how long its "
                    "words become; write it with a dictionary"
                )
        size = sum(max(chunk.total_uncompressed_size, 0) for chunk in chunks)
        if size > most_bytes:
            raise InputError(
                f"{path}: row group {group} unpacks to {size:,} bytes, more than data.most_bytes = {most_bytes:,}; "
                "raise it (predict: --most-bytes) where memory allows, or write the file with smaller row groups"
            )
