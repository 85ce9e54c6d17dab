"""Every number and every word of a folder, and which of the curator's must not be released.

Nothing that is read here is ever run.
"""

import base64
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchdpcate.errors import InputError, VerificationError
from torchdpcate.release.file import SUMS_FILE, check_sums

if TYPE_CHECKING:
    import pandas as pd

    from torchdpcate.data.study import Study

_NUMBER = re.compile(  # the digits of versions, names and colours (#999) are no numbers
    r"(?<![A-Za-z0-9.#])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![A-Za-z0-9]|\.\d)"
)
_TAG = re.compile(r"<[^<>]*>")
_LINKS = r"(?:(?:of|in|is|was|are|were|the|about)\W+)*"
_BEFORE = re.compile(rf"([A-Za-z]{{3,}})\W+{_LINKS}$", re.IGNORECASE)
_AFTER = re.compile(rf"^\W+{_LINKS}([A-Za-z]{{3,}})", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z]{3,}")
_DATA_URI = re.compile(r"data:([\w/+.-]+);base64,([A-Za-z0-9+/=\s]+)")
_LARGEST = 1 << 28  # bytes that a compressed file may unfold to
_TEXT_CHUNKS = {b"tEXt", b"zTXt", b"iTXt"}
_IMAGE_CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"pHYs", b"sRGB", b"gAMA", b"cHRM", b"sBIT", b"bKGD", b"tRNS"}
_FROM_TRAINING = {".safetensors", ".json", ".md", ".html", ".png", ".csv"}


class Unreadable(ValueError):
    """A file whose contents cannot be checked; the message says why."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers found together.

    Attributes:
        file: The file, relative to the folder.
        place: Where in it: a tensor, a key, a line.
        values: Finite and not, float64, of any shape; text has one number after the other.
        beside: The words that each number stands by: those of its place where it stands alone, and of a text the last
            one before and the first one after it. None where many numbers share a place.
        alone: Whether each number stands by words of its own.
    """

    file: str
    place: str
    values: np.ndarray
    beside: tuple[frozenset[str], ...]
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
        found = list(_NUMBER.finditer(text))
        if found:
            values = np.array([float(number[0].replace(",", "")) for number in found])
            beside = tuple(_beside(text, number, place) for number in found)
            self.numbers.append(Numbers(file, place, values, beside, True))

    def array(self, file: str, place: str, values: np.ndarray) -> None:
        """Add an array of numbers; the parts of complex ones side by side."""
        values = values.view(values.real.dtype) if np.iscomplexobj(values) else values
        self.words.append(Words(file, place, place))
        alone = values.size == 1
        beside = (words_of(f"{file} {place}"),) if alone else ()
        self.numbers.append(Numbers(file, place, values.astype(np.float64), beside, alone))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a name or a place."""
    return frozenset(word.lower() for word in _NAME.findall(text))


def _beside(text: str, number: re.Match[str], place: str) -> frozenset[str]:
    """Return the words next to a number of a text; where the text is nothing else, those of its place."""
    before, after = _TAG.sub(" ", text[: number.start()]), _TAG.sub(" ", text[number.end() :])
    if not (before.strip() or after.strip()):
        return words_of(place)
    found = (_BEFORE.search(before), _AFTER.search(after))
    return frozenset(word[1].lower() for word in found if word is not None)


def read_folder(folder: Path) -> Contents:
    """Read every file of a folder and of those in it, hidden ones and their names too; links are not followed.

    Args:
        folder: The folder.
    """
    contents = Contents()
    for path in sorted(folder.glob("**/*")):
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


# Settings, facts and private numbers that the curator's files hold besides; every other entry is a secret.
_PUBLIC = {
    "task", "data", "learner", "release", "mechanism", "level", "claim", "epsilon", "delta", "requested", "spent", "n",
    "blocks", "seed", "huber_threshold", "head_parameters", "public", "privacy", "schema", "facts", "nuisances",
    "noise", "ridge", "gamma", "hessian_bound", "rule_parameters", "range_sensitivity", "spread", "nuisance_guarantee",
    "effect", "estimand", "estimate", "effect_mean", "effect_least", "effect_most", "estimate_least", "estimate_most",
    "low", "high", "width", "cells", "clipped", "generated", "plan", "shares", "share_treated", "residual_scale",
    "form",
}  # fmt: skip
_SETTINGS = (
    "config.yaml",
    "noise.txt",
    "records.sha256",
    "ledger.sqlite",
    "online/head.bin",
    "online/lock",
)
_REPORTS = ("report.html", "report.csv", "report.md")
"""What ``report`` makes of summaries and releases. The numbers are compared as those files hold them; a page's others
are the places of its pictures, which the reader's page has too."""
_SHORTEST_WORD = 4  # bytes: two Chinese letters are a word


