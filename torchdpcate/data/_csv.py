"""Csv files as people have them: their form is declared, a wrong form is refused with the setting that reads it."""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from torchdpcate.data._arrays import check_columns, missing_columns, plural
from torchdpcate.data.facts import check_integer
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES = 1 << 16
BLOCK_BYTES = 1 << 20
"""What is read of a file at a time."""
_SAVE = "save it as comma-separated UTF-8"
_KINDS = {
    b"PK\x03\x04": f"is a workbook (xlsx) or a zip file; {_SAVE}",
    b"\xd0\xcf\x11\xe0": f"is a workbook (xls); {_SAVE}",
    b"PAR1": "is a parquet file; give it a name that ends in .parquet",
    b"\x1f\x8b": "is packed by gzip; give it a name that ends in .csv.gz",
}
_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
_DECIMALS = {"point": ".", "comma": ","}
_THOUSANDS = {"comma": ",", "point": ".", "space": " \u00a0\u202f", "apostrophe": "'\u2019"}
_QUOTED = re.compile(r'"[^"]*"')
_MARK = "\ufeff"
OPTIONS = " (predict, domain:"
"""What of a message names a setting's option."""
_ENCODINGS = "utf-8, latin-1, cp1252 and utf-16 are some"


@dataclass(frozen=True, kw_only=True)
class CsvForm:
    """How a csv file is written: public facts of the program that wrote it, and nothing of the records.

    Args:
        separator: Between columns: ``"comma"``, ``"semicolon"``, ``"tab"`` or ``"bar"``. A first line such as ``sep=;``
            must agree with it, and is passed over.
        decimal: ``"point"`` or ``"comma"``.
        thousands: What groups digits by threes: ``"comma"``, ``"point"``, ``"space"`` or ``"apostrophe"``; None for
            nothing.
        encoding: Of the text, by its name in Python. A mark of UTF-8 (BOM) at the beginning is passed over.
        skip_lines: Lines before the names of the columns, that are passed over.
        skip_after_header: Rows below them that are no records, such as labels or units, and are passed over.

    Raises:
        InputError: A setting that there is not; says which there are.

    Example:
        >>> CsvForm(separator="semicolon", decimal="comma", thousands="point").delimiter
        ';'
        >>> CsvForm(decimal="semicolon")
        Traceback (most recent call last):
        ...
        torchdpcate.errors.InputError: data.decimal = 'semicolon': choose one of point, comma
    """

    separator: str = "comma"
    decimal: str = "point"
    thousands: str | None = None
    encoding: str = "utf-8"
    skip_lines: int = 0
    skip_after_header: int = 0

    def __post_init__(self) -> None:
        for name, known in (("separator", _SEPARATORS), ("decimal", _DECIMALS), ("thousands", _THOUSANDS)):
            given = getattr(self, name)
            if given not in known and not (name == "thousands" and given is None):
                raise InputError(f"data.{name} = {given!r}: choose one of {', '.join(known)}")
        if self.thousands == self.decimal:
            raise InputError(f"data.thousands = {self.thousands}: is the sign of data.decimal too; give each its own")
        check_integer("data.skip_lines", self.skip_lines, 0)
        check_integer("data.skip_after_header", self.skip_after_header, 0)
        try:
            known_as = codecs.lookup(self.encoding).name
            "a".encode(known_as)
        except (LookupError, TypeError, ValueError):  # such as "rot13", which is of text to text
            raise InputError(f"data.encoding = {self.encoding!r}: is no encoding; {_ENCODINGS}") from None
        object.__setattr__(self, "encoding", "utf-8" if known_as == "utf-8-sig" else known_as)

    @classmethod
    def of(cls, source: Any) -> "CsvForm | None":
        """Return the form that entries or attributes of the same names say; None where a source has none of them."""
        given = source if isinstance(source, Mapping) else vars(source)
        said = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        return cls(**said) if said else None

    @property
    def delimiter(self) -> str:
        """The separator's letter."""
        return _SEPARATORS[self.separator]

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the settings that are not the usual ones."""
        usual = asdict(CsvForm())
        return tuple(name for name, value in asdict(self).items() if value != usual[name])

    def is_number(self, text: str) -> bool:
        """Return whether a text is a number that is written so."""
        return re.match(_written(self.decimal, self.thousands), text) is not None


PLAIN = CsvForm()
"""Commas, decimal points and UTF-8."""


def setting(name: str, value: str) -> str:
    """Return how a setting of the form is given, to ``train`` and to commands with options."""
    return f"data.{name}={value}{OPTIONS} --{name.replace('_', '-')} {value})"


def check_start(path: str, form: CsvForm = PLAIN) -> int:
    """Refuse a file by its first bytes and lines; nothing of them is shown.

    Args:
        path: The csv or csv.gz file, as Arrow takes it.
        form: How it is said to be written.

    Returns:
        Number of lines before the names of the columns.

    Raises:
        InputError: Another kind of file, another encoding or separator, or lines before the header.
    """
    start = _first_bytes(path)
    found = next((words for magic, words in _KINDS.items() if start.startswith(magic)), None) or _encoded(start, form)
    if found is None:
        decoder = codecs.getincrementaldecoder(form.encoding)("replace")
        lines = decoder.decode(start).removeprefix(_MARK).splitlines()[form.skip_lines :]
        separator_line = next(iter(lines), "").strip().strip('"')
        own = separator_line[:4].lower() == "sep="
        found = _separated(separator_line[4:] or "\t", form) if own else _fault(lines, form)
    if found is not None:
        raise InputError(f"data file {path!r} cannot be read: it {found}")
    return form.skip_lines + own


def _first_bytes(path: str) -> bytes:
    """Return what the file begins with; nothing of a broken one, which reading it reports."""
    with open(path.encode(), "rb") as file, suppress(EOFError, gzip.BadGzipFile, zlib.error):  # as Arrow: UTF-8
        return (gzip.GzipFile(fileobj=file) if path.lower().endswith(".gz") else file).read(_BYTES)
    return b""


def _encoded(start: bytes, form: CsvForm) -> str | None:
    """Return what contradicts the encoding; None if nothing does."""
    marked = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    usual = "leave data.encoding out, which is then utf-8"
    if form.encoding.startswith(("utf-16", "utf-32")):
        wide = marked or b"\0" in start or not start
        return None if wide else f"is not {form.encoding}, as data.encoding says; {usual}"
    if marked:
        return f"is UTF-16; give {setting('encoding', 'utf-16')}"
    if b"\0" in start:
        return f"holds NUL bytes, as UTF-16 does; give {setting('encoding', 'utf-16-le')} or utf-16-be"
    if form.encoding not in ("utf-8", "ascii") and not start.isascii():
        with suppress(UnicodeError):  # text in another encoding is next to never UTF-8 too
            codecs.getincrementaldecoder("utf-8")().decode(start)
            return f"is UTF-8, and data.encoding says {form.encoding}; {usual}"
    return None


def _separated(letter: str, form: CsvForm) -> str | None:
    """Return what contradicts the separator that a first line ``sep=`` names; None if nothing does."""
    if letter == form.delimiter:
        return None
    name = next((name for name, known in _SEPARATORS.items() if known == letter), None)
    if name is None:
        return f"begins with a line sep= of a letter that is not read; {_SAVE}"
    return f"begins with a line that says it separates columns by {name}s; give {setting('separator', name)}"


def _fault(lines: Sequence[str], form: CsvForm) -> str | None:
    """Return what is wrong with a file whose lines from the header on these are; None if nothing is."""
    lines = [line for line in (_QUOTED.sub("", line) for line in lines) if line.strip()]
    if not lines:
        return None
    header, second = lines[0], lines[1] if len(lines) > 1 else ""
    names = next((line for line in lines if not line.startswith("#")), "")
    if header.startswith("#") and header.count(form.delimiter) != names.count(form.delimiter):
        return (
            "begins with lines of comments (#); delete all lines before the names of columns, or say how many they "
            f"are: {setting('skip_lines', 'NUMBER')}"
        )
    own = header.count(form.delimiter)
    for name, letter in _SEPARATORS.items():
        count = header.count(letter)
        if name != form.separator and count > own and (not own or second.count(letter) == count):
            return f"separates columns by {name}s; give {setting('separator', name)}"
    trails = second.rstrip("\r\n").endswith(form.delimiter)
    if trails and second.count(form.delimiter) == own + 1:
        return "has a separator at the end of each row; write it without"
    return None


def csv_names(path: str, form: CsvForm = PLAIN) -> list[str]:
    """Return the names of a csv file's columns, from its header.

    Args:
        path: The file, as Arrow takes it.
        form: How it is written.
    """
    from pyarrow import csv

    read, parse = _options(form, check_start(path, form))
    with csv.open_csv(path, read, parse) as reader:
        return list(reader.schema.names)


def csv_batches(path: str, columns: list[str], raw: bool = False, form: CsvForm = PLAIN) -> "Iterator[pa.RecordBatch]":
    """Yield the columns of a csv file as text, a MiB of the file at a time.

    Args:
        path: The file, as Arrow takes it.
        columns: The columns to read; no other is.
        raw: Whether text stays bytes, which need not be UTF-8.
        form: How it is written.

    Raises:
        InputError: A column is missing, or the file is not written so.
    """
    import pyarrow as pa
    from pyarrow import csv

    names, skip = csv_names(path, form), check_start(path, form)
    if columns and not set(columns) & set(names):
        skipped = f"data.skip_lines = {form.skip_lines} may pass over it"
        remedy = skipped if form.skip_lines else f"Lines before it are passed over by {setting('skip_lines', 'NUMBER')}"
        raise InputError(f"{path}: {missing_columns(columns, names)} {remedy}")
    check_columns(names, columns, path)
    # Everything is read as text, so that what is not a number can be counted rather than abort.
    read, parse = _options(form, skip)
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.binary() if raw else pa.string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    with csv.open_csv(path, read, parse, convert) as reader:
        yield from reader


def _options(form: CsvForm, skip: int) -> tuple[Any, Any]:
    """Return Arrow's options of reading and of parsing."""
    from pyarrow import csv

    rows = {"skip_rows": skip, "skip_rows_after_names": form.skip_after_header}
    read = csv.ReadOptions(block_size=BLOCK_BYTES, encoding=form.encoding, **rows)
    return read, csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True)


