"""Releases, and their files: safetensors with JSON metadata, read without running code from them, and checksums.

A checksum is no signature. It detects damage, and a change after which it was not recomputed; against anybody who
did, compare it with one that the curator published elsewhere.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import torchdpcate.release
from torchdpcate._files import PUBLIC, atomic_path, refuse_existing, write_text
from torchdpcate._templates import html_table_of
from torchdpcate._text import plain
from torchdpcate.data._arrays import as_frame
from torchdpcate.data.covariates import bounds_in_words
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import aim, contrast, labelled, outcome_words
from torchdpcate.errors import InputError, MissingError, ReleaseFileError, VerificationError
from torchdpcate.release.lines import Lines
from torchdpcate.release.statement import PrivacyStatement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

RELEASES: dict[str, type["Release"]] = {}
"""Classes of releases by their kind, of the modules imported so far."""


class Release(ABC):
    """What was released about the records, with its privacy statement.

    Attributes:
        kind: Kind under which a file knows it.
        column: What its answers are called in tables.
        subject: What it is about, with the names of treatment and outcome to be filled in.
        privacy: The privacy statement.
        schema: Columns and public bounds of the covariates.
        between: Whether effects of several sites are ``fixed`` or ``random``; None of one site.
    """

    kind: ClassVar[str]
    column: ClassVar[str]
    subject: ClassVar[str]
    privacy: PrivacyStatement
    schema: TableSchema
    between: str | None = None

    def __init_subclass__(cls, **given: Any) -> None:
        """Make the class known by its kind."""
        super().__init_subclass__(**given)
        kind = cls.__dict__.get("kind")
        known = RELEASES.setdefault(kind, cls) if isinstance(kind, str) else cls
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(f"kind = {kind}: there is a release of this kind already ({known.__module__})")

    @property
    def domain(self) -> Domain:
        """Public bounds of covariates and outcome."""
        return self.schema.domain

    @abstractmethod
    def answer(self, x: Tensor) -> Tensor:
        """Return the release's answers at encoded covariates x [m, q], [m]: what ``torchdpcate predict`` writes."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return everything numeric that the release holds."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return everything public that is needed to rebuild the release, as plain types."""

    @classmethod
    @abstractmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "Release":
        """Rebuild a release from ``tensors`` and ``facts``."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return what cards and ``torchdpcate verify`` state beside the statement, as plain types."""

    @abstractmethod
    def plot(self, *given: Any, **settings: Any) -> "Figure":
        """Return a matplotlib figure of what was released, from released numbers alone; each kind has its arguments."""

    def module(self) -> nn.Module:
        """Return the effect, or of a rule the score by whose sign it decides, as a module to serve or export.

        Its outputs are those of ``effect`` (or ``score``) at encoded covariates; see ``ReleaseModule`` for what it
        takes. It has neither statement nor signature: hand the release on beside it.

        Raises:
            InputError: This kind of release is no function of covariates.
        """
        raise InputError(
            f"module: a release of kind {self.kind} is no function of covariates; a function release (release=function "
            "on the command line) or a rule has a module"
        )

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the release to a safetensors file, completely or not at all, and return its path.

        Args:
            path: File to write; its folder must exist.
            overwrite: Whether it may take the place of a file that is there.

        Raises:
            InputError: The file is there, or its folder is not.
        """
        return save_release(self, path, overwrite)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms that effects compare with the reference, where there are more than two; else empty."""
        return self.schema.compared

    @property
    def arm_titles(self) -> tuple[str, ...]:
        """What the effect of each of ``arms`` is, in words."""
        return tuple(labelled(self.schema, self.arm_names))

    @property
    def arm_names(self) -> list[str]:
        """The same by the names of arms, which sites share."""
        return [f"{arm} instead of {self.schema.reference}" for arm in self.arms]

    @property
    def function(self) -> Any:
        """The effect function that it is, or that it decides by; None of others."""
        return None

    @property
    def decision(self) -> Any:
        """The decision that it is, with ``decide(X)``; None of others."""
        return None

    @property
    def named(self) -> Lines | None:
        """The lines that it has; None of others."""
        return None

    @property
    def required_lines(self) -> Lines:
        """The lines.

        Raises:
            MissingError: There are none, and why.
        """
        if self.named is None:
            raise MissingError(f"this release has no lines: {self.why_no_lines}")
        return self.named

    @property
    def of_persons(self) -> bool:
        """Whether it has an effect of persons: its learner was requested more than averages."""
        return self.function is not None and self.privacy.public.get("learner") != "AverageEffect"

    @property
    def varies(self) -> bool:
        """Whether persons may have different effects by it."""
        return self.of_persons and getattr(self.function, "form", "") != "constant"

    @property
    def why_no_lines(self) -> str:
        """Why there are no lines, in words."""
        return f"it is of kind {self.kind}; a release of effects by one composition has averages and groups"

    def lines(self, level: float = 0.95, simultaneous: bool = False) -> "pd.DataFrame":
        """Return all named estimates, one row a line, by its name.

        Columns are ``line`` (whom it is about, in words), ``estimate``, ``low`` and ``high`` (the interval, which
        counts sampling and all noise), ``standard_error``, ``noise_share`` (of the privacy noise in the error's
        variance; NaN where it is not known), ``records`` (about how many it is about), ``group``, and of several sites
        ``weight``.
        Estimates, ends and errors are in outcome units.

        Args:
            level: Probability of each interval, in (0, 1).
            simultaneous: Whether it is that of all lines together: of cells by Sidak (1967), else by Bonferroni.

        Raises:
            MissingError: There are none, and why.
            InputError: A level outside (0, 1).

        Example:
            >>> from torchdpcate.release.average_effect import _example
            >>> _example().lines().round(3)[["line", "estimate", "low", "high"]].values.tolist()
            [['everybody', 0.25, 0.152, 0.348]]
        """
        return self.required_lines.table(level, simultaneous)

    def summary_frame(self, alpha: float = 0.05) -> "pd.DataFrame":
        """Return the lines under the names that EconML and statsmodels have for them.

        Columns are ``point_estimate``, ``stderr``, ``zstat``, ``pvalue`` (two-sided, of no effect, normal),
        ``ci_lower`` and ``ci_upper``.

        Args:
            alpha: One less the probability of each interval.

        Raises:
            MissingError: As ``lines``.
            InputError: As ``lines``.
        """
        return self.required_lines.summary_frame(alpha)

    def contrast(self, line: str, other: str, level: float = 0.95) -> tuple[float, float, float]:
        r"""Return the difference of two lines and the ends of its interval, in outcome units.

        .. math:: \hat\theta_1 - \hat\theta_2 \pm z\,\big(s^2 + (c_1 + c_2)^2\big)^{1/2}

        with deviations c of errors that both may share, and s^2 the sum of the others' variances where the lines are of
        different records, else the square of the sum of their deviations, which no correlation exceeds. Over sites it
        is from the lower end of the first to the upper end of the second, and from the upper to the lower.

        Args:
            line: Name or title of a line.
            other: Likewise.
            level: Probability of the interval, of this contrast alone.

        Raises:
            MissingError: As ``lines``.
            InputError: No such line, or one line twice; a level outside (0, 1).

        Example:
            >>> from torchdpcate.release.subgroups import _example
            >>> round(_example().contrast("x0 < 0.5", "x0 >= 0.5")[0], 3)
            0.5
        """
        return self.required_lines.contrast(line, other, level)

    def as_columns(self, answers: Tensor, name: str = "") -> dict[str, Tensor]:
        """Return answers as columns of a table: [m] as one, [m, K - 1] of more than two arms as one an arm.

        Args:
            answers: As ``answer`` returns them, or something else of the same shape.
            name: What the columns are called, and of several what stands before the arm; empty for ``column``.
        """
        name = name or self.column
        if not self.arms or answers.ndim == 1:
            return {name: answers}
        return {f"{name}_{arm}": column for arm, column in zip(self.arms, answers.unbind(1), strict=True)}

    def __repr__(self) -> str:
        """Return what it is about and what it claims, in one line."""
        return line(self)

    def _repr_html_(self) -> str:
        return table(self)

    def _covariates(self, X: Any) -> Tensor:
        X = as_frame(X)
        if isinstance(X, np.ndarray) and X.dtype == np.float64 and X.flags.carray:
            X = torch.from_numpy(X)  # answers only read it, so it need not be copied
        return self.schema.within(self.schema.matrix(X, "query"), "query")


