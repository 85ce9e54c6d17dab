"""Files written whole or not at all."""

import pytest

from torchdpcate._files import atomic_path, write_text


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


def test_a_failing_rename_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f.txt"
    write_text(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]
