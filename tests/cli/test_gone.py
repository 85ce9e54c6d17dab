"""A word that went ends in one line that names the way that answers its question, and no choice of ``conf/`` is one."""

import pytest

from torchdpcate.cli.gone import COMMANDS, GONE
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_groups, choices_of
from torchdpcate.cli.parser import subparsers


@pytest.mark.first(3)
@pytest.mark.parametrize("word", GONE)
def test_a_word_that_went_names_what_answers_its_question(word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = word if "=" in word else f"{word}=private"
    assert main(["train", given, "run_dir=r"]) == 2
    error = capsys.readouterr().err
    assert error == f"torchdpcate: {given}: is no longer there; {GONE[word]}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_so_does_a_command(command, capsys):
    assert main([command, "run", "--json"]) == 2
    assert capsys.readouterr().err == f"torchdpcate: {command}: is no longer there; {COMMANDS[command]}\n"


def test_what_is_there_has_not_gone():
    there = all_groups() | {f"{group}={choice}" for group in all_groups() for choice in choices_of(group)}
    assert not there & GONE.keys()
    assert not subparsers().keys() & COMMANDS.keys()
