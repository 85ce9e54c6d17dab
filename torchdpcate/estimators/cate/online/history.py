"""The history of an online service: what was answered is on the disk before an answer leaves.

Two files. ``history.bin`` begins with a digest of the run and grows by entries, each a block of rows with the SHA-256
of everything before and in it. ``head.bin`` says how many entries and bytes there are, and the digest of the last. It
has two slots, written in turn and each with a checksum, so that one of them is always intact.

Order of an answer, all of it under a lock: the entry is written and flushed to the disk; then the head; then the
answer leaves. What follows from it, wherever a process or the machine stops:

- An entry that the head does not count was never answered. If it is complete it is kept, for its noise is as good as
  any; if it is torn it is dropped.
- Every entry that was answered is counted by the head. Where entries are missing, changed, or of another run, the
  digests do not agree, and nothing is answered: noise drawn anew for an old query would be a second release.
- A slot of the head that was torn, or damaged, does not match its checksum. The other one is behind, and what it does
  not count is complete, so it is taken up.

Digests show damage, not forgery; and a copy of the complete folder, put back later, agrees with itself. A counter
outside the folder shows it (``Counter``), written after the head and before the answer leaves. Without one, never run a
service from a copy, nor from a backup that is older than its last answer: each such run is a second release.

A counter is outside the folder of an online service, so that a folder that was put back is recognised.
A copy of a complete folder agrees with itself, and so does a backup. They cannot change a file elsewhere that states
how far the history had come, and its digest there. It is on the disk before an answer leaves. So of any
number of copies, at whatever time they are put back, only one goes on: the others lack entries, or have others.

Whoever puts the counter back together with the folder is not noticed; keep it where backups and copies of the folder do
not reach, and where its owner alone may write.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from torchdpcate._files import PRIVATE, write_text
from torchdpcate.errors import InputError, ReleaseFileError

_FORMAT, _VERSION = "torchdpcate counter", 1
_DIGEST = 32  # bytes


class HistoryEnd(NamedTuple):
    """How far a history has come.

    Attributes:
        entries: Their number.
        end: Bytes of the history.
        digest: Of its last entry, over everything before.
    """

    entries: int
    end: int
    digest: bytes

    def pack(self, run: bytes) -> bytes:
        """Return it as a slot has it, with a checksum."""
        body = _SLOT.pack(*self)
        return body + hashlib.sha256(run + body).digest()


class Counter:
    """The file of one service's counter, which only ever goes forward.

    Args:
        path: Where it is; its folder must exist.
        run: Identifier of the run, in hexadecimal digits.
        folder: The service's folder, in which it may not be.

    Attributes:
        lock: A context in which every other process that uses the counter waits, also from a copy of the folder.

    Raises:
        InputError: It would be in the service's own folder, and be put back with it.
    """

    def __init__(self, path: Path, run: str, folder: Path) -> None:
        self.path, self._run = Path(os.path.realpath(path)), run
        inside = Path(os.path.realpath(folder))
        if inside == self.path.parent or inside in self.path.parents:
            raise InputError(
                f"counter = {path}: is in the service's folder, and would be put back with it; choose another"
            )
        self.lock = FileLock(f"{self.path}.lock", mode=PRIVATE)

    def create(self, head: HistoryEnd) -> None:
        """Write the counter of a new service.

        Raises:
            InputError: The file is there already, or cannot be written.
        """
        if os.path.lexists(self.path):
            raise InputError(f"counter = {self.path}: exists already; each service has a counter of its own")
        try:
            self.advance(head)
        except OSError as error:
            raise InputError(f"counter = {self.path}: cannot be written ({error.strerror}); choose another") from None

    def advance(self, head: HistoryEnd) -> None:
        """Write how far the history has come; on return it is on the disk.

        Raises:
            OSError: It could not be written.
        """
        kept = {"run": self._run, "entries": head.entries, "end": head.end, "digest": head.digest.hex()}
        write_text(self.path, json.dumps({"format": _FORMAT, "version": _VERSION, **kept}, indent=1), PRIVATE)

    def read(self) -> HistoryEnd:
        """Return how far the history had come when the last answer left.

        Raises:
            ReleaseFileError: The file is missing, damaged, or of another run.
        """
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if (kept["format"], kept["version"], kept["run"]) != (_FORMAT, _VERSION, self._run):
                raise ValueError("it is of another run or format")
            head = HistoryEnd(int(kept["entries"]), int(kept["end"]), bytes.fromhex(kept["digest"]))
            if head.entries < 0 or head.end < len(head.digest) or len(head.digest) != _DIGEST:
                raise ValueError("its numbers do not belong together")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ReleaseFileError(
                f"counter {self.path}: cannot be read ({why}); nothing is answered, because it is not known whether "
                "the service's folder is its newest"
            ) from None
        return head


HISTORY_FILE, HEAD_FILE, LOCK_FILE = "history.bin", "head.bin", "lock"

_COUNT = struct.Struct("<Q")
_SLOT = struct.Struct("<QQ32s")  # entries, bytes of the history, digest of the last entry
_DIGEST = 32
_FLUSH = getattr(os, "fdatasync", os.fsync)  # without the file's times, which are not needed
_SLOT_BYTES = _SLOT.size + _DIGEST
_PUT_BACK = "its counter has seen other answers than are in it, so the folder is a copy or was put back"


class History:
    """Rows of numbers that are added and never change, for one run.

    ``new_rows`` and ``append`` are to be called while ``lock`` is held, the first before the second.

    Args:
        folder: Where the files are.
        run: Identifier of the run; a history of another one is refused.
        width: Numbers a row.
        counter: Recognises a folder that was put back; None where nothing does.
    """

    def __init__(self, folder: Path, run: str, width: int, counter: Counter | None = None) -> None:
        self.folder = Path(folder)
        self._run = hashlib.sha256(f"torchdpcate history {run} {width}".encode()).digest()
        self._width = width
        self._counter, self._lock = counter, FileLock(self.folder / LOCK_FILE, mode=PRIVATE)
        self._seen, self._slot = HistoryEnd(0, _DIGEST, self._run), 0

    @property
    @contextmanager
    def lock(self) -> Iterator[None]:
        """A context in which every other asker waits, with a counter those of a copied folder too."""
        with self._lock:
            if self._counter is None:
                yield
            else:
                with self._counter.lock:
                    yield

    def create(self) -> None:
        """Write an empty history; the folder is there and holds none."""
        if self._counter is not None:
            self._counter.create(self._seen)
        for name, data in ((HISTORY_FILE, self._run), (HEAD_FILE, self._seen.pack(self._run) * 2)):
            (self.folder / name).touch(PRIVATE, exist_ok=False)
            _write(self.folder / name, data, 0)

    def new_rows(self) -> np.ndarray:
        """Return the rows that were added since the last call, by whomever, float64 [k, width].

        Raises:
            ReleaseFileError: Entries are missing, changed or of another run; nothing may be answered.
        """
        head, size, counted = self._head(), self._size(), self._counted()
        if head == self._seen and size == head.end:
            rows = np.empty((0, self._width))
        else:
            if size < head.end or head.entries < self._seen.entries:
                raise self._refusal("entries are missing")
            rows, reached = self._entries(self._seen, head.end)
            if reached != head:
                raise self._refusal("its entries are not the ones that were written")
            self._seen = head
            rows = np.concatenate([rows, self._take_up(size)])
        if counted is not None and self._counter is not None:
            if counted.entries > self._seen.entries:
                raise self._refusal(_PUT_BACK)
            if counted.entries < self._seen.entries:  # stopped before it was counted: it never left
                self._counter.advance(self._seen)
        return rows

    def _counted(self) -> HistoryEnd | None:
        """Return how far the counter has seen this history come; refuse a history that is not that one."""
        if self._counter is None:
            return None
        counted = self._counter.read()
        if self._bytes(counted.end - _DIGEST, counted.end) != counted.digest:
            raise self._refusal(_PUT_BACK)
        return counted

    def append(self, rows: np.ndarray) -> None:
        """Add rows [k, width]; on return they are on the disk, and an answer may leave.

        Raises:
            OSError: They could not be written. No answer may leave, and what is in memory must be read anew.
        """
        body = _COUNT.pack(len(rows)) + np.ascontiguousarray(rows, dtype="<f8").tobytes()
        digest = hashlib.sha256(self._seen.digest + body).digest()
        _write(self.folder / HISTORY_FILE, body + digest, self._seen.end)
        self._advance(HistoryEnd(self._seen.entries + 1, self._seen.end + len(body) + _DIGEST, digest))

    def _advance(self, head: HistoryEnd) -> None:
        """Count what is on the disk, in the slot that is not the present head's."""
        slot = 1 - self._slot
        _write(self.folder / HEAD_FILE, head.pack(self._run), slot * _SLOT_BYTES)
        if self._counter is not None:
            self._counter.advance(head)
        self._seen, self._slot = head, slot

    def _take_up(self, size: int) -> np.ndarray:
        """Keep the complete entries beyond the head, and drop torn ones."""
        if size == self._seen.end:
            return np.empty((0, self._width))
        rows, reached = self._entries(self._seen, size)
        # written again: a flush that failed may have left them in memory alone
        complete = self._bytes(self._seen.end, reached.end)
        _write(self.folder / HISTORY_FILE, complete, self._seen.end, cut=True)
        if reached != self._seen:
            self._advance(reached)
        return rows

    def _entries(self, start: HistoryEnd, end: int) -> tuple[np.ndarray, HistoryEnd]:
        """Return the rows of the complete entries from ``start`` to ``end`` bytes, and where they end."""
        if self._bytes(0, _DIGEST) != self._run:
            raise self._refusal("it is of another run")
        data = memoryview(self._bytes(start.end, end))
        head, at, found = start, 0, []
        while at + _COUNT.size <= len(data):
            stop = at + _COUNT.size + 8 * self._width * _COUNT.unpack_from(data, at)[0]
            if stop + _DIGEST > len(data):
                break
            digest = hashlib.sha256(head.digest)
            digest.update(data[at:stop])
            if digest.digest() != data[stop : stop + _DIGEST]:
                break
            found.append(data[at + _COUNT.size : stop])
            at = stop + _DIGEST
            head = HistoryEnd(head.entries + 1, start.end + at, digest.digest())
        return np.frombuffer(b"".join(found), dtype="<f8").reshape(-1, self._width), head

    def _head(self) -> HistoryEnd:
        """Return the head, of the intact slot that counts most."""
        data = self._bytes(0, 2 * _SLOT_BYTES + 1, HEAD_FILE)
        if len(data) != 2 * _SLOT_BYTES:
            raise self._refusal(f"{HEAD_FILE} is damaged")
        slots = [data[:_SLOT_BYTES], data[_SLOT_BYTES:]]
        heads = {i: HistoryEnd(*_SLOT.unpack(slot[: _SLOT.size])) for i, slot in enumerate(slots)}
        intact = {i: head for i, head in heads.items() if head.pack(self._run) == slots[i]}
        if not intact:
            raise self._refusal(f"{HEAD_FILE} is damaged or of another run")
        self._slot = max(intact, key=lambda i: intact[i].entries)
        return intact[self._slot]

    def _size(self) -> int:
        try:
            return (self.folder / HISTORY_FILE).stat().st_size
        except OSError as error:
            raise self._refusal(f"cannot be read ({error.strerror})") from None

    def _bytes(self, start: int, end: int, name: str = HISTORY_FILE) -> bytes:
        try:
            with open(self.folder / name, "rb") as file:
                file.seek(start)
                return file.read(end - start)
        except OSError as error:
            raise self._refusal(f"{name} cannot be read ({error.strerror})") from None

    def _refusal(self, why: str) -> ReleaseFileError:
        return ReleaseFileError(
            f"{self.folder / HISTORY_FILE}: {why}; nothing is answered, because new noise for an old query would be a "
            "second release: put back the newest files of this run"
        )


def _write(path: Path, data: bytes, at: int, cut: bool = False) -> None:
    """Write at a place of a file that is there, end the file behind it if ``cut``, and flush it to the disk."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        while data:
            data = data[file.write(data) :]
        if cut:
            file.truncate()
        _FLUSH(file.fileno())
