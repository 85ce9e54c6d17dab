"""Release files: safetensors with JSON metadata, read without ever running code from them."""

import json
from pathlib import Path
from typing import Any

import torch

from torchdpcate._files import atomic_path
from torchdpcate.data import TableSchema
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.release.release import RELEASES, Release
from torchdpcate.release.statement import PrivacyStatement

FORMAT = "torchdpcate-release"
FORMAT_VERSION = 1


def save_release(release: Release, path: str | Path) -> Path:
    """Write a release to ``path``, whole or not at all.

    Args:
        release: The release.
        path: File to write; its folder must exist.

    Returns:
        The path written.

    Raises:
        InputError: The folder does not exist.
    """
    from safetensors.torch import save_file

    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"path = {path}: the folder {path.parent} does not exist; make it first")
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "class": release.kind,
        "facts": json.dumps(release.facts()),
        "schema": json.dumps(release.schema.to_dict()),
        "privacy": json.dumps(release.privacy.to_dict()),
    }
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in release.tensors().items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
    return path


def load_release(path: str | Path) -> Release:
    """Read a release; the object answers ``effect(X)`` whatever mechanism made it.

    Args:
        path: A file written by ``Release.save``.

    Raises:
        ReleaseFileError: No such file, a damaged one, one of a newer format, or not a release.

    Example:
        >>> load_release("nowhere.safetensors")
        Traceback (most recent call last):
        torchdpcate.errors.ReleaseFileError: nowhere.safetensors: no such file
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ReleaseFileError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise ReleaseFileError(f"{path}: not a release, or damaged ({error}); ask for the file again") from None
    try:
        return _build(metadata, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ReleaseFileError(
            f"{path}: the release's contents do not fit together ({type(error).__name__}); ask for the file again"
        ) from error


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ReleaseFileError(f"{path}: a safetensors file, but not a torchdpcate release")
    found = metadata.get("format_version", "")
    if not found.isdigit():
        raise ReleaseFileError(f"{path}: format version {found!r} is not a number; ask for the file again")
    if int(found) > FORMAT_VERSION:
        raise ReleaseFileError(
            f"{path}: format version {found} is newer than this torchdpcate reads ({FORMAT_VERSION}); upgrade it"
        )


def _build(metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> Release:
    facts: dict[str, Any] = json.loads(metadata["facts"])
    schema = TableSchema.from_dict(json.loads(metadata["schema"]))
    privacy = PrivacyStatement.from_dict(json.loads(metadata["privacy"]))
    return RELEASES[metadata["class"]].build(tensors, facts, schema, privacy)
