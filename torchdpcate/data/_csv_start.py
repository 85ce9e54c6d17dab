"""The beginning of a csv file: what is no comma-separated UTF-8 with a header in line 1 is refused with its remedy."""

import gzip
import re
import zlib
from contextlib import suppress

from torchdpcate.errors import InputError

_BYTES = 1 << 16
_REMEDY = "save it as comma-separated UTF-8"
_KINDS = {
    b"PK\x03\x04": f"is a workbook (xlsx) or a zip file; {_REMEDY}",
    b"\xd0\xcf\x11\xe0": f"is a workbook (xls); {_REMEDY}",
    b"PAR1": "is a parquet file; give it a name that ends in .parquet",
    b"\x1f\x8b": "is packed by gzip; give it a name that ends in .csv.gz",
    b"\xff\xfe": f"is UTF-16; {_REMEDY}",
    b"\xfe\xff": f"is UTF-16; {_REMEDY}",
}
_SEPARATORS = {b";": "semicolons", b"\t": "tabs", b"|": "bars"}
_QUOTED = re.compile(rb'"[^"]*"')


def check_start(path: str) -> None:
    """Refuse a file by its first bytes and lines; nothing of them is shown.

    Args:
        path: The csv or csv.gz file, as Arrow takes it.

    Raises:
        InputError: Another kind of file, another encoding or separator, or lines before the header.
    """
    found = _fault(_first_bytes(path))
    if found is not None:
        raise InputError(f"data file {path!r} cannot be read: it {found}")


def _first_bytes(path: str) -> bytes:
    """Return what the file begins with; nothing of a broken one, which reading it reports."""
    with open(path.encode(), "rb") as file, suppress(EOFError, gzip.BadGzipFile, zlib.error):  # as Arrow: UTF-8
        return (gzip.GzipFile(fileobj=file) if path.lower().endswith(".gz") else file).read(_BYTES)
    return b""


def _fault(start: bytes) -> str | None:
    """Return what is wrong with a file that starts so, and what to do; None if nothing is."""
    for magic, words in _KINDS.items():
        if start.startswith(magic):
            return words
    if b"\0" in start:
        return f"holds NUL bytes, as UTF-16 does; {_REMEDY}"
    lines = [_QUOTED.sub(b"", line) for line in start.removeprefix(b"\xef\xbb\xbf").splitlines()]
    lines = [line for line in lines if line.strip()]
    if not lines:
        return None
    header, second = lines[0], lines[1] if len(lines) > 1 else b""
    if header[:4].lower() == b"sep=":
        return "begins with a line sep=, as Excel writes it; delete this line, and separate columns by commas"
    names = next((line for line in lines if not line.startswith(b"#")), b"")
    if header.startswith(b"#") and header.count(b",") != names.count(b","):
        return "begins with lines of comments (#); delete all lines before the names of columns"
    commas = header.count(b",")
    for separator, words in _SEPARATORS.items():
        count = header.count(separator)
        if count > commas and (not commas or second.count(separator) == count):
            return f"separates columns by {words}; save it with commas between columns, and with decimal points"
    return None