_MOST = 12
"""Covariates that a table names."""


def line(release: Release) -> str:
    """Return what it is about and what it claims, in one line.

    Args:
        release: Any release.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> line(_example())[:54]
        '<RuleRelease: rule that says who should get a = 1 inst'
    """
    about = subject(release)
    about = about[0].lower() + about[1:]
    claim = release.privacy.claim.rstrip(".")
    return plain(f"<{type(release).__name__}: {about}; {claim}; n = {release.privacy.n:,}>")


def table(release: Release) -> str:
    """Return the same with its numbers and the covariates' public bounds, as HTML without a script.

    Args:
        release: Any release.
    """
    return html_table_of(type(release).__name__, _rows(release))


def draw(function: str, release: Release, *given: Any, **settings: Any) -> "Figure":
    """Return what a function of ``torchdpcate.pages.figures`` draws; nothing else of a reader loads matplotlib.

    Args:
        function: Its name.
        release: Any release.
        given: Its further arguments.
        settings: Those with names.
    """
    return getattr(import_module("torchdpcate.pages.figures"), function)(release, *given, **settings)


def subject(release: Release) -> str:
    """Return what a release is about, with the names of its treatment and outcome."""
    schema, constant = release.schema, not release.varies
    names = {"treatment": schema.treatment_label, "outcome": outcome_words(schema)}
    about = release.subject.removesuffix(" as a function of the covariates" * constant)
    return about.format(**names, contrast=contrast(schema), aim=aim(schema))


