"""Every number and every word of a folder, whatever kind of file it stands in; nothing read here is ever run."""

import base64
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchdpcate.errors import VerificationError
from torchdpcate.release.file import SUMS_FILE, check_sums

_NUMBER = re.compile(  # the digits of versions, names and colours (#999) are no numbers
    r"(?<![A-Za-z0-9.#])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![A-Za-z0-9]|\.\d)"
)
_DATA_URI = re.compile(r"data:([\w/+.-]+);base64,([A-Za-z0-9+/=\s]+)")
_LARGEST = 1 << 28  # bytes that a compressed file may unfold to
_TEXT_CHUNKS = {b"tEXt", b"zTXt", b"iTXt"}
_IMAGE_CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"pHYs", b"sRGB", b"gAMA", b"cHRM", b"sBIT", b"bKGD", b"tRNS"}
_FROM_TRAINING = {".safetensors", ".json", ".md", ".html", ".png"}


class Unreadable(ValueError):
    """A file whose contents cannot be checked; the message says why."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers found together.

    Attributes:
        file: The file, relative to the folder.
        place: Where in it: a tensor, a key, a line.
        values: Finite and not, float64, of any shape; text has one number after the other.
        context: What stands there by name: the place, and the text around.
        alone: Whether the words of the context are about these numbers: text, or one number under a name.
    """

    file: str
    place: str
    values: np.ndarray
    context: str
    alone: bool


@dataclass(frozen=True)
class Words:
    """A piece of text: file, place, and the text itself."""

    file: str
    place: str
    text: str


@dataclass
class Contents:
    """What a folder holds.

    Attributes:
        numbers: Every number.
        words: Every piece of text, names of files and tensors included.
        unreadable: Files that could not be read to the end, with the reason.
        unusual: Readable files that training never writes so; one line each, why.
    """

    numbers: list[Numbers] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    unusual: list[str] = field(default_factory=list)

    def text(self, file: str, place: str, text: str) -> None:
        """Add a piece of text and the numbers in it."""
        self.words.append(Words(file, place, text))
        found = [float(word.replace(",", "")) for word in _NUMBER.findall(text)]
        if found:
            self.numbers.append(Numbers(file, place, np.array(found), f"{file} {place} {text}", True))

    def array(self, file: str, place: str, values: np.ndarray) -> None:
        """Add an array of numbers; the parts of complex ones side by side."""
        values = values.view(values.real.dtype) if np.iscomplexobj(values) else values
        self.words.append(Words(file, place, place))
        self.numbers.append(Numbers(file, place, values.astype(np.float64), f"{file} {place}", values.size == 1))


def read_folder(folder: Path, pattern: str = "**/*") -> Contents:
    """Read every file of a folder and of those in it, hidden ones and their names too; links are not followed.

    Args:
        folder: The folder.
        pattern: Which of its files.
    """
    contents = Contents()
    for path in sorted(folder.glob(pattern)):
        name = path.relative_to(folder).as_posix()
        contents.text(name, "its name", name)
        if path.is_symlink():
            contents.unreadable[name] = "a link that leads elsewhere"
        elif path.name == SUMS_FILE and path.parent == folder:
            _sums(contents, name, folder)
        elif path.is_file():
            if path.suffix.lower() not in _FROM_TRAINING:
                contents.unusual.append(f"{name}: not a kind of file that training writes")
            _read(contents, name, path.read_bytes())
        elif not path.is_dir():
            contents.unreadable[name] = "neither a file nor a folder"
    return contents


def _sums(contents: Contents, name: str, folder: Path) -> None:
    """Checksums add nothing to the files, which are read themselves; ``verify`` reports one that does not fit."""
    try:
        report = check_sums(folder)
    except VerificationError as error:
        contents.unreadable[name] = str(error)
        return
    if report.changed or report.absent:
        contents.unusual.append(f"{name}: files were changed since it was written; see torchdpcate verify")


def _read(contents: Contents, name: str, data: bytes) -> None:
    reader = _READERS.get(Path(name).suffix.lower())
    if reader is None:
        contents.unreadable[name] = "a kind of file that is not known here; it may hold anything"
        return
    try:
        reader(contents, name, data)
    except Exception as error:  # whatever the error of a reader, the file cannot be checked
        reason = " ".join(str(error).split())[:120] if isinstance(error, Unreadable) else type(error).__name__
        contents.unreadable[name] = f"does not read as what its name says ({reason})"


def _safetensors(contents: Contents, name: str, data: bytes) -> None:
    from safetensors.torch import load

    for key, tensor in load(data).items():
        contents.array(name, key, tensor.double().numpy())
    # JSON behind its own length: the library shows metadata of files on disk alone, and this may lie in an archive
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    for key, text in header.get("__metadata__", {}).items():
        try:
            value = json.loads(text, object_pairs_hook=_Pairs)
        except ValueError:
            value = text
        _walk(contents, name, key, value)