def read_numbers(words: "pa.Array", name: str, form: CsvForm = PLAIN) -> "pa.Array":
    """Return a column of text as numbers, or as text where some of it is none: numbers as ``float`` reads them.

    Args:
        words: Text.
        name: The column's name.
        form: How numbers are written.

    Raises:
        InputError: Numbers that are written in another way; says how many, and which setting reads them.
    """
    import pyarrow as pa
    from pyarrow import compute

    plain = form.decimal == "point" and form.thousands is None
    if plain:
        with suppress(pa.ArrowInvalid):
            return compute.cast(words, pa.float64())
    own = compute.match_substring_regex(words, _written(form.decimal, form.thousands))
    others = words.filter(compute.invert(own).fill_null(False))
    if len(others):
        _refuse_other_forms(others, name, form)
    if not plain:
        read = words
        if form.thousands is not None:
            read = compute.replace_substring_regex(read, f"[{_THOUSANDS[form.thousands]}]", "")
        words = compute.if_else(own, compute.replace_substring(read, _DECIMALS[form.decimal], "."), words)
        with suppress(pa.ArrowInvalid):
            return compute.cast(words, pa.float64())
    return words


def _written(decimal: str, thousands: str | None) -> str:
    """Return the pattern of numbers with this decimal sign, in groups of three digits or in one piece."""
    point = re.escape(_DECIMALS[decimal])
    grouped = "" if thousands is None else f"[0-9]{{1,3}}(?:[{_THOUSANDS[thousands]}][0-9]{{3}})+|"
    return rf"^\s*[+-]?(?:(?:{grouped}[0-9]+)(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?\s*$"


