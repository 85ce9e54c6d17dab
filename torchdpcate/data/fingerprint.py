"""Whether two tables hold the same records, and whether this process has fitted a learner to them before."""

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdpcate.data._arrays import is_frame, to_float64, to_matrix
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.shared_ledger import FileFingerprint

_ROWS = 4_096  # at a time, so that what is worked out of them stays in a processor's cache
_MOST = 10_000  # digests
_key = secrets.token_bytes(32)
_used: dict[int, bool] = {}  # digests, the oldest first, and whether the user was told


def fingerprint(X: Any, A: Any, Y: Any, schema: TableSchema | None = None) -> str:
    """Return the SHA-256 of records as a selector sees them, whatever their order, precision and coding of actions.

    A policy made from records carries their fingerprint, and a selector refuses one with its own. It detects the same
    records, not a part of them, nor records that were clipped since. It is the curator's: a conjecture of all the
    records can be checked by it.

    Args:
        X: Covariates [n, q], encoded; or with a schema a frame of its columns.
        A: Treatment [n]; its values count by their order alone.
        Y: Outcome [n].
        schema: Encodes the covariates and puts them in order; needed for a frame.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: A frame without a schema, other shapes, or what is no number.

    Example:
        >>> one = fingerprint([[0.1], [0.2]], [0, 1], [1.0, 2.0])
        >>> one == fingerprint([[0.2], [0.1]], [2, 1], [2.0, 1.0])
        True
    """
    if schema is None and is_frame(X):
        raise InputError("X is a frame: give schema, so that its columns are encoded and ordered as a selector does it")
    x = to_matrix(X) if schema is None else schema.matrix(X)
    columns = [to_float64(value, name).reshape(-1, 1) for value, name in ((A, "treatment"), (Y, "outcome"))]
    if not len(x) == len(columns[0]) == len(columns[1]):
        raise InputError(
            f"X, A and Y have {len(x)}, {len(columns[0])} and {len(columns[1])} records; they must be as many"
        )
    columns[0] = torch.unique(columns[0], return_inverse=True)[1].double()
    # float32 numbers and their float64 copies are the same records; adding zero makes -0.0 the number 0.0
    table = np.concatenate([part.cpu().numpy() for part in (x, *columns)], 1).astype("<f4") + np.float32(0)
    rows = table[np.lexsort(table.T)]
    return hashlib.sha256(f"{rows.shape}".encode() + rows.tobytes()).hexdigest()


def file_fingerprint(path: str | Path | Sequence[str | Path], ends: int | None = None) -> FileFingerprint:
    """Return the SHA-256 of the content of files, whatever their names, places and order.

    It is the same for every choice of columns, and another one once a file is written anew in another way. Like
    ``fingerprint`` it is the curator's.

    Args:
        path: A file, a folder, of which all files count, or a list of them.
        ends: How many bytes of a file's beginning, and of its end, count beside its size; None for all of it.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: There is none of this name, or no file in it.
    """
    given = [path] if isinstance(path, str | Path) else list(path)
    files: list[Path] = []
    for place in map(Path, given):
        found = sorted(below for below in place.rglob("*") if below.is_file()) if place.is_dir() else [place]
        if not found or not all(file.is_file() for file in found):
            raise InputError(f"path = {place}: there is no such file; give the files of the records")
        files += found
    digests = "\n".join(sorted(_digest(file, ends) for file in files))
    return FileFingerprint(hashlib.sha256(digests.encode()).hexdigest())


def _digest(path: Path, ends: int | None) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if ends is None or size <= 2 * ends:
            return hashlib.file_digest(file, "sha256").hexdigest()
        first = file.read(ends)
        file.seek(-ends, os.SEEK_END)
        return hashlib.sha256(f"{size}".encode() + first + file.read(ends)).hexdigest()


def keyed_digest(records: CausalData | RecordStream) -> int:
    r"""Return a digest of records in whatever order and precision; of a stream, of n and its first records.

    .. math:: n + \sum_i h(x_i, a_i, y_i) \mod 2^{64}

    with h a multilinear hash of a record's float32 bits with a random key, mixed.

    Args:
        records: Within their bounds.
    """
    first = next(iter(records)) if isinstance(records, RecordStream) else records
    rows = _ROWS if isinstance(records, RecordStream) else first.n
    table = [first.x[:rows], first.a[:rows, None], first.y[:rows, None]]
    width = first.x.shape[1] + 2
    keys = torch.from_numpy(np.random.default_rng(list(_key)).integers(-(1 << 63), (1 << 63) - 1, width + 2) | 1)
    total = records.n * int(keys[-1])
    for parts in zip(*(part.split(_ROWS) for part in table), strict=True):
        # adding zero makes -0.0 the number 0.0
        bits = (torch.cat([part.cpu().float() for part in parts], 1) + 0.0).view(torch.int32)
        mixed = (bits * keys[:width]).sum(1)
        mixed = (mixed ^ (mixed >> 31)) * keys[width]
        total += int((mixed ^ (mixed >> 29)).sum())
    return total % (1 << 64)


def used_again(digest: int, told: bool = True) -> bool:
    """Note a fit; return whether there was one to the same records before, of which nobody was told yet.

    Args:
        digest: Of the records.
        told: Whether the user is told now.
    """
    again = _used.get(digest)
    _used[digest] = (again or told) if again is not None else False
    if len(_used) > _MOST:
        del _used[next(iter(_used))]
    return told and again is False
