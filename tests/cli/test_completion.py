"""Completion: the words that may come next, and the shells that request them."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchdpcate.cli.completion import candidates, print_completions
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_tasks, choices_of
from torchdpcate.cli.parser import SHELLS, subparsers


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("my_run", "my other run"):
        Path(folder, "release").mkdir(parents=True)
    Path("people.csv").write_text("a\n")
    Path(".hidden").write_text("")
    return tmp_path


def shown(capsys, line: str, breaks: str = "") -> list[str]:
    print_completions([line, breaks])
    return capsys.readouterr().out.splitlines()


def test_every_command_completes(here, capsys):
    assert set(subparsers()) <= set(shown(capsys, "torchdpcate "))
    assert shown(capsys, "torchdpcate insp") == ["inspect"]
    assert shown(capsys, "/a/b/torchdpcate --debug insp") == ["inspect"]
    assert shown(capsys, "torchdpcate nonsense x") == []
    for command in subparsers():
        print_completions([f"torchdpcate {command} "])  # nothing is raised
        assert "Traceback" not in capsys.readouterr().err


LINES = {
    "verify my": ["my other run/", "my_run/"],
    "verify my_run/": ["my_run/release/"],
    "verify --k": ["--key"],
    "verify my_run --key peo": ["people.csv"],
    "sign my_run --name peo": [],
    "completion ": list(SHELLS),
    "verify nowhere/": [],
    "verify .h": [".hidden"],
    "train task=r": ["task=rule"],
    "train task=cate,r": ["task=cate,rule"],
    "train data.path=peo": ["data.path=people.csv"],
    "train data.domain=lal": ["data.domain=lalonde"],
    "train privacy.eps": ["privacy.epsilon="],
    "train privacy.epsilon=": [],
    "train task=owl weigh": ["weights=", "weights.budget_fraction="],
    "train --mul": ["--multirun"],
    "plan prec": ["precision="],
    "audit mechanism=lapl": ["mechanism=laplace"],
    "audit leak my": ["my other run/", "my_run/"],
    "study dp_c": ["dp_cate"],
    "study dp_cate run_dir=my_": ["run_dir=my_run/"],
    "verify 'my": ["my other run/", "my_run/"],
    'verify "my ': ["my other run/"],
    r"verify my\ ": ["my other run/"],
}


@pytest.mark.parametrize("line", LINES)
def test_what_may_come_next(here, capsys, line):
    found = shown(capsys, f"torchdpcate {line}")
    if line == "train task=owl weigh":
        assert set(found) <= set(candidates(["train", "task=owl"], "weigh"))
        return
    assert found == LINES[line]


def test_a_shell_that_breaks_words_gets_the_last_part(here, capsys):
    assert shown(capsys, "torchdpcate train task=r", " \t=:") == ["rule"]
    assert shown(capsys, "torchdpcate train data.path=peo", " =") == ["people.csv"]


def test_groups_have_all_their_choices():
    assert candidates(["train"], "task=") == [f"task={task}" for task in all_tasks()]
    assert [word.removeprefix("data=") for word in candidates(["plan"], "data=")] == choices_of("data")
    assert "experiment=" in candidates(["train"], "")
    assert not [word for word in candidates(["train"], "") if "." in word]
    assert "second_stage.ridge=" in candidates(["train", "second_stage=linear"], "s")


def test_a_failure_says_nothing(here, capsys):
    assert main(["__complete"]) == 0
    assert main(["__complete", "torchdpcate train task=nonsense sec"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_no_error(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    found = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


_STUB = """#!/bin/sh
if [ "$1" = __complete ]; then exec {python} -m torchdpcate.cli.main "$@"; fi
for word; do printf 'RAN[%s]' "$word"; done; echo
"""
_START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
_LOAD = {
    "bash": 'eval "$(cat ../script)"; PS1="@@ "',
    "zsh": 'autoload -Uz compinit; compinit -u -d ../dump; eval "$(cat ../script)"; PS1="@@ "',
    "fish": 'source ../script; function fish_prompt; echo "@@ "; end',
}
TYPED = {
    "verify my_r\t": "RAN[verify]RAN[my_run/]",
    "insp\tx": "RAN[inspect]RAN[x]",
    "train task=polic\tx=1": "RAN[train]RAN[task=policy_selection]RAN[x=1]",
    "train data.path=peo\tx=1": "RAN[train]RAN[data.path=people.csv]RAN[x=1]",
    "train privacy.eps\t2": "RAN[train]RAN[privacy.epsilon=2]",
    "verify my\\ \t": "RAN[verify]RAN[my other run/]",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_as_it_is_typed(shell, here, capsys):
    """The words are typed at a terminal with the tabulator; a program that prints its words stands for ours."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert main(["completion", shell]) == 0
    (here.parent / "script").write_text(capsys.readouterr().out)
    program = here.parent / f"bin_{shell}"
    program.mkdir()
    (program / "torchdpcate").write_text(_STUB.format(python=sys.executable))
    (program / "torchdpcate").chmod(0o755)
    terminal = Terminal(_START[shell], {"PATH": f"{program}{os.pathsep}{os.environ['PATH']}"})
    try:
        terminal.type(f"{_LOAD[shell]}\n")
        terminal.until(r"@@ ")
        for words, ran in TYPED.items():
            before, _, after = words.partition("\t")
            terminal.type(f"torchdpcate {before}\t")
            terminal.rest(1.0)
            terminal.type(f"{after}\n")
            assert ran in terminal.until(r"RAN.*\n"), words
    finally:
        terminal.close()


class Terminal:
    """A shell at a terminal of its own."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.process, self.end = pty.fork()
        if self.process == 0:
            os.environ.update({**environment, "TERM": "dumb", "HOME": os.getcwd(), "COLUMNS": "200"})
            os.execvp(words[0], words)
        self.seen = ""
        self.rest(1.0)

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def rest(self, quiet: float) -> None:
        """Read until nothing has come for so many seconds."""
        while select.select([self.end], [], [], quiet)[0]:
            self.seen += os.read(self.end, 65536).decode(errors="replace")

    def until(self, pattern: str, seconds: float = 60.0) -> str:
        """Return what is read until a pattern comes, and forget it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            plain = re.sub(r"\x1b(?:\[[0-9;?=<>]*[a-zA-Z]|[()][A-Z0-9]|[=>])|\r", "", self.seen)
            found = re.search(pattern, plain)
            if found:
                self.rest(0.3)
                self.seen = ""
                return plain
            if select.select([self.end], [], [], 0.5)[0]:
                self.seen += os.read(self.end, 65536).decode(errors="replace")
        raise AssertionError(f"{pattern!r} never came: {self.seen[-2000:]!r}")

    def close(self) -> None:
        os.close(self.end)
        os.kill(self.process, 9)
        os.waitpid(self.process, 0)
