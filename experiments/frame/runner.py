"""Cells of a study in any order, by one process or several; a study that was killed continues."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch

from experiments.frame.study import Cell, Found, Place, Settings, Study
from torchdpcate._files import write_text

FOLDER = "cells"


def cell_path(folder: Path, cell: Cell) -> Path:
    """Return the file of a cell: its name depends on the cell alone."""
    return folder / FOLDER / f"{hashlib.sha256(_words(cell).encode()).hexdigest()[:20]}.json"


def run_cells(
    study: Study,
    cells: Iterable[Cell],
    settings: Settings,
    folder: Path,
    processes: int = 1,
    until: float = float("inf"),
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Compute the cells that are not done, each written completely or not at all; return how many remain.

    Args:
        study: Which.
        cells: All of them.
        settings: What the command line asks for.
        folder: Of the run.
        processes: At once; each has one thread.
        until: Time of ``time.monotonic`` after which no cell is begun.
        on_progress: Is given how many are done, and of how many.
    """
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    wanted = list(cells)
    left = [cell for cell in wanted if not cell_path(folder, cell).exists()]
    done = len(wanted) - len(left)
    on_progress(done, len(wanted))
    for text, cell in _computed(study, left, settings, processes, until):
        write_text(cell_path(folder, cell), text)
        done += 1
        on_progress(done, len(wanted))
    return len(wanted) - done


def read_cells(cells: Iterable[Cell], folder: Path) -> tuple[list[Found], float]:
    """Return what all cells that are done have found, and their processor time in seconds."""
    found: list[Found] = []
    seconds = 0.0
    for cell in cells:
        path = cell_path(folder, cell)
        if path.exists():
            entry = json.loads(path.read_text(encoding="utf-8"))
            seconds += entry["seconds"]
            found += [Found(Place(**one.pop("place")), **one) for one in entry["found"]]
    return found, seconds


def compute(study: Study, cell: Cell, settings: Settings) -> str:
    """Return a cell's file: the cell, what it found and its processor time."""
    torch.set_num_threads(1)
    begun = _seconds()
    found = [asdict(one) | {"values": [float(f"{v:.8g}") for v in one.values]} for one in study.compute(cell, settings)]
    entry = {"study": study.name, "cell": dict(cell), "seconds": round(_seconds() - begun, 3), "found": found}
    return json.dumps(entry) + "\n"


def _computed(
    study: Study, left: list[Cell], settings: Settings, processes: int, until: float
) -> Iterator[tuple[str, Cell]]:
    if processes == 1:
        for cell in left:
            if time.monotonic() > until:
                return
            yield compute(study, cell, settings), cell
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        waiting, running = iter(left), dict[Future[str], Cell]()
        while True:
            while len(running) < processes and time.monotonic() < until and (cell := next(waiting, None)) is not None:
                running[pool.submit(compute, study, cell, settings)] = cell
            if not running:
                return
            for one in wait(running, return_when=FIRST_COMPLETED).done:
                yield one.result(), running.pop(one)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _words(cell: Cell) -> str:
    return json.dumps(dict(cell), sort_keys=True)
