"""A counter outside the folder of an online service, by which a folder that was put back is recognised.

A copy of a complete folder agrees with itself, and so does a backup. They cannot change a file elsewhere that states
how far the history had come, and its digest there. It is on the disk before an answer leaves. So of any
number of copies, at whatever time they are put back, only one goes on: the others lack entries, or have others.

Whoever puts the counter back together with the folder is not noticed; keep it where backups and copies of the folder do
not reach, and where its owner alone may write.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from torchdpcate._files import PRIVATE, write_text
from torchdpcate.errors import InputError, ReleaseFileError

_FORMAT, _VERSION = "torchdpcate counter", 1
_DIGEST = 32  # bytes


class Head(NamedTuple):
    """How far a history has come.

    Attributes:
        entries: Their number.
        end: Bytes of the history.
        digest: Of its last entry, over everything before.
    """

    entries: int
    end: int
    digest: bytes


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

    def create(self, head: Head) -> None:
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

    def advance(self, head: Head) -> None:
        """Write how far the history has come; on return it is on the disk.

        Raises:
            OSError: It could not be written.
        """
        kept = {"run": self._run, "entries": head.entries, "end": head.end, "digest": head.digest.hex()}
        write_text(self.path, json.dumps({"format": _FORMAT, "version": _VERSION, **kept}, indent=1), PRIVATE)

    def read(self) -> Head:
        """Return how far the history had come when the last answer left.

        Raises:
            ReleaseFileError: The file is missing, damaged, or of another run.
        """
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if (kept["format"], kept["version"], kept["run"]) != (_FORMAT, _VERSION, self._run):
                raise ValueError("it is of another run or format")
            head = Head(int(kept["entries"]), int(kept["end"]), bytes.fromhex(kept["digest"]))
            if head.entries < 0 or head.end < len(head.digest) or len(head.digest) != _DIGEST:
                raise ValueError("its numbers do not belong together")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ReleaseFileError(
                f"counter {self.path}: cannot be read ({why}); nothing is answered, because it is not known whether "
                "the service's folder is its newest"
            ) from None
        return head