def _rows(release: Release) -> Iterator[tuple[str, str]]:
    privacy, covariates = release.privacy, release.schema.covariates
    yield "about", subject(release)
    yield "claim", privacy.claim
    yield "mechanism", privacy.mechanism
    yield f"{privacy.protected.counted}s", f"{privacy.n:,}"
    for name, value in release.summary().items():
        yield name.replace("_", " "), _short(value)
    more = f"; and {len(covariates) - _MOST} more" if len(covariates) > _MOST else ""
    yield "covariates", "; ".join(map(bounds_in_words, covariates[:_MOST])) + more


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)}, see lines()"
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


SUMS_FILE = "SHA256SUMS"
DIGEST_KEY = "sha256"
NO_SIGNATURE = "a checksum, not a signature: whoever edits a file on purpose can write a new one"

_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\\\r\n]+)")


def release_digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of everything a release file says, whatever the order in which it says it.

    Hashed are, each preceded by its length: every metadata entry but the checksum itself, sorted by key; then name,
    dtype, shape and little-endian bytes of every tensor, sorted by name.

    Args:
        metadata: Metadata of the file.
        tensors: Its tensors by name.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> one = release_digest({"format": "f"}, {"theta": torch.zeros(2)})
        >>> one == release_digest({"format": "f", "sha256": one}, {"theta": torch.zeros(2)})
        True
        >>> one == release_digest({"format": "f"}, {"theta": torch.zeros(2, 1)})
        False
    """
    digest = hashlib.sha256()
    for part in _parts(metadata, tensors):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    entries = sorted((key, value) for key, value in metadata.items() if key != DIGEST_KEY)
    yield json.dumps([len(entries), len(tensors)]).encode()
    for pair in entries:
        yield from (word.encode() for word in pair)
    for name, tensor in sorted(tensors.items()):
        yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
        yield _data(tensor)


def _data(tensor: Tensor) -> memoryview:
    """Return the little-endian bytes of a tensor."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().data


