"""Files that are written completely or not at all, and who may read them."""

import errno
import hashlib
import os
import platform
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from torchdpcate.errors import InputError

PRIVATE, PUBLIC = 0o600, 0o644
"""Permissions of the curator's files, and of what is released."""

NO_ROOM = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "ENOTDIR", "EISDIR", "ENAMETOOLONG", "ELOOP")
    if hasattr(errno, name)
)
"""What the system says where a file cannot be written for want of space or permission: the user's to mend."""

_OTHERS = 0o077
_POSIX = os.name == "posix"
_LEFT = re.compile(r"\..*\.tdp-([0-9a-f]{8})-([0-9]+)-[0-9a-f]{12}(\..*)?", re.DOTALL)
_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")  # how Rust's libraries report the system's errors
_RESERVED = ".reserved"
_BLOCK = 1 << 20
_swept: set[tuple[int, str]] = set()


@contextmanager
def atomic_path(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place if the block succeeds.

    The file is flushed to the disk before it is renamed, and its folder after, so that neither a crash nor
    a full disk leaves half a file under the final name. What a killed process left of such files in the folder is
    removed.

    Args:
        path: The file to write; its folder must exist.
        mode: Its permissions, from before anything is written; None for those of any new file.

    Raises:
        OSError: It cannot be written.
    """
    _sweep(path.parent)
    ending = path.suffix or ".tmp"
    temporary = path.with_name(f".{path.name[:100]}.tdp-{_place()}-{os.getpid()}-{secrets.token_hex(6)}{ending}")
    try:
        # the owner's alone at first; then whatever was requested, which the umask cannot narrow
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else PRIVATE)
        try:
            if mode is not None and _POSIX:
                os.fchmod(descriptor, mode)
            final = stat.S_IMODE(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
        yield temporary
        os.chmod(temporary, final)  # some libraries put a file of their own in its place
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except Exception as error:
        found = _OS_ERROR.search(str(error))
        if isinstance(error, OSError) or found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file, completely or not at all; ``mode`` is that of ``atomic_path``."""
    with atomic_path(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def refuse_existing(path: str | Path, what: str, remedy: str) -> None:
    """Refuse to write a file that is there already.

    Raises:
        InputError: It is there; ends in the remedy.
    """
    if os.path.lexists(path):
        raise InputError(f"{what} = {path}: exists already; choose another name, or {remedy} to write it anew")


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter, or check that one which is there is such a folder.

    Raises:
        InputError: Others may enter it, or it is another user's.
        OSError: It cannot be made.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    check_private(path)


def state_folder() -> Path:
    """Return the user's own: ``$XDG_STATE_HOME/torchdpcate``, else where the system keeps a user's state."""
    from platformdirs import user_state_path

    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given) / "torchdpcate" if os.path.isabs(given) else user_state_path("torchdpcate", appauthor=False)


def own_state(part: str) -> Path:
    """Return a folder in the user's state that its owner alone may enter; one that is not there is made.

    Raises:
        InputError: It cannot be made, or is another user's.
    """
    place = state_folder()
    try:
        for folder in (place, place / part):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)  # one that is there may be open to others
            check_private(folder)
    except OSError as error:
        why = f"cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder of yours that lasts"
        raise InputError(f"{place}: {why}") from error
    return place / part


def check_private(path: Path) -> None:
    """Refuse a folder of the curator's that others may enter.

    Raises:
        InputError: They may, or it is another user's, or no folder.
    """
    if not path.is_dir():
        raise InputError(f"folder = {path}: no folder; choose another")
    found = path.stat()
    if _POSIX and found.st_uid != os.geteuid():
        raise InputError(f"folder = {path}: another user's, who could read what is written into it; choose another")
    if _POSIX and found.st_mode & _OTHERS:
        raise InputError(f"folder = {path}: others can read it, and what it holds is the curator's; chmod 700 {path}")


def publish(folder: Path) -> None:
    """Let everybody read a folder and its files, whatever the umask."""
    if _POSIX:
        folder.chmod(0o755)
        for path in folder.iterdir():
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                path.chmod(PUBLIC)


def seal(folder: Path) -> None:
    """Let only their owner read the files of a folder, and of those in it."""
    for path in folder.rglob("*") if _POSIX else ():
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else PRIVATE)


@contextmanager
def reserved(folder: Path, size: int) -> Iterator[None]:
    """Hold space on the disk of a folder while the block runs, so that what follows can be written.

    The folder is made, and removed again with nothing in it if the block fails. Filesystems that copy on write may
    promise less.

    Args:
        folder: The folder to be written into afterwards; it may be there.
        size: Bytes.

    Raises:
        OSError: There is not that much space, or the folder cannot be written.
    """
    there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{_RESERVED}.tdp-{_place()}-{os.getpid()}-{secrets.token_hex(6)}.tmp"
    try:
        _fill(place, size)
        try:
            yield
        finally:
            place.unlink()
    except BaseException:
        place.unlink(missing_ok=True)
        if not there:
            with suppress(OSError):
                folder.rmdir()
        raise


def _fill(path: Path, size: int) -> None:
    """Write a file of zeros and flush it to the disk."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            for start in range(0, size, _BLOCK):
                os.write(descriptor, bytes(min(_BLOCK, size - start)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that are no more; once a process and folder."""
    key = (os.getpid(), os.path.abspath(folder))
    if key in _swept:
        return
    _swept.add(key)
    with suppress(OSError):  # whatever hinders this hinders the writing too, which says so
        for entry in os.scandir(folder):
            found = _LEFT.fullmatch(entry.name)
            if found is not None and found[1] == _place() and not _alive(int(found[2])):
                with suppress(OSError):
                    os.unlink(entry.path)


@cache
def _place() -> str:
    """Return what distinguishes this machine, and this container, from others that may share a disk with it."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
