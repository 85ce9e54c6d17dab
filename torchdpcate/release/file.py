"""Release files: safetensors with JSON metadata, read without ever running code from them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from torch import Tensor

import torchdpcate.release
from torchdpcate._files import PUBLIC, atomic_path, refuse_existing
from torchdpcate._text import plain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, ReleaseFileError, VerificationError
from torchdpcate.release.digest import DIGEST_KEY, release_digest
from torchdpcate.release.release import RELEASES, Release
from torchdpcate.release.statement import PrivacyStatement

RELEASE_FILE = "release.safetensors"
"""Name of the release's file in the folder ``release/`` of a run."""
FORMAT = "torchdpcate-release"
FORMAT_VERSION = 1


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
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "class": release.kind,
            "facts": json.dumps(release.facts()),
            "schema": json.dumps(release.schema.to_dict()),
            "privacy": json.dumps(release.privacy.to_dict()),
        }
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in release.tensors().items()}
        return cls(path, {**metadata, DIGEST_KEY: release_digest(metadata, tensors)}, tensors)

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
            release = kind.build(self.tensors, facts, TableSchema.from_dict(schema), statement)
            _require_nothing_else(self.tensors, release)
            return release
        except Exception as error:  # whatever Python raises on forged contents
            raise ReleaseFileError(
                f"{self.path}: the release's contents do not fit together ({type(error).__name__}); "
                "ask for the file again"
            ) from error


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
    from safetensors.torch import save_file

    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"path = {path}: the folder {path.parent} does not exist; make it first")
    if not overwrite:
        refuse_existing(path, "path", "give overwrite=True")
    file = ReleaseFile.of(release, path)
    with atomic_path(path, PUBLIC) as temporary:
        save_file(file.tensors, temporary, metadata=file.metadata)
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
        ReleaseFile.of(release, Path(RELEASE_FILE)).build()
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
        raise ReleaseFileError(f"{file.path}: changed or damaged, {file.fault}; ask for the file again")
    return file.build()


def read_release_file(path: str | Path) -> ReleaseFile:
    """Read a release file without making anything of it, or comparing its checksum.

    Args:
        path: A file written by ``Release.save``, or the run folder that holds it.

    Raises:
        ReleaseFileError: No such file, a damaged one, one of another format, or not a release.
    """
    from safetensors import SafetensorError, safe_open

    path = release_path(path)
    if not os.path.isfile(path):
        raise ReleaseFileError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise ReleaseFileError(f"{path}: not a release, or damaged ({error}); ask for the file again") from None
    return ReleaseFile(path, metadata, tensors)


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


def _require_nothing_else(tensors: dict[str, Tensor], release: Release) -> None:
    """Refuse tensors that the release would not write, and no reader would see."""
    strange = tensors.keys() ^ release.tensors().keys()
    if strange:
        raise ValueError(f"tensors that are none of its own, or are missing: {', '.join(sorted(strange))}")


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
