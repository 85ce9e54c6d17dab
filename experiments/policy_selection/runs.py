"""Repetitions that a killed run need not do again: one line of JSON for each, appended when it is done."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.policy_selection.design import Draw, Population
from experiments.rows import json_lines

Measure = Callable[[Population, Draw], Iterable[dict[str, Any]]]


def run(measure: Measure, population: Population, repeats: int, folder: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of every repetition, by reading those that are done and doing the others.

    Args:
        measure: What one repetition measures.
        population: Where its records come from.
        repeats: Repetitions, of seeds 0, 1, ...
        folder: Of what is done; remove it to start anew.
    """
    path = folder / f"{measure.__name__}_{population.name}.jsonl"
    done = dict(_read(path))
    start, fresh = time.perf_counter(), 0
    with path.open("a", encoding="utf-8") as file:
        for repeat in range(repeats):
            if repeat not in done:
                begun = time.process_time()
                done[repeat] = list(measure(population, population.draw(repeat)))
                line = {"repeat": repeat, "seconds": time.process_time() - begun, "rows": done[repeat]}
                file.write(json.dumps(line) + "\n")
                file.flush()
                fresh += 1
    print(f"{path.stem}: {fresh} of {repeats} repetitions in {time.perf_counter() - start:.0f} s", flush=True)
    return [done[repeat] for repeat in range(repeats)]


def seconds(folder: Path) -> float:
    """Processor time of all repetitions that are done."""
    lines = (line for path in folder.glob("*.jsonl") for line in json_lines(path))
    return sum(line["seconds"] for line in lines)


def _read(path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for line in json_lines(path):
        yield line["repeat"], line["rows"]
