"""Files of tables to pandas frames, batch by batch, reading only the columns named."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate._text import plain
from torchdpcate.data._arrays import check_columns, listed
from torchdpcate.data._csv import BLOCK_BYTES, PLAIN, CsvForm, csv_batches, csv_names, read_numbers, setting
from torchdpcate.data._foreign import ENDINGS, foreign_batches, foreign_schema
from torchdpcate.data.facts import check_integer
from torchdpcate.data.persons import person_names
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData, ParquetFile

_MOST_ROWS_A_BYTE = 1000  # records of people differ from each other, and need more than that
_NO_LENGTHS = "DELTA_BYTE_ARRAY"
NUMBERS, TRUTHS, WORDS, RAW_WORDS, NOTHING = "numbers", "truth values", "words", "words in bytes", "nothing"
DATES = "dates"
"""What a column may hold, by its type."""
CSV, PARQUET = "csv", "parquet"
_ENDINGS = {".csv": CSV, ".csv.gz": CSV, ".parquet": PARQUET, ".pq": PARQUET}
_LONGEST = 1024  # bytes of a number or of a category
PERSON = "\0person"
"""Column of a frame with the names of persons: no column of a domain has a name that cannot be shown."""
MOST_BYTES = 1 << 30
"""What a table may take that is read at once, at eight bytes a value, and what a row group may unpack to."""


def parquet_batches(
    path: str, columns: list[str], batch_rows: int, most_bytes: int, groups: range | None = None
) -> "Iterator[pa.RecordBatch]":
    """Yield the columns of a file; text stays in dictionaries, so that a word is in memory once.

    Args:
        path: The file, as Arrow takes it.
        columns: The columns to read.
        batch_rows: Rows of a batch, at most.
        most_bytes: Unpacked size of the columns in one row group, at most.
        groups: Row groups to read; None reads all.

    Raises:
        InputError: A column that is missing or neither numbers nor words, or a file that unpacks to more than it may.
    """
    from pyarrow import parquet

    # By default pyarrow buffers ahead and keeps all of the file in memory while it iterates.
    settings = {"buffer_size": BLOCK_BYTES, "pre_buffer": False}
    with parquet.ParquetFile(path, **settings) as file:
        check_columns(file.schema_arrow.names, columns, path)
        _check_types(file.schema_arrow, columns, path)
        metadata = file.metadata
        leaves = [i for i, name in _leaves(file) if name in columns]
        kinds = {name: column_kind(file.schema_arrow.field(name).type) for name in columns}
        text = [
            name
            for i, name in _leaves(file)
            if i in leaves and file.schema.column(i).physical_type == "BYTE_ARRAY" and kinds[name] != NUMBERS
        ]
        _check_sizes(metadata, leaves, text, path, most_bytes)
    with parquet.ParquetFile(path, metadata=metadata, read_dictionary=text, **settings) as file:
        yield from file.iter_batches(batch_rows, row_groups=None if groups is None else list(groups), columns=columns)


def _leaves(file: "ParquetFile") -> list[tuple[int, str]]:
    return [(i, file.schema.column(i).path) for i in range(len(file.schema))]


def _check_types(schema: "pa.Schema", columns: list[str], path: str) -> None:
    for name in columns:
        kind = column_kind(schema.field(name).type)
        if kind not in (NUMBERS, TRUTHS, WORDS, RAW_WORDS, DATES, NOTHING):
            raise InputError(f"{path}: column {name!r} holds {kind}, not numbers or words; write them as numbers")


def column_kind(type_: "pa.DataType") -> str:
    """Return what a column of this Arrow type holds: of a dictionary what its values are."""
    from pyarrow import BaseExtensionType, types

    if isinstance(type_, BaseExtensionType):
        return "values of a type of its own"
    if types.is_dictionary(type_):
        return column_kind(type_.value_type)
    kinds = {
        TRUTHS: (types.is_boolean,),
        NUMBERS: (types.is_integer, types.is_floating, types.is_decimal),
        WORDS: (types.is_string, types.is_large_string, types.is_string_view),
        RAW_WORDS: (types.is_binary, types.is_large_binary, types.is_binary_view),
        NOTHING: (types.is_null,),
        DATES: (types.is_date, types.is_timestamp),
        "times": (types.is_temporal,),
        "lists or the like": (types.is_nested,),
    }
    return next((kind for kind, tests in kinds.items() if any(test(type_) for test in tests)), "values of another kind")


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


def file_kind(path: str | Path, what: str = "data file", written: bool = False) -> str:
    """Return ``"csv"``, ``"parquet"`` or the program whose file it is, by the file's name.

    Args:
        path: The file.
        what: What it is, for messages.
        written: Whether it is to be written: then it is csv or parquet.

    Raises:
        InputError: The name ends otherwise.
    """
    known = _ENDINGS if written else _ENDINGS | ENDINGS
    kind = next((kind for ending, kind in known.items() if str(path).lower().endswith(ending)), None)
    if kind is None:
        also = "" if written else f", or of {', '.join(dict.fromkeys(ENDINGS.values()))}"
        raise InputError(f"{what} {str(path)!r} is neither csv nor parquet{also}; use {', '.join(known)}")
    return kind


def files_of(paths: Any) -> list[str | Path]:
    """Return files: those of a list, one by its path, or the parquet files of a folder by their names.

    Raises:
        InputError: A folder has none.
    """
    if not isinstance(paths, str | Path):
        return list(paths)
    if not os.path.isdir(paths):
        return [paths]
    found: list[str | Path] = sorted(Path(paths).glob(f"*.{PARQUET}"))
    if not found:
        raise InputError(f"data file {str(paths)!r} is a folder without parquet files; give files, or their folder")
    return found


def check_there(path: str | Path) -> None:
    """Refuse a file that is not there.

    Raises:
        InputError: Says so.
    """
    if not os.path.isfile(path):
        remedy = "an address is not read: download the file first" if "://" in str(path) else "check the path"
        raise InputError(f"data file {str(path)!r} does not exist; {remedy}")


def arrow_path(path: str | Path, what: str = "data file") -> str:
    """Return the path as Arrow takes it: its bytes read as UTF-8, whatever the locale makes of them.

    Raises:
        InputError: The name is not UTF-8.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise InputError(f"{what} {str(path)!r}: its name is not UTF-8; rename it") from None