class _Pairs(list):
    """The entries of a JSON object, those under a key given twice included."""


def _json(contents: Contents, name: str, data: bytes) -> None:
    _walk(contents, name, "", json.loads(data.decode("utf-8"), object_pairs_hook=_Pairs))


def _walk(contents: Contents, name: str, place: str, value: Any) -> None:
    """Add the leaves of a JSON value; lists of numbers stay together."""
    if isinstance(value, _Pairs):
        for key, entry in value:
            contents.text(name, f"{place}.{key}".strip("."), key)
            _walk(contents, name, f"{place}.{key}".strip("."), entry)
    elif isinstance(value, list) and value and all(_is_number(entry) for entry in value):
        contents.array(name, place, np.array(value, dtype=np.float64))
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            _walk(contents, name, f"{place}[{i}]", entry)
    elif _is_number(value):
        contents.array(name, place, np.array([value], dtype=np.float64))
    elif isinstance(value, str):
        contents.text(name, place, value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(contents: Contents, name: str, data: bytes) -> None:
    text = data.decode("utf-8")
    if "\0" in text:
        raise Unreadable("binary")
    for kind, encoded in _DATA_URI.findall(text):
        # an embedded figure is a file of its own
        _read(contents, f"{name}!embedded.{kind.split('/')[-1].split('+')[0]}", base64.b64decode(encoded))
    for i, line in enumerate(_DATA_URI.sub("", text).splitlines(), 1):
        if line.strip():
            contents.text(name, f"line {i}", line)


def _csv(contents: Contents, name: str, data: bytes) -> None:
    import pandas as pd

    _frame(contents, name, pd.read_csv(io.BytesIO(data), sep=None, engine="python"))


def _parquet(contents: Contents, name: str, data: bytes) -> None:
    import pandas as pd

    _frame(contents, name, pd.read_parquet(io.BytesIO(data)))


def _frame(contents: Contents, name: str, frame: Any) -> None:
    for column in frame:
        values = frame[column]
        if values.dtype.kind in "fiub":
            contents.array(name, f"column {column}", values.to_numpy(np.float64, na_value=np.nan))
        else:
            contents.text(name, f"column {column}", "\n".join(map(str, [column, *values.unique()])))


def _npy(contents: Contents, name: str, data: bytes) -> None:
    contents.array(name, "array", np.load(io.BytesIO(data), allow_pickle=False))


def _zip(contents: Contents, name: str, data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:
            raise Unreadable(f"unfolds to more than {_LARGEST >> 20} MiB")
        if archive.comment:
            contents.text(name, "comment", archive.comment.decode("utf-8"))
        for entry in archive.infolist():
            if not entry.is_dir():
                contents.text(f"{name}!{entry.filename}", "its name", entry.filename)
                _read(contents, f"{name}!{entry.filename}", archive.read(entry))


def _png(contents: Contents, name: str, data: bytes) -> None:
    """Read chunk by chunk: Pillow keeps one text of a key, drops what does not inflate, and passes over the unknown."""
    from PIL import Image

    Image.open(io.BytesIO(data)).load()
    for kind, body in _chunks(data):
        if kind in _TEXT_CHUNKS:
            contents.text(name, f"chunk {kind.decode()}", _chunk_text(kind, body))
        elif kind not in _IMAGE_CHUNKS:
            raise Unreadable(f"chunk {kind!r}")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise Unreadable("no PNG")
    start, kind = 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack(">I4s", data[start : start + 8])
        yield kind, data[start + 8 : start + 8 + length]
        start += length + 12
    if start != len(data):
        raise Unreadable(f"{len(data) - start} bytes behind the image")


def _chunk_text(kind: bytes, body: bytes) -> str:
    key, rest = body.split(b"\0", 1)
    if kind == b"tEXt":
        return f"{key.decode('latin-1')} {rest.decode('latin-1')}"
    if kind == b"zTXt":
        return f"{key.decode('latin-1')} {_inflated(rest[1:]).decode('latin-1')}"
    compressed, (language, translated, text) = rest[0], rest[2:].split(b"\0", 2)
    text = _inflated(text) if compressed else text
    return " ".join(part.decode("utf-8") for part in (key, language, translated, text))


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, _LARGEST)
    if inflater.unconsumed_tail:
        raise Unreadable(f"unfolds to more than {_LARGEST >> 20} MiB")
    return text


_READERS: dict[str, Callable[[Contents, str, bytes], None]] = {
    ".safetensors": _safetensors,
    ".json": _json,
    ".png": _png,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".npy": _npy,
    ".npz": _zip,
    ".zip": _zip,
    **dict.fromkeys((".md", ".txt", ".html", ".htm", ".svg", ".xml", ".yaml", ".yml", ".log"), _text),
}
