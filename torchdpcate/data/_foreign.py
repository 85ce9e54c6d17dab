"""Files of Stata, SPSS and SAS, batch by batch.

pandas reads those of Stata and SAS's own; pyreadstat those of SPSS and SAS's export files, whose zeros pandas reads as
5.4e-79 (version 3.1.1).
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchdpcate.data._arrays import check_columns
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

STATA, SPSS, SAS, EXPORT = "Stata", "SPSS", "SAS", "SAS's export"
ENDINGS = {".dta": STATA, ".sav": SPSS, ".zsav": SPSS, ".sas7bdat": SAS, ".xpt": EXPORT}
"""Programs that write files, by the ends of the files' names."""


def foreign_schema(path: str, program: str) -> "pa.Schema":
    """Return names and types of a file's columns; one with value labels holds words.

    Args:
        path: The file.
        program: One of the values of ``ENDINGS``.

    Raises:
        InputError: The file is broken or of another kind, or pyreadstat, which it needs, is not installed.
    """
    import pyarrow as pa

    with _reported(path, program):
        types = (
            _stated(path, program)
            if program in (SPSS, EXPORT)
            else _of_frame(next(_chunks(path, program, None, 1, True)))
        )
    return pa.schema([pa.field(name, type_) for name, type_ in types.items()])


def foreign_batches(
    path: str, program: str, columns: list[str], text: Collection[str], batch_rows: int
) -> "Iterator[pa.RecordBatch]":
    """Yield the columns of a file; values with labels by their labels where words are wanted, else as numbers.

    Args:
        path: The file.
        program: One of the values of ``ENDINGS``.
        columns: The columns to read; no other is kept.
        text: Those among them that hold words.
        batch_rows: Rows of a batch, at most.

    Raises:
        InputError: A column is missing, or as ``foreign_schema``.
    """
    import pyarrow as pa

    check_columns(foreign_schema(path, program).names, columns, path)
    words = [name for name in columns if name in text]
    with _reported(path, program):
        labelled = _chunks(path, program, words, batch_rows, True) if words else None
        for frame in _chunks(path, program, columns, batch_rows, False):
            if labelled is not None:
                frame = frame.assign(**_spelled(next(labelled)))
            yield pa.RecordBatch.from_pandas(frame[columns], preserve_index=False)


def _spelled(frame: "pd.DataFrame") -> "dict[str, Any]":
    """Return columns as words: numbers without a label by their digits, empty words as missing ones; dates stay."""

    def spelled(value: Any) -> Any:
        word = value.decode("utf-8") if isinstance(value, bytes) else value
        return word or None if isinstance(word, str) else word if hasattr(word, "year") else f"{word:.17g}"

    return {name: frame[name].astype(object).map(spelled, na_action="ignore") for name in frame.columns}


def _chunks(path: str, program: str, columns: list[str] | None, rows: int, labels: bool) -> "Iterator[pd.DataFrame]":
    """Yield frames of a file; columns with value labels are their labels where ``labels`` says so."""
    import pandas as pd

    if program in (SPSS, EXPORT):
        reader, read = _pyreadstat(program)
        how: dict[str, Any] = {} if columns is None else {"usecols": columns}
        if program == SPSS:  # export files have no labels
            how |= {"apply_value_formats": labels, "formats_as_category": False}
        yield from (frame for frame, _ in reader.read_file_in_chunks(read, path, chunksize=rows, **how))
    elif program == STATA:
        warnings.simplefilter("ignore", pd.errors.CategoricalConversionWarning)  # of codes that have no label
        with pd.read_stata(path, chunksize=rows, convert_categoricals=labels, columns=columns) as frames:
            yield from frames
    else:
        with pd.read_sas(path, chunksize=rows, encoding="infer") as frames:
            for frame in frames:
                yield frame if columns is None else frame[columns]


def _stated(path: str, program: str) -> "Mapping[str, pa.DataType]":
    import pyarrow as pa

    _, read = _pyreadstat(program)
    _, meta = read(path, metadataonly=True)

    def type_of(name: str) -> "pa.DataType":
        form = str(meta.original_variable_types.get(name) or "").upper()
        if meta.readstat_variable_types[name] == "string" or name in meta.variable_value_labels:
            return pa.string()
        return pa.timestamp("us") if "DATE" in form or "TIME" in form else pa.float64()

    return {name: type_of(name) for name in meta.column_names}


def _of_frame(frame: "pd.DataFrame") -> "Mapping[str, pa.DataType]":
    import pandas as pd
    import pyarrow as pa

    kinds = pd.api.types

    def type_of(column: "pd.Series") -> "pa.DataType":
        if kinds.is_datetime64_any_dtype(column):
            return pa.timestamp("us")
        return pa.float64() if kinds.is_numeric_dtype(column) else pa.string()

    return {str(name): type_of(frame[name]) for name in frame.columns}


def _pyreadstat(program: str) -> tuple[Any, Any]:
    """Return the package, and its reader of a program's files."""
    try:
        import pyreadstat
    except ImportError:
        raise InputError(
            f"files of {program} are read by pyreadstat, which is not installed; pip install pyreadstat"
        ) from None
    return pyreadstat, pyreadstat.read_sav if program == SPSS else pyreadstat.read_xport


@contextmanager
def _reported(path: str, program: str) -> Iterator[None]:
    """Say in one line that a file cannot be read, whatever its reader raises: its words may show a cell."""
    try:
        yield
    except StopIteration:
        raise InputError(f"data file {path!r} holds no rows; bring records") from None
    except (InputError, GeneratorExit):
        raise
    except Exception as error:
        labels = "; its value labels are not unique" if "Value labels" in str(error) else ""
        raise InputError(
            f"data file {path!r} cannot be read as a file of {program} ({type(error).__name__}){labels}; write it "
            "anew, or as csv or parquet"
        ) from None
