"""Runs that a killed study need not do again: rows of a csv file, appended when the cell of one seed is done."""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.progress import Progress

from experiments.csv_files import Appender, read_rows
from experiments.defaults.methods import BLOCKS, FREE, PRIVATE
from experiments.defaults.sources import Source

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
NONE = "none"  # epsilon of a row that spends nothing
MOST_BLOCKS = 30_000  # records of the rows of two blocks: thousands of small batches take a minute beyond


@dataclass(frozen=True)
class Row:
    """What one method found in one run.

    Attributes:
        data: Name of the source.
        n: Records.
        epsilon: Budget as words, ``none`` where nothing is spent.
        seed: Of records and noise.
        method: Name of the method.
        mse: Mean squared error at the queries; of the average effect where only that is known. Squared outcome units.
        bias: Mean error, in outcome units.
        deviation: Standard deviation of the outcome, in outcome units.
        scale: The residual's scale S in outcome units, 0 where there is none.
        planned: Planned noise of the function in outcome units, 0 where there is none.
        form: What was requested.
        seconds: Processor time.
    """

    data: str
    n: int
    epsilon: str
    seed: int
    method: str
    mse: float
    bias: float
    deviation: float
    scale: float
    planned: float
    form: str
    seconds: float

    @property
    def key(self) -> tuple[str, int, str, int, str]:
        """What may be there once."""
        return self.data, self.n, self.epsilon, self.seed, self.method


@dataclass(frozen=True)
class Job:
    """All methods and budgets that are left to do on one draw of records."""

    source: Source
    n: int
    seed: int
    todo: tuple[tuple[str, str], ...]  # method and epsilon


def run(path: Path, jobs: Iterable[Job], processes: int = 1) -> None:
    """Do the jobs and append their rows to a csv file.

    Args:
        path: The file.
        jobs: What is to be done, first things first.
        processes: How many at a time.
    """
    left = list(jobs)
    with Progress() as progress, Appender(path, [field.name for field in fields(Row)]) as file:
        task = progress.add_task("runs", total=sum(len(job.todo) for job in left))
        if processes == 1:
            for job in left:
                _write(file, do(job))
                progress.advance(task, len(job.todo))
            return
        with ProcessPoolExecutor(processes, get_context("spawn"), _single_thread) as pool:
            futures = {pool.submit(do, job): job for job in left}
            for future in as_completed(futures):
                _write(file, future.result())
                progress.advance(task, len(futures[future].todo))


def plan(
    chosen: Sequence[Source],
    seeds: Iterable[int],
    path: Path,
    epsilons: Sequence[float] = EPSILONS,
    sizes: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
) -> Iterator[Job]:
    """What is not yet in the file, all cells of one seed before the next.

    Args:
        chosen: Sources, in order.
        seeds: Seeds, in order.
        path: The file of what is done.
        epsilons: Budgets.
        sizes: Numbers of records; None takes all of a source.
        methods: Names of methods; None takes all.
    """
    done = {row.key for row in read(path)}
    for seed in seeds:
        cells = [(n, source) for source in chosen for n in source.sizes if sizes is None or n in sizes]
        for n, source in sorted(cells, key=lambda cell: cell[0]):
            pairs = [(method, NONE) for method in FREE]
            pairs += [
                (method, f"{e:g}") for method in PRIVATE for e in epsilons if method != BLOCKS or n <= MOST_BLOCKS
            ]
            wanted = [(method, e) for method, e in pairs if methods is None or method in methods]
            todo = tuple(pair for pair in wanted if (source.name, n, pair[1], seed, pair[0]) not in done)
            if todo:
                yield Job(source, n, seed, todo)


def do(job: Job) -> list[Row]:
    """Run the methods of a job on its records."""
    case = job.source.draw(job.n, job.seed)
    deviation, rows = case.records.y.std().item(), []
    for method, epsilon in job.todo:
        begun = time.process_time()
        name = f"{job.source.name}, {job.n}, {epsilon}, {job.seed}, {method}"
        value = float("inf") if epsilon == NONE else float(epsilon)
        for row, found in (FREE | PRIVATE)[method](case, value, name).items():
            mse, bias = case.error(found.effect)
            facts = {"scale": 0.0, "planned": 0.0, "form": "", **found.facts}
            seconds = time.process_time() - begun
            rows.append(
                Row(job.source.name, job.n, epsilon, job.seed, row, mse, bias, deviation, seconds=seconds, **facts)
            )
    return rows


def read(path: Path) -> list[Row]:
    """Rows of a file, none if it is not there. A line that a kill cut short is dropped, and done again."""
    return read_rows(path, Row)


def _write(file: Appender, rows: Iterable[Row]) -> None:
    for row in rows:
        file.write(row)


def _single_thread() -> None:
    torch.set_num_threads(1)