def file_sum(path: Path) -> str:
    """SHA-256 of a file's bytes, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: str | Path, names: Collection[str] | None = None) -> Path:
    """Write ``SHA256SUMS`` of a folder's files, to be checked by ``sha256sum -c`` or ``check_sums``.

    Args:
        folder: The folder; hidden files and folders in it are left out.
        names: Files whose lines are to be renewed, the other lines kept as they are; None for all anew.

    Returns:
        The file written.

    Raises:
        InputError: The folder does not exist, or a file's name cannot stand in such a file.
        VerificationError: Lines are to be kept, and the file that holds them is no list of checksums.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"folder = {folder}: no such folder")
    target = folder / SUMS_FILE
    sums = {} if names is None else _read_sums(target)
    for path in folder.iterdir():
        if path.is_file() and _is_listed(path.name) and (names is None or path.name in names):
            sums[path.name] = file_sum(path)
    bad = sorted(name for name in sums if not _LINE.fullmatch(f"{'0' * 64}  {name}"))
    if bad:
        raise InputError(f"folder = {folder}: rename {bad[0]!r}; its name cannot stand in {SUMS_FILE}")
    write_text(target, _sums_text(sums), PUBLIC)
    return target


class SumsReport(NamedTuple):
    """Files of a ``SHA256SUMS``: as listed, changed, listed but absent, and there but not listed."""

    matching: list[str]
    changed: list[str]
    absent: list[str]
    unlisted: list[str]


def check_sums(folder: str | Path) -> SumsReport:
    """Compare a folder with its ``SHA256SUMS``.

    Args:
        folder: A folder that holds such a file.

    Raises:
        VerificationError: It is no list of checksums of files of this folder.
    """
    folder = Path(folder)
    sums = _read_sums(folder / SUMS_FILE)
    there = {path.name for path in folder.iterdir() if path.is_file() and _is_listed(path.name)}
    matching = [name for name in sorted(sums.keys() & there) if file_sum(folder / name) == sums[name]]
    changed = sorted((sums.keys() & there) - set(matching))
    return SumsReport(matching, changed, sorted(sums.keys() - there), sorted(there - sums.keys()))


def _is_listed(name: str) -> bool:
    return not name.startswith(".") and name != SUMS_FILE


def _sums_text(sums: Mapping[str, str]) -> str:
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def _read_sums(path: Path) -> dict[str, str]:
    sums = {}
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise VerificationError(f"{path}: not a list of checksums ({error})") from None
    for number, line in enumerate(text.splitlines(), start=1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] in sums or not _is_listed(found[2]):
            raise VerificationError(f"{path}: line {number} is not the checksum of a file beside it, listed once")
        sums[found[2]] = found[1]
    if text != _sums_text(sums):
        raise VerificationError(f"{path}: not written as a run writes it: a line a file, two spaces, names in order")
    return sums


RELEASE_FILE = "release.safetensors"
"""Name of the release's file in the folder ``release/`` of a run."""
FORMAT = "torchdpcate-release"
FORMAT_VERSION = 1
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64"}
_HELD, _ALIGNED, _MOST_SAID = "float64, float32 and int64", 8, 400
_STOWED = "its bytes are not those of what it says, so that it may hold records between them"