def read_frame(
    paths: Any,
    columns: Sequence[str],
    text: Collection[str] = (),
    most_bytes: int = MOST_BYTES,
    persons: Sequence[str] = (),
    form: CsvForm = PLAIN,
) -> "pd.DataFrame":
    """Return the columns of one file, or of several laid end to end, as one frame.

    Args:
        paths: A path, or a list of paths.
        columns: The columns to read; no other is.
        text: Those among them that hold words: there ``NA`` is a word, not a missing value.
        most_bytes: Size of the table at eight bytes a value, at most.
        persons: Those among them that name a record's person together: the frame has their name in the column
            ``PERSON``, made batch by batch, before types are brought together.
        form: How csv files are written.

    Raises:
        InputError: A file is missing, empty or broken, lacks a column, or the table is larger than it may be.
    """
    import pandas as pd

    files = files_of(paths)
    check_form(files, form)
    most_rows, frames, done = check_integer("data.most_bytes", most_bytes) // (8 * len(columns)), [], 0
    for file in files:
        if file_kind(file) == PARQUET and os.path.isfile(file):  # says how many rows it has, before any is read
            _check_rows(file, done + rows_in_metadata(file), most_rows, most_bytes)
        for frame in iter_frames(file, columns, text, most_bytes=most_bytes, form=form):
            done += len(frame)
            _check_rows(file, done, most_rows, most_bytes)
            if persons and len(frame):
                with about(file):
                    frame = frame.assign(**{PERSON: person_names(frame[list(persons)])})
            frames += [frame] if len(frame) else []
    if not frames:
        raise InputError(f"data file {listed(files)} holds no rows; bring records")
    return pd.concat(frames, ignore_index=True)


