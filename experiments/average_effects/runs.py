"""Runs that a killed study need not do again: one line of JSON for each batch of repeats, appended when it is done."""

import json
import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import Progress

from experiments.average_effects.designs import Design
from experiments.average_effects.methods import Found, methods, without_noise
from experiments.csv_files import json_lines

EPSILONS = (0.5, 1.0, 5.0)
SIZES = (5_000, 10_000, 50_000, 100_000)
RECORDS_AT_ONCE = 500_000  # of all data sets of a batch
FREE = "none"  # where a row spends no epsilon


@dataclass(frozen=True)
class Line:
    """What one row found on a batch of repeats.

    Attributes:
        n: Records of a data set.
        row: Name of the row.
        epsilon: As words.
        first: First repeat.
        estimate: One a repeat.
        half: Half widths of intervals, None where there is none.
    """

    n: int
    row: str
    epsilon: str
    first: int
    estimate: list[float]
    half: list[float | None]


@dataclass(frozen=True)
class Study:
    """What is run on a design.

    Attributes:
        name: Of files; its noise is its own.
        design: Where records come from.
        repeats: Data sets of each size, of seeds 0, 1, ...
        sizes: Records of a data set.
        names: Of the methods; None runs all, and what has no privacy.
    """

    name: str
    design: Design
    repeats: int
    sizes: tuple[int, ...] = SIZES
    names: tuple[str, ...] | None = None


def run(study: Study, folder: Path, progress: Progress) -> list[Line]:
    """Return all lines of a study, by reading those that are done and doing the others.

    Args:
        study: What is run.
        folder: Of what is done; remove it to start anew.
        progress: Shows where we are.
    """
    path = folder / f"{study.name.replace(' ', '_')}.jsonl"
    done = {(entry["n"], entry["first"], entry["runs"]): entry["lines"] for entry in json_lines(path)}
    batches = [(n, batch) for n in study.sizes for batch in _batches(n, study.repeats)]
    task = progress.add_task(study.name, total=sum(n * len(batch) for n, batch in batches))
    lines: list[Line] = []
    with path.open("a", encoding="utf-8") as file:
        for n, batch in batches:
            key = (n, batch.start, len(batch))
            if key not in done:
                begun = time.process_time()
                done[key] = list(_batch(study, n, batch))
                entry = {"n": n, "first": batch.start, "runs": len(batch), "seconds": time.process_time() - begun}
                file.write(json.dumps(entry | {"lines": done[key]}) + "\n")
                file.flush()
            lines += [Line(n, row, epsilon, batch.start, *found) for row, epsilon, *found in done[key]]
            progress.advance(task, n * len(batch))
    return lines


def seconds(folder: Path) -> float:
    """Processor time of all that is done."""
    return sum(entry["seconds"] for path in folder.glob("*.jsonl") for entry in json_lines(path))


def _batches(n: int, repeats: int) -> Iterator[range]:
    """The repeats of one size in batches that fit into memory; what was done with fewer repeats counts for more."""
    step = max(1, RECORDS_AT_ONCE // n)
    for first in range(0, repeats, step):
        yield range(first, min(repeats, first + step))


def _batch(study: Study, n: int, repeats: range) -> Iterator[tuple[str, str, list[float], list[float | None]]]:
    design, names = study.design, study.names
    sample = design.sample(n, repeats)
    if names is None:
        for row, found in without_noise(design, sample, 0.0, 0).items():
            yield row, FREE, *_lists(found)
    for name, method in methods(design).items():
        for epsilon in EPSILONS if names is None or name in names else ():
            seed = zlib.crc32(f"{study.name}, {n}, {repeats.start}, {name}, {epsilon:g}".encode())
            for row, found in method(design, sample, epsilon, seed).items():
                yield row, f"{epsilon:g}", *_lists(found)


def _lists(found: Found) -> tuple[list[float], list[float | None]]:
    halves = [None if math.isnan(half) else half for half in found.half.tolist()]
    return found.estimate.tolist(), halves


def single_thread() -> None:
    """Leave the other cores to others."""
    torch.set_num_threads(1)