@dataclass(frozen=True, eq=False)
class ReleaseFile:
    """What a release file says, before anything is made of it.

    Attributes:
        path: The file.
        metadata: Its metadata.
        tensors: Its tensors by name.
    """

    path: Path
    metadata: dict[str, str]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, release: Release, path: Path) -> "ReleaseFile":
        """Return what the file of a release says, with its checksum; nothing is written."""
        metadata = _metadata(release)
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in release.tensors().items()}
        return cls(path, {**metadata, DIGEST_KEY: release_digest(metadata, tensors)}, tensors)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file: the same whoever writes these contents, and whenever.

        They are a safetensors file: the length of its header, the header as JSON with sorted keys, filled up with
        blanks to a multiple of eight bytes, and the tensors, the widest numbers first, then by name.

        Raises:
            ReleaseFileError: A tensor of numbers that no release holds.
        """
        header: dict[str, Any] = {"__metadata__": self.metadata}
        parts, end = [], 0
        for name, tensor in sorted(self.tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
            if tensor.dtype not in _DTYPES:
                raise ReleaseFileError(f"{self.path}: {name} is of {tensor.dtype}; releases hold {_HELD} alone")
            parts.append(_data(tensor))
            start, end = end, end + parts[-1].nbytes
            header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNED)
        return b"".join([len(text).to_bytes(8, "little"), text, *parts])

    @property
    def stated_digest(self) -> str | None:
        """The checksum that the file carries; None if it carries none."""
        return self.metadata.get(DIGEST_KEY)

    @property
    def fault(self) -> str | None:
        """What is wrong with the checksum; None if it matches."""
        if self.stated_digest is None:
            return "it carries no checksum"
        matches = self.stated_digest == release_digest(self.metadata, self.tensors)
        return None if matches else "its contents do not match its checksum"

    def build(self) -> Release:
        """Return the release.

        Raises:
            ReleaseFileError: Contents that do not fit together.
        """
        try:
            _require_numbers(self.tensors)
            facts, schema, privacy = (_read(self.metadata[key]) for key in ("facts", "schema", "privacy"))
            kind, statement = kinds()[self.metadata["class"]], PrivacyStatement.from_dict(privacy)
            return kind.build(self.tensors, facts, TableSchema.from_dict(schema), statement)
        except Exception as error:  # whatever Python raises on forged contents
            raise ReleaseFileError(
                f"{self.path}: the release's contents do not fit together ({type(error).__name__}); "
                "request the file again"
            ) from error

    def problems(self, release: Release) -> list[str]:
        """Return what the file says that its release would not write: nothing may stand beside the release.

        Args:
            release: What ``build`` made of the file.
        """
        metadata, tensors = _metadata(release), release.tensors()
        strange = sorted((self.metadata.keys() ^ metadata) - {DIGEST_KEY}), sorted(self.tensors.keys() ^ tensors)
        found = [
            f"it has other {what} than its release: {', '.join(map(repr, names))}"
            for what, names in zip(("metadata", "tensors"), strange, strict=True)
            if names
        ]
        found += [
            f"its {name} are not what its release would write"
            for name, text in metadata.items()
            if self.metadata.get(name, text) != text
        ]
        return found + [
            f"its numbers {name} are not what its release would write"
            for name, held in self.tensors.items()
            if name in tensors and (held.dtype != tensors[name].dtype or not torch.equal(held, tensors[name]))
        ]


def _metadata(release: Release) -> dict[str, str]:
    """Return the metadata of a release's file, without the checksum."""
    return {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "class": release.kind,
        "facts": json.dumps(release.facts()),
        "schema": json.dumps(release.schema.to_dict()),
        "privacy": release.privacy.to_json(None),
    }


def save_release(release: Release, path: str | Path, overwrite: bool = False) -> Path:
    """Write a release to ``path`` with its checksum, completely or not at all.

    Args:
        release: The release.
        path: File to write; its folder must exist.
        overwrite: Whether it may take the place of a file that is there.

    Returns:
        The path written.

    Raises:
        InputError: The file is there, or its folder is not.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"path = {path}: the folder {path.parent} does not exist; make it first")
    if not overwrite:
        refuse_existing(path, "path", "give overwrite=True")
    data = ReleaseFile.of(release, path).to_bytes()
    with atomic_path(path, PUBLIC) as temporary:
        temporary.write_bytes(data)
    return path


def check_loads(release: Release) -> None:
    """Refuse, before anybody holds it, a release that could not be read back from its file.

    One that no file can hold, for a class of the user's in it has no name there, stays in memory; ``save`` refuses it.

    Args:
        release: As a learner made it.

    Raises:
        VerificationError: It could not; says why, and what to do.
    """
    try:
        file = ReleaseFile.of(release, Path(RELEASE_FILE))
        beside = file.problems(file.build())
        if beside:
            raise ValueError("; ".join(beside))
    except Exception as error:  # whatever an added class makes it hold
        if isinstance(error, InputError) and not isinstance(error, ReleaseFileError):
            return
        cause = error.__cause__ or error
        raise VerificationError(
            f"the release would not load from its file ({type(cause).__name__}: {cause}); {unreleased(release)}"
        ) from cause


def unreleased(release: Release) -> str:
    """Return what a release's maker is told where it does not load, or does not verify."""
    return (
        "nothing is released, and the ledger counts what was spent; report this line: mechanism "
        f"{release.privacy.mechanism} of torchdpcate {release.privacy.versions['torchdpcate']}, or a class that was "
        "added to it, makes releases that cannot be checked"
    )