def groups_in_metadata(path: str | Path) -> list[int]:
    """Return the number of rows that a parquet file says each of its row groups has; nothing else of it is read.

    Raises:
        InputError: It is missing or broken.
    """
    from pyarrow import parquet

    check_there(path)
    with readable(path):
        metadata = parquet.read_metadata(arrow_path(path))
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def rows_in_metadata(paths: Any) -> int:
    """Return the number of rows that parquet files say they have; nothing else of them is read.

    Args:
        paths: A path, or a list of paths.

    Raises:
        InputError: A file of another kind, or one that is missing or broken.
    """
    files = files_of(paths)
    for path in files:
        if file_kind(path) != PARQUET:
            raise InputError(f"data file {str(path)!r} is no parquet file, which counts its rows; give n=NUMBER")
    return sum(sum(groups_in_metadata(path)) for path in files)


def _check_rows(path: str | Path, rows: int, most_rows: int, most_bytes: int) -> None:
    if rows > most_rows:
        raise InputError(
            f"data file {str(path)!r}: more than {most_rows:,} rows, all that data.most_bytes = {most_bytes:,} allows "
            "at eight bytes a value; raise it where memory allows, or use data.stream=true"
        )


def iter_frames(
    path: str | Path,
    columns: Sequence[str],
    text: Collection[str] = (),
    batch_rows: int = 65536,
    most_bytes: int = MOST_BYTES,
    form: CsvForm = PLAIN,
    groups: range | None = None,
) -> Iterator["pd.DataFrame"]:
    """Yield the columns of a file in frames of at most ``batch_rows`` rows, in constant memory.

    Args:
        path: The file.
        columns: The columns to read; no other is.
        text: Those among them that hold words.
        batch_rows: Rows of a frame, at most.
        most_bytes: What a row group of a parquet file may unpack to; csv is read a MiB at a time.
        form: How a csv file is written.
        groups: Row groups to read of a parquet file; None reads all.

    Raises:
        InputError: As ``read_frame``.
    """
    kind = file_kind(path)
    check_there(path)
    check_integer("data.most_bytes", most_bytes)
    with readable(path, form):
        if kind == CSV:
            batches = csv_batches(arrow_path(path), list(columns), form=form)
        elif kind == PARQUET:
            batches = parquet_batches(
                arrow_path(path), list(columns), batch_rows, check_integer("data.most_bytes", most_bytes), groups
            )
        else:
            batches = _of_program(path, kind, list(columns), text, batch_rows)
        for batch in batches:
            for start in range(0, batch.num_rows, batch_rows):
                yield _to_pandas(batch.slice(start, batch_rows), text, form if kind == CSV else PLAIN)


def _of_program(
    path: str | Path, program: str, columns: list[str], text: Collection[str], batch_rows: int
) -> "Iterator[pa.RecordBatch]":
    for batch in foreign_batches(str(path), program, columns, text, batch_rows):
        _check_types(batch.schema, columns, str(path))
        yield batch


def check_form(files: Sequence[str | Path], form: CsvForm) -> None:
    """Refuse settings of csv files where there is none."""
    if form.changed and CSV not in map(file_kind, files):
        raise InputError(
            f"data.{form.changed[0]} = {getattr(form, form.changed[0])}: is of csv files, and {listed(files)} is none; "
            "leave it out"
        )


def column_types(path: str | Path, columns: Sequence[str], form: CsvForm = PLAIN) -> dict[str, "pa.DataType"]:
    """Return the Arrow types in which columns of a file can be written again: words of csv, those of other files.

    Args:
        path: The file.
        columns: Their names.
        form: How a csv file is written.

    Raises:
        InputError: A column is missing.
    """
    import pyarrow as pa

    check_form([path], form)
    if not columns:
        return {}
    check_there(path)
    kind = file_kind(path)
    with readable(path, form):
        if kind == CSV:
            check_columns(csv_names(arrow_path(path), form), columns, str(path))
            return dict.fromkeys(columns, pa.large_string())
        schema = schema_of(path, kind)
    check_columns(schema.names, columns, str(path))
    return {name: _written_as(schema.field(name).type) for name in columns}


