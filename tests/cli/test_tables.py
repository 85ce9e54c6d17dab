"""What is printed fits the terminal, and paths can be copied from it whole."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.helpers import QUICK, TABLE
from torchdpcate.cli.main import main
from torchdpcate.cli.tables import columns, facts

WORD = st.text("abc,.", min_size=1, max_size=12)
CELL = st.text("abc09", min_size=1, max_size=8)


@given(st.lists(st.tuples(WORD, st.lists(WORD, max_size=30).map(" ".join)), max_size=5), st.integers(45, 120))
def test_facts_fit_and_say_every_word(rows, width):
    shown = facts(rows, width=width)
    assert all(len(line) <= width for line in shown.splitlines())
    assert sorted(shown.split()) == sorted(word for name, text in rows for word in (*name.split(), *text.split()))


def test_what_cannot_be_wrapped_is_one_piece():
    path, checksum = Path("a" * 60) / "with blanks in it" / ("b" * 60), "0" * 64
    shown = facts([("file", path), ("sum", f"of bytes: {checksum}")], width=40)
    assert str(path) in shown.splitlines()[0]
    assert checksum in shown


@given(st.integers(2, 9).flatmap(lambda k: st.lists(st.lists(CELL, min_size=k, max_size=k), min_size=2, max_size=5)))
def test_a_wide_table_comes_in_parts_that_fit(rows):
    headings, *cells = rows
    shown = columns(headings, cells, width=24)
    assert all(len(line) <= 24 for line in shown.splitlines())
    parts = [part.splitlines() for part in shown.split("\n\n")]
    assert all(len(part) == len(rows) for part in parts)
    for place, row in enumerate(rows):  # the first column in each part, every other one once
        assert [word for part in parts for word in part[place].split()[1:]] == row[1:]
        assert all(part[place].split()[0] == row[0] for part in parts)


def test_a_controls_letter_is_not_printed():
    assert "\x1b" not in facts([("a", "\x1b[31mred"), ("b", Path("\x1b"))]) + columns(["\x1b"], [["\x1b"]])


@pytest.mark.slow
def test_paths_of_a_run_are_whole(here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder = Path("a_folder_of_a_long_name_for_all_runs") / "another_folder_of_a_long_name" / "first run"
    words = [*TABLE, *QUICK, f"budget.shared={folder.parent}/shared.sqlite"]
    total = ["budget.total.epsilon=2", "budget.total.delta=1e-4"]
    assert main(["train", *words, *total, f"run_dir={folder}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    release = folder / "release" / "release.safetensors"
    assert any(line.endswith(str(release)) for line in lines)
    start = lines.index("torchdpcate: released")
    assert all(len(line) <= 80 or str(folder) in line for line in lines[start:])
    assert main(["ledger", f"{folder.parent}/shared.sqlite"]) == 0
    assert any(line.endswith(str(folder)) for line in capsys.readouterr().out.splitlines())
    assert main(["verify", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]  # the first one is the path
    assert all(len(line) <= 80 or re.search("[0-9a-f]{64}$", line) for line in lines)


@pytest.mark.slow
def test_a_plan_fits(here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan", *TABLE, "n=4000"]) == 0
    shown = capsys.readouterr().out.partition("\n\nassumed")[0]
    assert max(map(len, shown.splitlines())) <= 80
