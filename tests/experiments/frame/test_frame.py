"""The frame of studies: cells that are done are not done again, published numbers stand beside ours."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from experiments.frame import command
from experiments.frame.published import read_published
from experiments.frame.runner import FOLDER, read_cells, run_cells
from experiments.frame.study import CERTIFIED, FREE, PRINTED, Found, Place, Settings, Study, batches
from experiments.frame.table import join, summarise
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError

ROOT = Path(__file__).parents[3]
HEAD = "setting,n,epsilon,delta,method,metric,qualifier,value,sd_or_se,spread_kind,ci_low,ci_high,repeats\n"


class Toy(Study):
    """Two budgets, two batches each."""

    name, title, published = "dp_werm", "Toy", ("toy/one.csv",)
    begun: ClassVar[list] = []

    def cells(self, settings):
        return [{"epsilon": e, "first": f, "repeats": r} for f, r in batches(5, 3) for e in (1, 2)]

    def compute(self, cell, settings):
        self.begun.append(dict(cell))
        values = [float(cell["first"] + k) for k in range(cell["repeats"])]
        where = ("one", "law", "10", str(cell["epsilon"]))
        yield Found(Place(*where, "A", "mse"), PRINTED, "theirs", "none holds", values)
        yield Found(Place(*where, "", "mse"), CERTIFIED, "ours", "certified", [v / 2 for v in values])
        if cell["epsilon"] == 1:
            yield Found(Place(*where[:3], "inf", "", "mse"), FREE, "free", "not private", values)


@pytest.fixture
def toy(monkeypatch):
    study = Toy()
    study.begun.clear()
    monkeypatch.setattr(command, "find_study", lambda name: study)
    return study


@pytest.fixture
def papers(tmp_path):
    (tmp_path / "papers" / "toy").mkdir(parents=True)
    lines = ("law,10,1,0,A,mse,=,2,2,sd,,,4", "law,10,1,0,B,mse,approx,7,,,,,", "law,10,inf,,none,mse,=,1.5,,,,,5")
    (tmp_path / "papers/toy/one.csv").write_text(HEAD + "\n".join(lines) + "\n")
    return tmp_path / "papers"


def test_published_means_carry_the_error_that_their_spread_says(toy, papers):
    first, second, third = read_published(toy, papers)
    assert (first.value, first.error, first.repeats, first.place.variant) == (2.0, 1.0, 4, "A")
    assert math.isnan(second.error)
    assert (second.qualifier, third.place.epsilon) == ("approx", "inf")
    assert read_published(toy, papers / "toy") == []
    (papers / "toy/one.csv").write_text("setting,n\n")
    with pytest.raises(ValueError, match="no column"):
        read_published(toy, papers)


def test_rows_hold_published_printed_certified_and_free(toy, papers):
    found = [one for cell in toy.cells(Settings()) for one in toy.compute(cell, Settings())]
    rows = join(read_published(toy, papers), summarise(found))
    a, b, free, rest = rows
    error = math.sqrt(2.5 / 5)  # of 0, 1, 2, 3, 4
    assert (a.printed.mean, a.printed.repeats, a.certified.mean, a.free.mean) == (2.0, 5, 1.0, 2.0)
    assert a.printed.error == pytest.approx(error)
    assert a.reproduced == 0
    assert a.gained == pytest.approx(-1 / math.hypot(error / 2, 1.0))
    assert b.printed is None
    assert b.certified is not None
    assert math.isnan(b.gained)
    assert free.printed.mean == 2.0  # ours without privacy stands beside theirs
    assert free.reproduced == pytest.approx(0.5 / (error * math.sqrt(2)))  # they print no spread: ours stands for it
    assert (rest.place.epsilon, rest.published, rest.printed.mean) == ("2", None, 2.0)


def test_a_stopped_study_continues_with_the_cells_that_are_left(toy, tmp_path):
    cells = toy.cells(Settings())
    assert run_cells(toy, cells, Settings(), tmp_path, until=-1.0) == 4
    assert run_cells(toy, cells[1:3], Settings(), tmp_path) == 0
    (tmp_path / FOLDER / ".half.json.tdp").write_text("{")  # what a kill leaves is no cell
    toy.begun.clear()
    assert run_cells(toy, cells[::-1], Settings(), tmp_path) == 0
    assert toy.begun == [cells[3], cells[0]]
    found, _ = read_cells(cells, tmp_path)
    assert {one.mean for one in summarise(found) if one.role == PRINTED} == {2.0}


def test_the_command_writes_its_files_and_says_where_published_numbers_are_missing(toy, papers, tmp_path, capsys):
    folder = tmp_path / "run"
    for given, filled in ((papers, True), (None, False)):
        command.run("dp_werm", Settings(papers=given), folder, 1, math.inf)
        with (folder / "table.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert any(line["published"] for line in lines) == filled
        assert ("published numbers are not here" in (folder / "table.md").read_text()) != filled
    assert len(toy.begun) == 4
    with pytest.raises(InputError, match="holds the study"):
        command.run("niu", Settings(), folder, 1, math.inf)
    with pytest.raises(InputError, match="no study"):
        command.run("dp_werm", Settings(), folder / FOLDER, 1, math.inf)
    assert json.loads((folder / "study.json").read_text()) == {"study": "dp_werm"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("dp_wrem run_dir=X", "choose one of"),
        ("dp_werm", "run_dir=PATH"),
        ("hospital run_dir=X", "is no longer there; python -m experiments.hospital.study"),
        ("dp_werm run_dir=X processes=1.5", "integer"),
        ("dp_werm run_dir=X papers=/not/there", "no folder"),
        ("dp_werm run_dir=X repeats=3", "a key of"),
    ],
)
def test_a_mistake_is_one_line(words, part, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", *words.split()]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_program_finds_the_studies_from_anywhere(tmp_path):
    words = [sys.executable, "-m", "torchdpcate", "study", "nobody", "run_dir=X"]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 2
    assert "choose one of" in done.stderr
