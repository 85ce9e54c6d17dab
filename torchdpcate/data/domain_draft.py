"""Drafts of domain files: each column by name and type, and ``???`` for each public fact."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torchdpcate._files import write_text
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
from torchdpcate.data.facts import OPEN
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


MANY = 20
"""Covariates of a draft; of more columns, those that nobody has chosen are remarks in it."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]*(?: [\w.-]+)*")
_HEAD = """\
# Draft of a domain file: the table's columns by name and type, and nothing else of its records.
#
# Replace every ??? by a public fact, known without these records (a codebook, a protocol, a unit, a law), and say
# where it comes from. A bound, level or share that is read off the records is a leak that no guarantee covers.
# Delete what is no covariate, and whatever the treatment may have changed.
"""
_OF_COVARIATES = (
    "# what an entry may have besides:",
    "#   categories: [1, 2, 3]   in the place of low and high, of a number that is a code",
    "#   typical: [ , ]   where nine of ten values lie, if the range is much wider",
    "#   scale: log   of values over decades",
    "#   kind: date   of dates, with low and high in the place of categories",
    "#   missing: indicator   where values may be missing",
)
_OF_OUTCOMES = (
    "# better: lower   # or higher: which outcomes are good, as treatment rules need to know",
    "# unit: points   # as readers are to see it, here and of covariates that are numbers",
    "# sd: 0.5   # its standard deviation as known from elsewhere, by which plans judge their noise",
    "# missing: drop   # where it may be missing; of the treatment too",
)


_OF_DESIGN = """\
# propensity: 0.5   # of a trial alone: the share that its design treats
# treated: 0.05   # of anything else, where few or most are treated: their public share, such as that of another year
# codes: [NA, .]   # what else means that a value is missing, in every column or in one's entry
# weights: {name: w, high: 2}   # a column of weights with its public bound, as of a survey
overlap: ???   # neither arm is less likely than this, whatever the covariates: such as 0.05
origin: ???   # where the overlap comes from, and every bound above that has no origin of its own
"""


def _entries(kind: str) -> dict[str, str]:
    """Return the entries of a covariate, by what its column holds; the open ones as ``???``."""
    if kind == TRUTHS:
        return {"categories": "[0, 1]"}
    if kind == WORDS:
        return {"categories": OPEN}
    return ({"kind": "date"} if kind == DATES else {}) | {"low": OPEN, "high": OPEN}


@dataclass(frozen=True)
class Draft:
    """A domain file as far as it is known.

    Args:
        kinds: The table's columns, and what each holds.
        treatment: The treatment's column, or None.
        outcome: The outcome's column, or None.
        covariates: Columns that were chosen, or None where nobody chose.
    """

    kinds: Mapping[str, str]
    treatment: str | None = None
    outcome: str | None = None
    covariates: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check_roles(self.kinds, self.treatment, self.outcome, self.covariates or ())

    @property
    def candidates(self) -> list[str]:
        """Columns that may be covariates."""
        rest = [name for name in self.kinds if name and name not in (self.treatment, self.outcome)]
        return [name for name in rest if not left_out(name, self.kinds[name])]

    def text(self) -> str:
        """Return the text of a yaml file that ``TableSchema.from_yaml`` refuses until each ``???`` is replaced.

        Raises:
            InputError: No column can be a covariate.
        """
        chosen = self.candidates if self.covariates is None else list(self.covariates)
        if not chosen:
            raise InputError(
                "the table has no column that can be a covariate, and one is needed; where there is none, as for an "
                "average effect of a trial, add a column of zeros, with low: 0 and high: 1"
            )
        return "".join([_HEAD, *self._treatment(), *self._outcome(), *self._covariates(chosen), _OF_DESIGN])

    def _treatment(self) -> Iterator[str]:
        if self.treatment is None:
            yield f"treatment: {OPEN}   # a column of 0 and 1, or {{name: arm, categories: [placebo, drug]}}\n"
            return
        name = quoted(self.treatment)
        if self.kinds[self.treatment] != WORDS:
            yield f"treatment: {name}   # 0 and 1\n"
            return
        yield f"treatment:\n  name: {name}\n"
        yield f"  categories: {OPEN}   # in the order of 0 and 1: [placebo, drug]\n"

    def _outcome(self) -> Iterator[str]:
        yield f"outcome:\n  name: {OPEN if self.outcome is None else quoted(self.outcome)}\n"
        yield f"  low: {OPEN}\n  high: {OPEN}   # or categories: [0, 1] in the place of low and high\n"
        yield f"  origin: {OPEN}\n"
        yield from (f"  {line}\n" for line in _OF_OUTCOMES)

    def _covariates(self, chosen: Sequence[str]) -> Iterator[str]:
        yield "covariates:\n"
        yield from (f"  {line}\n" for line in _OF_COVARIATES)
        many = self.covariates is None and len(chosen) > MANY
        if many:
            yield f"  # {len(chosen)} columns may be covariates. Each adds noise: take the # from a few that matter,\n"
            yield "  # or draft these alone by --covariates A,B,C\n"
        for name in chosen:
            entries = _entries(self.kinds[name])
            if many:
                yield f"  # {quoted(name)}: {{{', '.join(f'{key}: {value}' for key, value in entries.items())}}}\n"
            else:
                yield f"  {quoted(name)}:\n"
                yield from (f"    {key}: {value}\n" for key, value in entries.items())
        yield from self._left_out(chosen)

    def _left_out(self, chosen: Sequence[str]) -> Iterator[str]:
        for name, kind in self.kinds.items():
            why = left_out(name, kind)
            if not name:
                yield "  # left out: a column without a name, such as the numbers of rows\n"
            elif why and name not in (self.treatment, self.outcome, *chosen):
                yield f"  # left out: {quoted(name)}, {why}; {TO_USE[why]}\n"


