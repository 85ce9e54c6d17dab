"""``torchdpcate study``: one paper's tables and figures, published and ours."""

import json
import math
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.frame.page import write_csv, write_found, write_page
from experiments.frame.published import read_published
from experiments.frame.runner import read_cells, run_cells
from experiments.frame.study import Settings, Study
from experiments.frame.table import join, summarise
from torchdpcate._files import write_text
from torchdpcate.cli.study import NAMES
from torchdpcate.errors import InputError

MARK = "study.json"


def find_study(name: str) -> Study:
    """Return a study by its name.

    Args:
        name: One of ``NAMES``.

    Raises:
        InputError: There is no study of this name.
    """
    if name not in NAMES:
        raise InputError(f"study: {name!r} is not known; choose one of {', '.join(NAMES)}")
    module = f"experiments.{name}.study"
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        ready = ", ".join(other for other in NAMES if (Path(__file__).parents[1] / other / "study.py").exists())
        raise InputError(f"study: {name} has no module {module} in this checkout; there are {ready}")
    study: Study = import_module(module).STUDY
    return study


def run(name: str, settings: Settings, folder: Path, processes: int, minutes: float) -> None:
    """Run a study and write its files.

    Args:
        name: Which.
        settings: What the command line asks for.
        folder: Of the run; what is done there is not done again.
        processes: At once.
        minutes: After which no cell is begun; infinity for all.

    Raises:
        InputError: No such study, or the folder is another's.
    """
    study = find_study(name)
    _claim(folder, name)
    cells = list(study.cells(settings))
    lacking = study.missing(settings)
    for sentence in lacking:
        print(f"left out: {sentence}")
    until = time.monotonic() + 60 * minutes
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"study {name}", total=len(cells))
        left = run_cells(
            study, cells, settings, folder, processes, until, lambda done, _: progress.update(bar, completed=done)
        )
    found, seconds = read_cells(cells, folder)
    if not found:
        raise InputError(f"minutes={minutes:g}: no cell is done, so that there is nothing to show; give more")
    means, published = summarise(found), read_published(study, settings.papers)
    rows = join(published, means, study.stand_ins)
    notes = [_made(name, settings, len(cells) - left, len(cells), seconds), *lacking]
    if study.published and not published:
        notes.append("The published numbers are not here: their columns are empty. papers=PATH names their folder.")
    write_csv(folder / "table.csv", rows)
    write_found(folder / "found.csv", means)
    page = study.page(means, notes)
    if page is None:
        write_page(folder / "table.md", study, rows, means, notes)
    else:
        write_text(folder / "table.md", page)
    study.draw(rows, means, folder)
    for note in notes:
        print(note)
    _show(rows)
    print(f"written: {folder / 'table.md'}, table.csv, found.csv and figures")


def _show(rows: list) -> None:
    """Say how many published numbers there are, and how ours stand beside them."""
    near = [abs(row.reproduced) for row in rows if not math.isnan(row.reproduced)]
    printed = [row for row in rows if row.published is not None]
    if near:
        within = sum(value <= 3 for value in near)
        print(f"{within} of {len(near)} published means are within 3 standard errors of ours as printed")
    empty = sum(row.printed is None and row.certified is None for row in printed)
    if empty:
        print(f"{empty} of {len(printed)} published numbers have none of ours beside them in this run")


def _made(name: str, settings: Settings, done: int, total: int, seconds: float) -> str:
    quick = " --quick" if settings.quick else ""
    part = "all" if done == total else "some"
    return (
        f"Written by `torchdpcate study {name}{quick} run_dir=PATH`; {part} of its cells are done, {done} of {total}, "
        f"in {seconds / 60:.1f} minutes of processor time."
    )


def _claim(folder: Path, name: str) -> None:
    """Refuse a folder that another study, or anything else, has written."""
    mark = folder / MARK
    if mark.exists():
        other = json.loads(mark.read_text(encoding="utf-8"))["study"]
        if other != name:
            raise InputError(f"run_dir: {folder} holds the study {other}; choose another folder")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"run_dir: {folder} holds something that is no study; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(mark, json.dumps({"study": name}) + "\n")
