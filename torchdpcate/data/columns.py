"""What the columns of a table hold, by their names and types: no bound, level, count or value of the records."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torchdpcate._text import is_plain
from torchdpcate.data._arrays import MISSING, is_number
from torchdpcate.data._csv import PLAIN, CsvForm, csv_batches, csv_names, setting
from torchdpcate.data._foreign import foreign_schema
from torchdpcate.data._frames import (
    CSV,
    NUMBERS,
    PARQUET,
    TRUTHS,
    WORDS,
    arrow_path,
    check_form,
    check_there,
    column_kind,
    file_kind,
    readable,
)
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

OTHER, TWICE, ENCODED = "neither numbers nor words", "there more than once", "not in UTF-8"
DATES, IDENTIFIER = "dates", "an identifier by its name"
TO_USE = {
    OTHER: "make a number or a category of it to use it",
    TWICE: "rename all but one to use it",
    ENCODED: "save the file as UTF-8, or give --encoding latin-1, to use it",
    DATES: "name it by --covariates to use it",
    IDENTIFIER: "it says who or where a person is; name it by --covariates if it is none",
}
"""Kinds of columns that are no covariates, and what makes one of them."""
_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}(?:[ T]\d.*)?")
_WORDS_OF_NAMES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_DATE_WORDS = {"date", "datetime", "timestamp", "dob", "birthdate", "birthday", "datum"}
_IDENTIFIERS = {"id", "ids", "pid", "uid", "uuid", "guid", "mrn", "ssn", "identifier", "email", "surname", "phone"}
_WHOSE = ("patient", "person", "subject", "participant", "record", "study", "case", "user", "hadm", "stay", "student")
_WHERE = ("school", "hospital", "clinic", "centre", "center", "site", "cluster", "household", "family")


def table_columns(path: str | Path, form: CsvForm = PLAIN) -> dict[str, str]:
    """Return the columns of a table and what each holds, by its type.

    A parquet file states its types, and so do files of Stata, SPSS and SAS. Those of a csv file are by majority of the
    values at its beginning, so that no record decides alone.

    Args:
        path: The table.
        form: How it is written, if it is csv.

    Raises:
        InputError: No such file, or names of columns that may be a record's (a number, an empty one that is not the
            first), or one that cannot be shown.
    """
    check_there(path)
    kind = file_kind(path)
    check_form([path], form)
    with readable(path, form):
        return _of_csv(path, form) if kind == CSV else _of_schema(path, kind)


def left_out(name: str, kind: str) -> str:
    """Return why a column is no covariate unless it is named as one; empty if it may be one.

    Example:
        >>> left_out("patientId", "numbers"), left_out("covid", "numbers"), left_out("admission_date", "words")
        ('an identifier by its name', '', 'dates')
    """
    if kind in TO_USE:
        return kind
    words = [word.lower() for word in _WORDS_OF_NAMES.findall(name)]
    if _IDENTIFIERS & set(words) or any(
        word in {f"{whose}id", f"{whose}no"} for word in words for whose in (*_WHOSE, *_WHERE)
    ):
        return IDENTIFIER
    return DATES if _DATE_WORDS & set(words) else ""


def _of_csv(path: str | Path, form: CsvForm) -> dict[str, str]:
    names = csv_names(arrow_path(path), form)
    if len(names) == 1:  # no table; its name may be a line of another kind of file
        raise InputError(
            f"data file {str(path)!r}: line 1 has no {form.separator}; write a csv with {form.separator}s between its "
            f"columns, or give {setting('separator', 'NAME')}"
        )
    _check_names(path, names, list(map(_like_a_number, names)))
    columns = [name for name in names if name and names.count(name) == 1]
    batches = csv_batches(arrow_path(path), columns, raw=True, form=form)
    first = next(islice(batches, 1), None) if columns else None
    if first is not None:
        _check_header(path, first)
    found = {} if first is None else {name: _by_majority(first.column(name), form) for name in columns}
    return {name: TWICE if names.count(name) > 1 else found.get(name, NUMBERS) for name in names}


def _of_schema(path: str | Path, kind: str) -> dict[str, str]:
    schema = _schema_of(path, kind)
    numbers = list(map(_like_a_number, schema.names))
    if schema.names == [str(place) for place in range(len(numbers))]:
        numbers = [False] * len(numbers)  # pandas' own names
    _check_names(path, schema.names, numbers)
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    return {field.name: TWICE if field.name in twice else _by_type(field.type) for field in schema}


def _schema_of(path: str | Path, kind: str) -> "pa.Schema":
    from pyarrow import parquet

    return parquet.read_schema(arrow_path(path)) if kind == PARQUET else foreign_schema(str(path), kind)


def _by_type(type_: "pa.DataType") -> str:
    from pyarrow import types

    if types.is_dictionary(type_):
        return WORDS
    if types.is_date(type_) or types.is_timestamp(type_):
        return DATES
    kind = column_kind(type_)
    return kind if kind in (NUMBERS, TRUTHS, WORDS) else OTHER


def _by_majority(column: "pa.Array", form: CsvForm) -> str:
    """Return what most values are: one record with a word among numbers does not make words of them."""
    try:
        values = [value.decode("utf-8").strip() for value in column.to_pylist() if value is not None]
    except UnicodeError:
        return ENCODED
    known = [value for value in values if value.lower() not in MISSING]
    if 2 * sum(bool(_DATE.fullmatch(value)) for value in known) > len(known):
        return DATES
    numbers = sum(_is_number(value) or form.is_number(value) for value in known)
    return WORDS if 2 * numbers < len(known) else NUMBERS


def _is_number(text: str) -> bool:
    return is_number(text) and text.strip().lower() not in MISSING


def _like_a_number(name: str) -> bool:
    """Return whether a name is a number, or a date, a time or a share: digits, and no letter."""
    letters = any(map(str.isalpha, name))
    return _is_number(name) or (not letters and any(map(str.isdigit, name)))


def _check_header(path: str | Path, first: "pa.RecordBatch") -> None:
    """Refuse names of which most are among the values of their columns, as of a table that begins with a record."""
    from pyarrow import compute

    again = [
        compute.any(compute.equal(column, name.encode())).as_py() or False
        for name, column in zip(first.schema.names, first.columns, strict=True)
    ]
    if 2 * sum(again) > len(again):
        raise InputError(
            f"data file {str(path)!r}: {sum(again)} of {len(again)} names in line 1 are values of their columns "
            "too; give the table a header, or where it is there again, delete these rows"
        )


def _check_names(path: str | Path, names: Sequence[str], numbers: Sequence[bool]) -> None:
    """Refuse names that may be a record's: they are counted from 1, and not shown."""
    wrong = {
        "is a number": numbers,
        "has characters that cannot be shown": [not is_plain(name) for name in names],
        "is empty": [not name and (place > 0 or not any(names)) for place, name in enumerate(names)],
    }
    for why, found in wrong.items():
        if any(found):
            raise InputError(
                f"data file {str(path)!r}: name {found.index(True) + 1} of its columns {why}; give the table a header"
            )