def draft_domain(
    path: str | Path,
    treatment: str | None = None,
    outcome: str | None = None,
    covariates: Sequence[str] | None = None,
    form: CsvForm = PLAIN,
) -> str:
    """Return the draft of a domain file for a table: its columns by name and type, ``???`` for each public fact.

    No bound, level, count or value of the records is in it; see ``table_columns`` for how types are found.

    Args:
        path: The table.
        treatment: Name of the treatment's column; None leaves it open.
        outcome: Name of the outcome's column; None leaves it open.
        covariates: Columns to draft; None takes all that may be covariates, as remarks where they are many.
        form: How the table is written, if it is csv.

    Returns:
        Text of a yaml file that ``TableSchema.from_yaml`` refuses until each ``???`` is replaced.

    Raises:
        InputError: No such file, names of columns that may be a record's (a number, an
            empty one that is not the first), or one that cannot be shown; a treatment, an outcome or a covariate that
            is no column, or there twice.
    """
    return Draft(table_columns(path, form), treatment, outcome, covariates).text()


def write_draft(draft: str, path: str | Path) -> Path:
    """Write a draft to a file that is not there yet, whole or not at all.

    Raises:
        InputError: It is there, with what somebody filled in, or cannot be written.
    """
    path = check_new(path)
    write_text(path, draft)
    return path


def check_new(path: str | Path) -> Path:
    """Return the path of a file that is not there yet, in a folder that is.

    Raises:
        InputError: It is there, or its folder is not.
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"output {str(path)!r} exists already, and may be filled in; choose another name or remove it")
    if not path.parent.is_dir():
        raise InputError(f"output {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    return path


def quoted(name: str) -> str:
    """Return a name as yaml reads it back.

    Example:
        >>> quoted("age"), quoted("no"), quoted("a: b")
        ('age', '"no"', '"a: b"')
    """
    import yaml

    if _PLAIN_NAME.fullmatch(name) and yaml.safe_load(name) == name:
        return name
    return json.dumps(name, ensure_ascii=False)


def _check_roles(
    kinds: Mapping[str, str], treatment: str | None, outcome: str | None, covariates: Sequence[str]
) -> None:
    for what, name in (("treatment", treatment), ("outcome", outcome), *(("covariates", name) for name in covariates)):
        if name is not None and name not in kinds:
            # of a file without a header, what is there would be a record's
            similar = [there for there in kinds if there.strip().casefold() == name.strip().casefold()]
            hint = f"{similar[0]!r} is there" if similar else "give a name in line 1 of the table"
            raise InputError(f"{what} = {name}: is no column of the table; {hint}")
        unread = (TWICE, ENCODED, OTHER) if what == "covariates" else (TWICE, ENCODED)
        if name is not None and kinds[name] in unread:
            raise InputError(f"{what} = {name}: the column is {kinds[name]}; {TO_USE[kinds[name]]}")
        if what == "covariates" and name in (treatment, outcome):
            raise InputError(f"covariates = {name}: is the treatment or the outcome; leave it out")
    if treatment is not None and treatment == outcome:
        raise InputError(f"treatment = outcome = {treatment}: give each a column of its own")
    if len(set(covariates)) < len(covariates):
        raise InputError("covariates: names a column twice; give each once")


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
