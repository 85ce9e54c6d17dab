"""A run that fails after its release was paid: the release stays, is verified, and reports know the run.

And one whose file does not verify fails: nothing is announced, and the ledger counts what was spent.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from tests.cli.helpers import DOMAIN, EACH, STATEMENT, TABLE, released, summary
from torchdpcate import _files
from torchdpcate.cli import run
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_tasks
from torchdpcate.cli.task import family_of
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.file import load_release

FAULTS = {"no space": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no memory": MemoryError}
TOLD = {"no space": "No space left on device", "no memory": "MemoryError"}


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool], error: Callable[[], Exception]) -> list[str]:
    """Let the writing of files fail by their names; returns the names of all that were begun, as they come."""
    real, begun = _files._sync, []

    def sync(path: Path) -> None:
        found = re.fullmatch(r"\.(.*)\.tdp-.*", path.name)
        if found is not None:
            begun.append(found[1])
            if fails(found[1]):
                raise error()
        real(path)

    monkeypatch.setattr(_files, "_sync", sync)
    return begun


def check(capsys: pytest.CaptureFixture, code: int, *said: str) -> str:
    """One line says that the release is complete; it verifies, and a report has its page."""
    shown = capsys.readouterr().err
    lines = [line for line in shown.splitlines() if "the release is complete" in line]
    assert len(lines) == 1, shown
    assert "internal error" not in shown
    assert "r/release/release.safetensors" in lines[0]
    for words in said:
        assert words in lines[0]
    assert load_release(released(Path("r"))).kind
    assert main(["verify", str(released(Path("r")))]) == 0
    assert main(["report", "r"]) == 0
    assert Path("r/release/release.html").is_file()
    assert Path("r/curator/report.csv").is_file() == (code == 0)
    assert not [path for path in Path("r").rglob(".*") if path.is_file()]
    capsys.readouterr()
    return lines[0]


def test_neither_a_figure_nor_what_came_out_keeps_a_release_back(here, capsys, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ValueError("what a record holds")

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", fail)
        for name in all_tasks():
            patch.setattr(family_of(name), "results", fail)
        assert main(["train", *EACH["average effect"], "run_dir=r"]) == 0
    line = check(
        capsys, 0, "complete and verified", ".png (ValueError in figures.py, line ", "what came out, in curator/"
    )
    assert "record holds" not in line
    assert not list(Path("r").glob("curator/*.png"))
    assert summary("r")["spent"]["total"]["epsilon"] > 0
    assert "estimate" not in summary("r")
    assert {path.name for path in Path("r/release").glob("*[!l]")} >= STATEMENT


def test_a_release_is_complete_where_nothing_else_can_be_written(here, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        kept = ("release.safetensors", "ledger.sqlite")
        begun = failing(patch, lambda name: name not in kept, FAULTS["no space"])
        assert main(["train", *EACH["average effect"], "run_dir=r"]) == 1
    assert begun.index("release.safetensors") < begun.index("summary.json") < begun.index("config.yaml")
    check(capsys, 1, "complete and verified", f"statement and checksums ({TOLD['no space']}", "curator/summary.json (")
    assert {path.name for path in Path("r/release").iterdir()} == {"release.safetensors", "release.html"}


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in EACH if task not in ("online", "two stages")])
def test_any_one_file_may_fail(task, here, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        begun = failing(patch, lambda _: False, MemoryError)
        assert main(["train", *EACH[task], "run_dir=r"]) == 0
    after = dict.fromkeys(begun[begun.index("release.safetensors") + 1 :])
    assert {"privacy.json", "SHA256SUMS", "summary.json", "config.yaml"} <= {*after}
    for name, fault in zip(after, cycle(FAULTS), strict=False):
        shutil.rmtree("r")
        capsys.readouterr()
        with monkeypatch.context() as patch:
            failing(patch, lambda own, name=name: own == name, FAULTS[fault])
            code = main(["train", *EACH[task], "run_dir=r"])
        assert code == (name == "summary.json"), name
        check(capsys, code, TOLD[fault])


@pytest.mark.slow
def test_a_release_that_memory_does_not_suffice_to_verify_stays_and_is_to_be_verified(here, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run, "verify_release", lambda path: bytearray(1 << 62))
        assert main(["train", *EACH["average effect"], "run_dir=r"]) == 0
    check(capsys, 0, "not verified (MemoryError", "torchdpcate verify r/release/release.safetensors")


@pytest.mark.first(1)
@pytest.mark.parametrize("task", ["average effect", *(task for task in EACH if task != "average effect")])
def test_a_run_whose_file_does_not_verify_fails_and_the_ledger_counts_it(task, here, capsys, monkeypatch):
    real = run.write_release

    def other(release, folder):
        real(replace(release, privacy=replace(release.privacy, formula="another")), folder)

    monkeypatch.setattr(run, "write_release", other)
    assert main(["train", *EACH[task], "run_dir=r"]) == 1
    shown = capsys.readouterr()
    complaint = shown.err.splitlines()[-1]
    assert "the release does not verify (" in complaint
    assert "nothing is released, and the ledger counts what was spent" in complaint
    assert "released" not in shown.out
    assert not (here / "r" / "release").exists()
    assert (here / "r" / "curator" / "refused" / "release.safetensors").exists()
    assert Ledger.load(here / "r" / "curator" / "ledger.sqlite").spent()["total"]["epsilon"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cost in $ of $x_$", "\\frac{_^", "\U0001f600 $_$"])
def test_a_column_may_be_called_as_a_formula(name, here, capsys):
    facts = dict(DOMAIN["covariates"])
    facts[name] = facts.pop("dose")
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | {"covariates": facts}))
    pd.read_csv("people.csv").rename(columns={"dose": name}).to_csv("people.csv", index=False)
    assert main(["train", "task=average_effect", "effect=covariate_balancing", *TABLE, "run_dir=r"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("torchdpcate: warning: noise of") for line in said), said
    assert {"balance.png", "forest.png"} <= {path.name for path in Path("r/curator").iterdir()}
    assert main(["report", "r"]) == 0
