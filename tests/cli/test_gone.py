"""A word that went ends in one line that names the way that answers its question, and no choice of ``conf/`` is one."""

import pytest

from torchdpcate.cli.gone import COMMANDS, GONE
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_groups, choices_of


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
def test_a_command_that_went_names_what_answers_its_question(command, capsys):
    assert main([command, "release.safetensors"]) == 2
    assert f"{command}: is no longer there; {COMMANDS[command]}" in capsys.readouterr().err


def test_what_is_there_has_not_gone():
    there = all_groups() | {f"{group}={choice}" for group in all_groups() for choice in choices_of(group)}
    assert not there & GONE.keys()
