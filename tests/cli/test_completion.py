"""Completion: the words that may come next, and the shells that request them."""

import shutil
import subprocess
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
