"""Figures 6 and 7 of the DP-CATE paper: their runs are made once, and continue after an interruption."""

import json

import pytest

from experiments.dp_cate.figure_runs import together, trained
from torchdpcate.cli import run

WORDS = ["task=average_effect", "data.n=400", "privacy.epsilon=2", "force=true"]


def test_a_run_is_made_once_and_what_was_interrupted_is_moved_aside(tmp_path, monkeypatch):
    folder, kept = tmp_path / "1", run.write_release

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "write_release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trained(folder, WORDS)
    assert (folder / "curator" / "ledger.sqlite").exists()
    monkeypatch.setattr(run, "write_release", kept)
    found = trained(folder, WORDS)
    assert found is not None
    assert (tmp_path / "1.interrupted.1" / "curator" / "ledger.sqlite").exists()
    stamp = (folder / "curator" / "summary.json").stat().st_mtime_ns
    again = trained(folder, WORDS)
    assert again is not None
    assert again[1] == found[1] == json.loads((folder / "curator" / "summary.json").read_text())
    assert (folder / "curator" / "summary.json").stat().st_mtime_ns == stamp
    with pytest.raises(SystemExit, match="a finished run of other words"):
        trained(folder, [*WORDS[:2], "privacy.epsilon=1"])
    assert trained(tmp_path / "2", [*WORDS, "data.n=0"]) is None
    assert not (tmp_path / "2").exists()
    with pytest.raises(SystemExit, match="no run released anything"):
        together([])
