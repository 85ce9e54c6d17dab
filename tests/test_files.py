import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchdpcate._files import (
    PRIVATE,
    PUBLIC,
    atomic_path,
    check_private,
    private_folder,
    publish,
    reserved,
    seal,
    write_text,
)
from torchdpcate.errors import InputError


def test_success_replaces_the_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "f.txt"
    write_text(path, "old")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]


def test_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "f.txt"
    write_text(path, "old")

    def stop_halfway():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        stop_halfway()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]


@pytest.fixture
def umask():
    """Set the process's umask, and put it back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("wanted", [PRIVATE, PUBLIC])
def test_a_file_has_its_mode_before_it_has_contents_and_whatever_the_umask(tmp_path, umask, mask, wanted):
    umask(mask)
    with atomic_path(tmp_path / "f", wanted) as temporary:
        assert mode(temporary) == wanted
        temporary.unlink()  # as writers do that put a file of their own in its place
        temporary.write_text("text")
        temporary.chmod(0o640)
    assert mode(tmp_path / "f") == wanted


def test_a_private_folder_is_made_so_and_refused_if_others_may_enter(tmp_path, umask):
    umask(0)
    folder = tmp_path / "above" / "curator"
    private_folder(folder)
    assert mode(folder) == 0o700
    private_folder(folder)
    for open_to in (0o755, 0o750, 0o701, 0o704):
        folder.chmod(open_to)
        with pytest.raises(InputError, match=f"others can read it.*chmod 700 {folder}"):
            private_folder(folder)
    with pytest.raises(InputError, match="no folder"):
        check_private(tmp_path / "nowhere")


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "curator"
    private_folder(folder)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(InputError, match="another user's"):
        check_private(folder)


def test_what_is_published_and_what_is_sealed(tmp_path, umask):
    umask(0o077)
    for name in ("release", "curator"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "file").write_text("text")
        (tmp_path / name / "inner" / "file").write_text("text")
        (tmp_path / name / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("text")
    (tmp_path / "elsewhere").chmod(0o640)
    publish(tmp_path / "release")
    assert (mode(tmp_path / "release"), mode(tmp_path / "release" / "file")) == (0o755, PUBLIC)
    for path in (tmp_path / "curator").rglob("*"):
        if not path.is_symlink():
            path.chmod(0o777)
    seal(tmp_path / "curator")
    found = {path.name: mode(path) for path in (tmp_path / "curator").rglob("*") if not path.is_symlink()}
    assert found == {"inner": 0o700, "file": PRIVATE}
    assert mode(tmp_path / "elsewhere") == 0o640


_STOPPED = "from pathlib import Path; import os, sys; from torchdpcate._files import atomic_path\n"
_STOPPED += "with atomic_path(Path(sys.argv[1])) as path:\n    path.write_text('half'); os.kill(os.getpid(), 9)\n"


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_there(tmp_path):
    """What a living process writes, and what others called so, stays."""
    strangers = {".a.csv.tdp-12-x.csv", ".b.tdp-00000000-99999999-0123456789ab.tmp"}  # the second: another machine's
    for name in strangers:
        (tmp_path / name).write_text("somebody's")
    second = _STOPPED.replace("os.kill(os.getpid(), 9)", "print(1, flush=True); sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, "-c", second, str(tmp_path / "c")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()
        halves = {path.name for path in tmp_path.iterdir()} - strangers
        assert len(halves) == 1
        subprocess.run([sys.executable, "-c", _STOPPED, str(tmp_path / "a.csv")], check=False)
        assert len(list(tmp_path.iterdir())) == 4
        write_text(tmp_path / "new", "whole")
        assert {path.name for path in tmp_path.iterdir()} == strangers | halves | {"new"}
        alive.communicate()
    assert {path.name for path in tmp_path.iterdir()} == strangers | {"new", "c"}


def test_an_error_of_the_system_that_a_library_words_its_own_way_is_one(tmp_path):
    def write():
        with atomic_path(tmp_path / "f"):
            raise RuntimeError('I/O error: Os { message: "No space" } (os error 28)')

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "f"))


def test_reserved_space_is_there_while_it_is_needed_and_gone_afterwards(tmp_path):
    folder = tmp_path / "release"
    with reserved(folder, 3_000_000):
        (held,) = folder.iterdir()
        assert held.stat().st_size == 3_000_000
        assert held.stat().st_blocks * 512 >= 3_000_000
    assert list(folder.iterdir()) == []


def test_space_that_is_not_there_stops_the_block_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run():
        with reserved(tmp_path / "release", 10):
            pytest.fail("the block ran")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_a_folder_as_it_was(tmp_path, error):
    def run(folder):
        with reserved(folder, 10):
            raise error

    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(error):
            run(folder)
    assert list(tmp_path.iterdir()) == []
