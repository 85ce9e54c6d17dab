"""Files in sqlite of lines that are only ever added; of copies of a file, the newest one alone goes on."""

import errno
import hashlib
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchdpcate._files import PRIVATE, private_folder, state_folder
from torchdpcate.errors import InputError

_SCHEMA = "SELECT sql FROM sqlite_master"
_MARK = re.compile("^([0-9]{1,18}) ([0-9a-f]{64})$", re.MULTILINE)
_PATIENCE = 60.0  # seconds for which another process may hold the file
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

alone = threading.RLock()
"""Held by the one thread of a process that uses such a file. Forks wait for it: a connection must not go into one."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=alone.acquire, after_in_parent=alone.release, after_in_child=alone.release)


def chained(digest: str, line: str | bytes) -> str:
    """Return the SHA-256 of the digest of all lines before and of this one."""
    return hashlib.sha256(digest.encode() + (line.encode() if isinstance(line, str) else line)).hexdigest()


@dataclass(frozen=True)
class Chain:
    """A file of lines, each with a number and the digest of all lines so far.

    How far a file has come is noted in the user's state folder too, so that a copy that was put back is recognised.

    Attributes:
        path: The file, without links.
        kind: What it is, in one word: also the name of its table.
        lost: What is not known, or would happen, without the newest file.
    """

    path: Path
    kind: str
    lost: str

    @property
    def table(self) -> str:
        """The statement that makes the table."""
        return f"CREATE TABLE {self.kind} (revision INTEGER PRIMARY KEY, line TEXT NOT NULL, digest TEXT NOT NULL)"

    @contextmanager
    def database(self, make: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file for one use, by one thread; what is not committed is undone.

        Args:
            make: Whether a file that is not there is made, with its folder.

        Raises:
            InputError: It is missing, damaged, or held by another process.
            OSError: It cannot be read or written.
        """
        path = self.path
        if make and not path.parent.exists():
            private_folder(path.parent)
        if make:
            path.touch(PRIVATE)
        if not os.path.isfile(path):  # nor a name that no file can have
            raise InputError(f"{self.kind} {path}: there is no such file; restore it, {self.lost}")
        try:
            uri = f"{path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, timeout=_PATIENCE, isolation_level=None, uri=True)) as database:
                database.execute("PRAGMA synchronous = EXTRA")
                yield database
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in _NO_ROOM:
                raise OSError(errno.ENOSPC, str(error), str(path)) from error
            if code == sqlite3.SQLITE_BUSY:
                raise InputError(
                    f"{self.kind} {path}: another process has held it for {_PATIENCE:g} seconds; end that process, or "
                    f"keep the {self.kind} on a disk of this machine, where locks work"
                ) from error
            raise self.damaged(error) from error

    def is_new(self, database: sqlite3.Connection) -> bool:
        """Return whether the file holds nothing yet."""
        return not database.execute(_SCHEMA).fetchall()

    def require_table(self, database: sqlite3.Connection) -> None:
        """Refuse a file with another table, or with anything else: a view may never end."""
        if database.execute(_SCHEMA).fetchall() != [(self.table,)]:
            raise InputError(f"it is empty, or holds no {self.kind}")

    def require_newest(self, database: sqlite3.Connection, identity: str) -> None:
        """Refuse a file without the last line that was noted in the user's state folder.

        Args:
            database: The open file.
            identity: Random name of what it holds, which a copy shares.
        """
        mark = self._mark(identity)
        marks = _MARK.findall(mark.read_text(encoding="ascii", errors="replace")) if mark.exists() else []
        revision, digest = max(((int(revision), digest) for revision, digest in marks), default=(0, ""))
        kept = database.execute(f"SELECT digest FROM {self.kind} WHERE revision = ?", (revision,)).fetchone()
        if digest and kept != (digest,):
            raise InputError(
                f"{self.kind} {self.path}: is not the one that was changed last (revision {revision} in {mark}), but "
                f"an older one or another copy; restore the newest, {self.lost}"
            )

    def add(self, database: sqlite3.Connection, identity: str, revision: int, line: str | bytes, digest: str) -> None:
        """Add a line and end the transaction; on return it is on the disk, and noted.

        The folder of notes is the caller's to make: ``own_state`` refuses before anything is begun.

        Raises:
            OSError: It cannot be written. If the note alone could not be, the line is in the file.
        """
        with self._mark(identity).open("a", encoding="ascii") as mark:
            database.execute(f"INSERT INTO {self.kind} VALUES (?, ?, ?)", (revision, line, digest))
            database.execute("COMMIT")
            mark.write(f"{revision} {digest}\n")

    def _mark(self, identity: str) -> Path:
        return state_folder() / f"{self.kind}s" / identity

    def damaged(self, error: Exception) -> InputError:
        """Return the refusal of a file that cannot be read as it was written."""
        why = " ".join(str(error).split())[:200]
        return InputError(f"{self.kind} {self.path}: damaged or of another format ({why}); restore it, {self.lost}")