def schema_of(path: str | Path, kind: str) -> "pa.Schema":
    """Return names and types of the columns of a file that is no csv, of a kind that ``file_kind`` says."""
    from pyarrow import parquet

    return parquet.read_schema(arrow_path(path)) if kind == PARQUET else foreign_schema(str(path), kind)


def _written_as(type_: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        return _written_as(type_.value_type)
    if pa.types.is_decimal(type_):
        return pa.float64()
    return pa.large_string() if _is_words(type_) else type_


def _to_pandas(batch: "pa.RecordBatch", text: Collection[str], form: CsvForm) -> "pd.DataFrame":
    """Turn columns of numbers written as text into numbers where that works for all of them.

    Text that is not UTF-8 is refused here: pandas would find it much later, and show it.
    """
    import pyarrow as pa
    from pyarrow import compute

    arrays, kinds = [], pa.types
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        array.validate(full=True)
        if kinds.is_dictionary(array.type):
            _check_words(array.dictionary, name)
            array = array.dictionary_decode()
        elif _is_words(array.type):
            _check_words(array, name)
        if kinds.is_decimal(array.type):
            array = compute.cast(array, pa.float64())
        elif _is_words(array.type):
            array = compute.cast(array, pa.large_string())
            array.validate(full=True)
            if name not in text:
                # What is no number stays text: the schema parses it value by value, and counts.
                array = read_numbers(array, name, form)
        arrays.append(array)
    return pa.record_batch(arrays, names=batch.schema.names).to_pandas()


def _is_words(type_: "pa.DataType") -> bool:
    return column_kind(type_) in (WORDS, RAW_WORDS)


def _check_words(words: "pa.Array", name: str) -> None:
    """Refuse words that are longer than any number or category: each of them would be copied for every row."""
    from pyarrow import compute

    if _is_words(words.type) and (compute.max(compute.binary_length(words)).as_py() or 0) > _LONGEST:
        raise InputError(f"column {name!r} has a value longer than {_LONGEST:,} bytes; correct these rows")


@contextmanager
def readable(path: str | Path, form: CsvForm = PLAIN) -> Iterator[None]:
    """Turn a reader's errors into one line of ours."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        detail = without_cells(str(error))
        if form.skip_lines and ("skip initial" in detail or "Empty CSV" in detail):
            detail = (
                f"data.skip_lines = {form.skip_lines} passes over all of it; give the number of lines before the header"
            )
        elif "block" in detail:
            detail = f"its first line is empty, or one is longer than {BLOCK_BYTES:,} bytes; leave columns out of it"
        elif isinstance(error, UnicodeError) or "UTF8" in detail:
            known = "UTF-8" if form.encoding == "utf-8" else f"{form.encoding}, as data.encoding says"
            detail = (
                f"text that is read is not {known}; save the file as UTF-8, or give {setting('encoding', 'latin-1')}"
            )
        elif "Expected" in detail:
            detail += (
                f"; put cells with {form.separator}s in quotes; lines before the header are passed over by "
                f"{setting('skip_lines', 'NUMBER')}; delete last rows that are no records"
            )
        raise InputError(f"data file {str(path)!r} cannot be read: {detail}") from None


def without_cells(text: str) -> str:
    """Return what a library says of a file in one line, as far as the row or the value that it quotes."""
    return re.sub(r"(got \d+): .*|'.*|\".*", r"\1", plain(" ".join(text.split())))[:160]


@contextmanager
def about(path: Any) -> Iterator[None]:
    """Start the message of an InputError with the file it is about."""
    try:
        yield
    except InputError as error:
        name = path if isinstance(path, str | Path) else ", ".join(str(part) for part in path)
        message = str(error)
        raise InputError(message if str(name) in message else f"{name}: {message}") from None