def _refuse_other_forms(words: "pa.Array", name: str, form: CsvForm) -> None:
    """Refuse numbers written with other signs, and a header among the values."""
    from pyarrow import compute

    headers = compute.sum(compute.equal(words, name)).as_py() or 0
    if headers:
        raise InputError(
            f"column {name!r} holds its own name in {headers} of its rows; where the header is there again, delete "
            "these rows"
        )
    found: dict[tuple[int, int], list[str]] = {}
    for decimal in _DECIMALS:
        for thousands in (None, *(sign for sign in _THOUSANDS if sign != decimal)):
            count = compute.sum(compute.match_substring_regex(words, _written(decimal, thousands))).as_py() or 0
            changes = {"decimal": decimal, "thousands": thousands}
            given = [f"data.{key}={value or 'null'}" for key, value in changes.items() if value != getattr(form, key)]
            if count and given:
                found.setdefault((-count, len(given)), []).append(" and ".join(given))
    if found:
        most = min(found)  # of the most numbers, by the fewest settings
        raise InputError(
            f"column {name!r} has {plural(-most[0], 'number')} not written with data.decimal={form.decimal}, "
            f"data.thousands={form.thousands or 'null'}; give {', or '.join(found[most])}{OPTIONS} --decimal, "
            "--thousands)"
        )
