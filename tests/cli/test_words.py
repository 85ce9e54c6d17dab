"""Commands, options and help: what a word that is not known, or that went, is answered, in one line."""

import subprocess
import sys

import pytest

import torchdpcate
from tests.cli.helpers import one_line
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_groups, choices_of
from torchdpcate.cli.parser import COMMANDS, GONE, OWN_GRAMMAR, make_parser, subparsers

WRONG = {
    "verfiy r": "verfiy: no such command; the nearest is verify",
    "xyzzy": "xyzzy: no such command; torchdpcate --help shows all",
    "": "the following arguments are required: COMMAND",
    "verify r --kei x": "verify: --kei: no such option; the nearest is --key",
    "verify r --jsn": "verify: --jsn: no such option; the nearest is --json",
    "verify r --zzz=3": "verify: --zzz=3: no such option; torchdpcate verify --help shows what there is",
    "verify r s": "verify: s: one word too many",
    "predict r": "predict: the following arguments are required: input, -o/--output; torchdpcate predict --help",
    "predict r i -o o --most-bytes many": "predict: argument --most-bytes: invalid int value: 'many'",
    "combine a -o b --between randm": "the nearest is random; torchdpcate combine --help",
    "predict r --intervall": "predict: --intervall: no such option; the nearest is --interval",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_word_that_is_not_known_is_one_line(words, capsys):
    assert main(words.split()) == 2
    assert WRONG[words] in one_line(capsys)


def test_the_version(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"torchdpcate {torchdpcate.__version__}\n"


@pytest.mark.parametrize("words", [["train", "-m", "seed=1,2", "--help"], ["plan", "n=3", "-h"], ["train", "-h"]])
def test_help_is_shown_wherever_it_is_asked_for(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"usage: torchdpcate {words[0]}")


def test_every_command_is_listed_and_every_option_has_help():
    page = make_parser().format_help()
    for name, parser in subparsers().items():
        assert name in page
        assert name in OWN_GRAMMAR or all(action.help for action in parser._actions), name


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys; from torchdpcate.cli.main import main\n"
        "try: main([sys.argv[1]])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'hydra', 'pandas', 'rich'} & set(sys.modules)"
    )
    for word in ("--help", "--version"):
        assert subprocess.run([sys.executable, "-c", code, word], capture_output=True, check=False).returncode == 0


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