@dataclass
class Curator:
    """The curator's side of a run.

    Attributes:
        scalars: Single numbers by name.
        vectors: Vectors by name, each [m].
        records: Columns of the records, encoded, as in their file and scaled by public bounds, each [n].
        public: Public numbers, any order.
        public_vectors: Public vectors by name.
        words: Texts of the records' table: identifiers, categories.
        public_text: Public text: schema, configuration and the package's own source.
        paths: Paths that the configuration names.
        sizes: Numbers of records, in all and per block, public.
        outcome_range: R, public; 1 where it is not known.
        rows: Encoded covariates of the records and, last, their outcome, [n, q + 1].
        notes: What could not be had.
    """

    scalars: dict[str, float] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    records: dict[str, np.ndarray] = field(default_factory=dict)
    public: list[np.ndarray] = field(default_factory=list)
    public_vectors: dict[str, np.ndarray] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    public_text: str = ""
    paths: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    outcome_range: float = 1.0
    rows: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)


def read_curator(run: Path) -> Curator:
    """Read ``curator/`` of a run, and the records from where its configuration says.

    Args:
        run: Run folder.

    Raises:
        InputError: No run, or one without its curator's files.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    for name in ("release", "curator"):
        if not (run / name).is_dir():
            raise InputError(f"run = {run}: has no folder {name}; give a run's own, with release and curator")
    curator = Curator()
    _read_files(curator, run)
    config: dict[str, Any] = {}
    try:
        config = OmegaConf.to_container(OmegaConf.load(run / "curator" / "config.yaml"))  # type: ignore[assignment]
    except (OSError, ValueError, YAMLError) as error:
        curator.notes.append(f"curator/config.yaml cannot be read ({type(error).__name__}): records not compared")
    curator.public.append(_numbers_of(config))
    curator.paths = _paths(config)
    curator.public_text = "\n".join([*_texts_of(config), _package_text()])
    if "data" in config:
        _read_records(curator, config)
    return curator


def _read_files(curator: Curator, run: Path) -> None:
    """Sort the numbers of the curator's files into secret and public ones."""
    contents = read_folder(run / "curator")
    for found in contents.numbers:
        if found.file.partition("!")[0] in _REPORTS:
            continue
        values = found.values[np.isfinite(found.values)]
        if found.file in _SETTINGS or re.split(r"[.\[]", found.place)[0] in _PUBLIC:
            curator.public.append(values.ravel())
            curator.public_vectors[found.place] = values.ravel()
        elif values.size == 1:
            curator.scalars[found.place] = float(values.ravel()[0])
        elif found.values.size > 1:
            curator.vectors[found.place] = found.values.ravel()
    lost = [name for name in contents.unreadable if name not in _SETTINGS]
    curator.notes += [f"curator/{name}: {contents.unreadable[name]}; not compared" for name in lost]
    if not (run / "curator" / "numbers.safetensors").is_file():
        curator.notes.append("curator/numbers.safetensors is not there: effects without noise are not compared")
    try:
        summary = json.loads((run / "curator" / "summary.json").read_text(encoding="utf-8"))
        curator.sizes = tuple(sorted({int(summary["n"]), *map(int, summary["blocks"].values())}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        curator.notes.append("curator/summary.json cannot be read: its figures are not compared")


def _paths(config: Mapping[str, Any]) -> list[str]:
    """Return the places on a machine that a configuration names."""
    data = config.get("data") or {}
    given = data.get("path")
    named = [*(given if isinstance(given, list) else [given]), data.get("domain"), data.get("queries_path")]
    return [path for path in [*named, config.get("run_dir")] if isinstance(path, str) and set(path) & set("/\\.")]


_OF_STREAMS = ("stream", "engine", "address", "parts")  # here all is read at once


def _read_records(curator: Curator, config: Mapping[str, Any]) -> None:
    from hydra.utils import instantiate

    from torchdpcate.data._yaml import check_targets

    try:
        settings = {name: value for name, value in config["data"].items() if name not in _OF_STREAMS}
        check_targets(settings, "data")  # a run's files may come from anywhere, and a class is named by them
        study: Study = instantiate(settings).load()
        table = _raw_table(curator, config["data"])
    except Exception as error:  # moved files, changed tables, a class that is not there: the scan goes on without
        reason = " ".join(str(error.__cause__ or error).split())[:160]
        curator.notes.append(f"the records could not be loaded again and were not compared: {reason}")
        return
    domain, records = study.domain, study.records
    low, width = domain.covariate_low, domain.covariate_high - domain.covariate_low
    outcome = study.schema.outcome
    unit_outcome = (records.y - domain.outcome_low) / domain.outcome_range
    scaled = domain.scale(records.x)
    columns = {outcome: records.y, study.schema.treatment: records.a, f"{outcome} in [0, 1]": unit_outcome}
    for j, name in enumerate(domain.names):
        unit = (records.x[:, j] - low[j]) / width[j] if width[j] > 0 else records.x[:, j]
        columns |= {name: records.x[:, j], f"{name} in [0, 1]": unit, f"{name} in [-1, 1]": scaled[:, j]}
    curator.records = {f"record's {name}": column.numpy() for name, column in columns.items()}
    curator.rows = torch.cat([records.x, records.y[:, None]], dim=1).numpy()
    curator.outcome_range = domain.outcome_range
    schema = study.schema.to_dict()
    facts = [domain.covariate_low, domain.covariate_high, *([] if study.queries is None else [study.queries.ravel()])]
    curator.public += [fact.numpy() for fact in facts] + [_numbers_of(schema), np.array([domain.outcome_range])]
    curator.public_text = "\n".join([curator.public_text, *_texts_of(schema)])
    if table is not None:
        _add_table(curator, table)


def _numbers_of(value: Any) -> np.ndarray:
    """Return the numbers of a configuration or a schema in plain types."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return np.concatenate([np.zeros(0), *map(_numbers_of, value)])
    return np.array([value] if isinstance(value, int | float) else [], dtype=np.float64)


def _texts_of(value: Any) -> list[str]:
    """Return the words of a configuration or a schema in plain types, its keys among them, as they are."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        return [text for entry in value for text in _texts_of(entry)]
    return [str(value)]


def _raw_table(curator: Curator, data: Mapping[str, Any]) -> "pd.DataFrame | None":
    """Return the table of the data file or files as training reads it, with the columns that training leaves out."""
    import pandas as pd

    from torchdpcate.data._csv import PLAIN, CsvForm
    from torchdpcate.data._frames import read_frame
    from torchdpcate.data.columns import column_names

    if data.get("path") is None:
        return None
    files, form = [data["path"]] if isinstance(data["path"], str) else list(data["path"]), CsvForm.of(data) or PLAIN
    names = [name for name in dict.fromkeys(column_names(files[0], form)) if name]
    try:
        return read_frame(files, names, form=form)
    except InputError:  # in one of them perhaps, such as notes that are longer than any category
        columns = {}
        for name in names:
            try:
                columns[name] = read_frame(files, [name], form=form)[name]
            except InputError as error:
                curator.notes.append(f"a column of the table was not compared: {error}")
        return pd.DataFrame(columns)


def _add_table(curator: Curator, table: "pd.DataFrame") -> None:
    for name in table:
        column = table[name]
        if column.dtype.kind in "fiu":
            curator.records[f"table's {name}"] = column.to_numpy(np.float64)
        elif column.dtype.kind != "b":
            curator.words += [
                word for word in column.dropna().astype(str).unique() if len(word.encode()) >= _SHORTEST_WORD
            ]


@cache
def _package_text() -> str:
    """Return the package's own source: whatever word it holds may stand in a release."""
    root = Path(__file__).resolve().parents[1]
    return "".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))