def load_release(path: str | Path) -> Release:
    """Read a release; the object answers ``effect(X)`` whatever mechanism made it.

    Args:
        path: A file written by ``Release.save``, or the run folder that holds it.

    Raises:
        ReleaseFileError: No such file, a damaged or changed one, one of another format, or not a release.

    Example:
        >>> load_release("nowhere.safetensors")
        Traceback (most recent call last):
        torchdpcate.errors.ReleaseFileError: nowhere.safetensors: no such file
    """
    file = read_release_file(path)
    if file.fault is not None:
        raise ReleaseFileError(f"{file.path}: changed or damaged, {file.fault}; request the file again")
    release = file.build()
    beside = file.problems(release)
    if beside:
        raise ReleaseFileError(f"{file.path}: changed, {'; '.join(beside)[:_MOST_SAID]}; request the file again")
    return release


def read_release_file(path: str | Path) -> ReleaseFile:
    """Read a release file without making anything of it, or comparing its checksum.

    Args:
        path: A file written by ``Release.save``, or the run folder that holds it.

    Raises:
        ReleaseFileError: No such file, a damaged one, one of another format, or not a release.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = release_path(path)
    if not os.path.isfile(path):
        raise ReleaseFileError(f"{path}: no such file")
    try:
        data = path.read_bytes()
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, OSError, KeyError) as error:  # the last of a type of numbers that torch has not
        raise ReleaseFileError(f"{path}: not a release, or damaged ({error}); request the file again") from None
    _check_format(path, metadata)
    file = ReleaseFile(path, metadata, tensors)
    if file.to_bytes() != data:
        raise ReleaseFileError(f"{path}: not written as releases are: {_STOWED}; request the file again")
    return file


def release_path(path: str | Path) -> Path:
    """Return the release file that a path means: itself, or the one in a run folder or in its ``release/``.

    Raises:
        ReleaseFileError: A folder without one; that of a sweep has one in each run.

    Example:
        >>> release_path("nowhere.safetensors").name
        'nowhere.safetensors'
    """
    path = Path(path)
    if not os.path.isdir(path):
        return path
    for place in (path / "release" / RELEASE_FILE, path / RELEASE_FILE):
        if os.path.lexists(place):
            return place
    runs = sorted(place.parent.parent.name for place in path.glob(f"*/release/{RELEASE_FILE}"))
    if runs:
        raise ReleaseFileError(f"{path}: a folder of {len(runs)} runs; give one of them, such as {path / runs[0]}")
    raise ReleaseFileError(f"{path}: a folder without a release; give a release file or the folder of a finished run")


@cache
def kinds() -> Mapping[str, type[Release]]:
    """Return every class of releases by its kind; a file chooses among them, and none is imported for its sake."""
    for module in iter_modules(torchdpcate.release.__path__):
        import_module(f"torchdpcate.release.{module.name}")
    return RELEASES


def _require_numbers(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} holds what is no number")


def _read(text: str) -> dict[str, Any]:
    """A JSON object in which every entry stands once: two readers must not see two statements."""
    result = json.loads(text, object_pairs_hook=_once)
    if not isinstance(result, dict):
        raise TypeError("not an object")
    return result


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an entry is there twice")
    return result


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ReleaseFileError(f"{path}: a safetensors file, but not a torchdpcate release")
    found = metadata.get("format_version", "")
    if found != str(FORMAT_VERSION):
        raise ReleaseFileError(
            f"{path}: format version {plain(found)[:20]!r} is not the one that this torchdpcate reads "
            f"({FORMAT_VERSION}); use the version of torchdpcate that wrote it"
        )
