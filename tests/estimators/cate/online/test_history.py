"""The history on disk: what was answered is counted, and whatever else happened to the files is detected."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.errors import ReleaseFileError
from torchdpcate.estimators.cate.online.history import HEAD_FILE, HISTORY_FILE, LOCK_FILE, History

SLOT = 80
ENTRY = 8 + 3 * 8 + 32  # one row of three numbers


def rows(*values: float) -> np.ndarray:
    return np.array([[v, v + 0.5, -v] for v in values])


@pytest.fixture
def folder(tmp_path):
    """A history of three entries of one row each."""
    history = History(tmp_path, "run", 3)
    history.create()
    with history.lock:
        for value in (1.0, 2.0, 3.0):
            history.new_rows()
            history.append(rows(value))
    return tmp_path


def read(folder, run: str = "run") -> list[float]:
    history = History(folder, run, 3)
    with history.lock:
        return history.new_rows()[:, 0].tolist()


def grown(folder, by: bytes) -> None:
    with (folder / HISTORY_FILE).open("ab") as file:
        file.write(by)


def cut(folder, by: int) -> None:
    data = (folder / HISTORY_FILE).read_bytes()
    (folder / HISTORY_FILE).write_bytes(data[:-by])


def test_rows_come_back_as_they_were_added(folder):
    assert read(folder) == [1.0, 2.0, 3.0]
    history = History(folder, "run", 3)
    with history.lock:
        assert len(history.new_rows()) == 3
        assert history.new_rows().shape == (0, 3)
        history.append(rows(4.0, 5.0))
        assert history.new_rows().shape == (0, 3)
    np.testing.assert_array_equal(History(folder, "run", 3).new_rows(), rows(1, 2, 3, 4, 5))
    assert (folder / HISTORY_FILE).stat().st_size == 32 + 4 * ENTRY + 24
    assert (folder / HEAD_FILE).stat().st_size == 2 * SLOT


def test_two_readers_see_what_the_other_added(folder):
    one, two = History(folder, "run", 3), History(folder, "run", 3)
    for history in (one, two):
        history.new_rows()
    one.append(rows(4.0))
    np.testing.assert_array_equal(two.new_rows(), rows(4.0))
    two.append(rows(5.0))
    np.testing.assert_array_equal(one.new_rows(), rows(5.0))


def before_the_head(folder) -> tuple[bytes, bytes]:
    """Let an entry be written in full, and the head not: as a crash between the two leaves it."""
    head = (folder / HEAD_FILE).read_bytes()
    history = History(folder, "run", 3)
    history.new_rows()
    history.append(rows(4.0))
    stored = (folder / HISTORY_FILE).read_bytes()
    (folder / HEAD_FILE).write_bytes(head)
    return head, stored


def test_a_complete_entry_that_the_head_does_not_count_is_kept(folder):
    _, stored = before_the_head(folder)
    assert read(folder) == [1.0, 2.0, 3.0, 4.0]
    assert read(folder) == [1.0, 2.0, 3.0, 4.0]
    assert (folder / HISTORY_FILE).read_bytes() == stored


@pytest.mark.parametrize("missing", range(1, ENTRY + 1, 7))
def test_a_torn_entry_was_never_answered_and_is_dropped(folder, missing):
    before_the_head(folder)
    cut(folder, missing)
    assert read(folder) == [1.0, 2.0, 3.0]
    assert (folder / HISTORY_FILE).stat().st_size == 32 + 3 * ENTRY
    history = History(folder, "run", 3)
    history.new_rows()
    history.append(rows(9.0))
    assert read(folder) == [1.0, 2.0, 3.0, 9.0]


@pytest.mark.parametrize("kept", range(0, SLOT, 7))
def test_a_torn_head_leaves_the_other_slot(folder, kept):
    """The entry is on the disk before the head is written, so it is taken up."""
    head, stored = before_the_head(folder)
    history = History(folder, "run", 3)
    with history.lock:
        assert len(history.new_rows()) == 4
    after = (folder / HEAD_FILE).read_bytes()
    slot = 0 if head[:SLOT] != after[:SLOT] else SLOT
    torn = head[:slot] + after[slot : slot + kept] + head[slot + kept :]
    (folder / HEAD_FILE).write_bytes(torn)
    assert read(folder) == [1.0, 2.0, 3.0, 4.0]
    assert (folder / HISTORY_FILE).read_bytes() == stored


@pytest.mark.parametrize("slot", [0, 1])
def test_a_damaged_slot_forgets_no_answer(folder, slot):
    data = bytearray((folder / HEAD_FILE).read_bytes())
    data[slot * SLOT + 3] ^= 1
    (folder / HEAD_FILE).write_bytes(data)
    grown(folder, b"torn")
    assert read(folder) == [1.0, 2.0, 3.0]
    history = History(folder, "run", 3)
    history.new_rows()
    history.append(rows(4.0))
    assert read(folder) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_entries_cut_off_by_hand_are_missed(folder, entries):
    cut(folder, entries * ENTRY)
    with pytest.raises(ReleaseFileError, match="entries are missing; nothing is answered"):
        read(folder)


def test_an_entry_cut_out_of_the_middle_is_missed(folder):
    data = (folder / HISTORY_FILE).read_bytes()
    (folder / HISTORY_FILE).write_bytes(data[: 32 + ENTRY] + data[32 + 2 * ENTRY :] + b"\0" * ENTRY)
    with pytest.raises(ReleaseFileError, match="not the ones that were written"):
        read(folder)


@settings(max_examples=30, deadline=None)
@given(at=st.integers(0, 32 + 3 * ENTRY - 1), bit=st.integers(0, 7))
def test_every_bit_that_is_changed_is_detected(tmp_path_factory, at, bit):
    folder = tmp_path_factory.mktemp("h")
    history = History(folder, "run", 3)
    history.create()
    for value in (1.0, 2.0, 3.0):
        history.new_rows()
        history.append(rows(value))
    data = bytearray((folder / HISTORY_FILE).read_bytes())
    data[at] ^= 1 << bit
    (folder / HISTORY_FILE).write_bytes(data)
    with pytest.raises(ReleaseFileError):
        read(folder)


def test_a_history_that_lost_entries_while_it_was_open_is_refused(folder, tmp_path):
    history = History(folder, "run", 3)
    history.new_rows()
    older = {name: (folder / name).read_bytes() for name in (HISTORY_FILE, HEAD_FILE)}
    history.append(rows(4.0))
    for name, data in older.items():
        (folder / name).write_bytes(data)
    with pytest.raises(ReleaseFileError, match="entries are missing"):
        history.new_rows()


@pytest.mark.parametrize("name", [HISTORY_FILE, HEAD_FILE])
@pytest.mark.parametrize("how", ["gone", "empty", "a folder", "another run's", "longer"])
def test_files_that_are_not_what_they_were(folder, tmp_path, name, how):
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if how == "empty":
        path.touch()
    elif how == "a folder":
        path.mkdir()
    elif how == "another run's":
        (tmp_path / "other").mkdir()
        History(tmp_path / "other", "other", 3).create()
        shutil.copy(tmp_path / "other" / name, path)
    elif how == "longer":
        path.write_bytes(data + b"x")
        if name == HISTORY_FILE:  # the beginning of an entry that was never answered
            assert read(folder) == [1.0, 2.0, 3.0]
            return
    with pytest.raises(ReleaseFileError):
        read(folder)


def test_another_run_and_another_width_are_refused(folder):
    for history in (History(folder, "else", 3), History(folder, "run", 4)):
        with pytest.raises(ReleaseFileError, match="another run"):
            history.new_rows()


def test_it_is_never_made_twice(folder):
    with pytest.raises(FileExistsError):
        History(folder, "run", 3).create()
    assert read(folder) == [1.0, 2.0, 3.0]


def test_a_million_rows_come_back_in_seconds(tmp_path):
    """In entries of one row, written at once: reading is one pass, whatever the number of entries."""
    history = History(tmp_path, "run", 3)
    history.create()
    history.append(np.arange(60_000.0).reshape(-1, 3))
    assert read(tmp_path)[-1] == 59_997.0
    assert {p.name for p in tmp_path.iterdir()} == {HISTORY_FILE, HEAD_FILE, LOCK_FILE}
