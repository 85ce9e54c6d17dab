"""Checksums: one of what a release file holds, and ``SHA256SUMS`` of the files beside it.

A checksum is no signature. It detects damage, and a change after which it was not recomputed; against anybody who
did, compare it with one that the curator published elsewhere.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate._files import PUBLIC, write_text
from torchdpcate.errors import InputError, VerificationError

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
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


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
    write_text(target, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), PUBLIC)
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


def _read_sums(path: Path) -> dict[str, str]:
    sums = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VerificationError(f"{path}: not a list of checksums ({error})") from None
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] in sums or not _is_listed(found[2]):
            raise VerificationError(f"{path}: line {number} is not the checksum of a file beside it, listed once")
        sums[found[2]] = found[1]
    return sums
