"""`torchdpcate train` on tables of millions of rows, from parquet to the release: passes, time and memory.

The table has 30 covariates, a confounded treatment and an effect of four of them. Each run is a process of its own, as
a user starts it, which counts how often a stream of records is read: the file, or a copy of them. Beside it stand one
pass of pyarrow over the file, and EconML's LinearDML on as many of the rows as fit in memory, in the same call; and
effects of a million rows by the release beside its features and their product. Of ``ray`` only the clock tells: its
workers' processor time, memory and passes are not counted.

    python experiments/benchmarks/scale.py [--rows 1000000 10000000] [--ways stream memory ray] [--threads 1]
        [--covariates 30]

The figures are also appended to scale.csv, which growth.py reads.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import pyarrow as pa
import torch
import yaml
from pyarrow import parquet

from experiments.csv_files import Appender
from torchdpcate import TableStream, load_release
from torchdpcate._process import BATCH
from torchdpcate.cli.main import main as command
from torchdpcate.data.streams import CachedStream

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
COLUMNS, CHUNK = 30, 250_000
MOST_OF_DML = 1_000_000  # rows, which it holds several times
WAYS: dict[str, tuple[str, ...]] = {
    "stream": ("data.stream=true",),
    "memory": (),
    "ray": ("data.stream=true", "data.engine=ray", "data.parts=2"),
}
"""Further words of the command by the way that records are read."""
FIGURES = Path(__file__).with_name("scale.csv")
ANSWERS, REPEATS = 1_000_000, 7


@dataclass
class Run:
    """What a process took: seconds by the clock and of processor time, peak resident MiB, readings of the records."""

    seconds: float
    processor_seconds: float
    peak_mib: float
    passes: int = 0


@dataclass
class Figures:
    """What was measured at one size: seconds, MiB, errors in units of the outcome; a remark, by hand."""

    rows: int
    covariates: int
    way: str
    threads: int
    passes: int
    seconds: float
    processor_seconds: float
    peak_mib: float
    pyarrow_seconds: float
    dml_rows: int
    dml_seconds: float
    dml_mib: float
    form: str
    root_error: float
    root_error_of_mean: float
    answer_ratio: float
    note: str = ""


def effect(x: np.ndarray) -> np.ndarray:
    """Return the true effect at covariates [n, q]."""
    return 1 + x[:, 0] - 0.5 * x[:, 1] + x[:, 2] * x[:, 3]


def domain(covariates: int) -> dict[str, object]:
    """Return the entries of the domain file."""
    return {
        "treatment": "a",
        "outcome": {"name": "y", "low": -6, "high": 8, "better": "higher"},
        "covariates": {f"x{j}": {"low": -1, "high": 1} for j in range(covariates)},
        "overlap": 0.1,
    }


def drawn(rows: int, seed: int, covariates: int) -> pa.Table:
    """Draw records of the design, which has six covariates at least."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, covariates))
    a = rng.random(rows) < 1 / (1 + np.exp(-x[:, 0] - 0.5 * x[:, 4]))
    y = x[:, 0] + np.sin(3 * x[:, 5]) + a * effect(x) + 0.5 * rng.standard_normal(rows)
    columns = {f"x{j}": x[:, j] for j in range(covariates)}
    return pa.table({**columns, "a": a.astype(np.int8), "y": y.clip(-6, 8)})


def write(path: Path, rows: int, covariates: int) -> None:
    """Write records, some at a time."""
    writer = None
    for start in range(0, rows, CHUNK):
        table = drawn(min(CHUNK, rows - start), start, covariates)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=131_072)
    assert writer is not None
    writer.close()


def write_all(folder: Path, rows: int, covariates: int = COLUMNS) -> None:
    """Write records and their domain, as ``trained`` reads them."""
    write(folder / "table.parquet", rows, covariates)
    (folder / "domain.yaml").write_text(yaml.safe_dump(domain(covariates)))


def alone(work: Callable[..., T], *arguments: object) -> T:
    """Return what a function does in a process of its own: a later one's peak of memory begins with its parent's."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def in_process(function: Callable[..., None], folder: Path, threads: int, *words: str) -> Run:
    """Run a function of this module in a process of its own; it may write the number of passes to a file.

    Args:
        function: Takes the words.
        folder: Where it runs.
        threads: Of the processor.
        words: Its arguments.
    """
    code = f"import sys; from experiments.benchmarks.scale import {function.__name__} as f; f(*sys.argv[1:])"
    own = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    start = time.perf_counter()
    run = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=folder, env={**os.environ, **own, "PYTHONPATH": str(ROOT)}
    )
    _, status, usage = os.wait4(run.pid, 0)
    if status:
        raise SystemExit(f"{function.__name__} failed")
    passes = folder / "passes"
    found = int(passes.read_text()) if passes.exists() else 0
    return Run(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, found)


def program(*words: str) -> None:
    """Run `torchdpcate`, and count how often records are read: a file's batches, or those of a copy."""
    readings = 0

    def counted(reading: Callable[..., Iterator[object]]) -> Callable[..., Iterator[object]]:
        def read(*arguments: object) -> Iterator[object]:
            nonlocal readings
            readings += 1
            return reading(*arguments)

        return read

    for stream, name in ((TableStream, "_batches"), (CachedStream, "__iter__")):
        setattr(stream, name, counted(getattr(stream, name)))
    status = command(list(words))
    Path("passes").write_text(str(readings))
    sys.exit(status)


def trained(folder: Path, threads: int, more: Sequence[str] = WAYS["stream"]) -> Run:
    """Return what `torchdpcate train` takes on the table that ``write_all`` wrote."""
    words = ["data=table", "data.path=table.parquet", "data.domain=domain.yaml", "run_dir=run", *more]
    return in_process(program, folder, threads, "train", *words)


def pyarrow_pass(path: Path) -> float:
    """Return seconds of processor time that reading a parquet file once takes, batch by batch, on one thread."""
    start = time.process_time()
    for _ in parquet.ParquetFile(path).iter_batches(use_threads=False):
        pass
    return time.process_time() - start


def linear_dml(path: str, most: str) -> None:
    """Fit EconML's LinearDML, whose nuisances are linear, to the first rows of a parquet file."""
    from econml.dml import LinearDML
    from sklearn.linear_model import LinearRegression, LogisticRegression

    batches, rows = [], 0
    for batch in parquet.ParquetFile(path).iter_batches():
        batches.append(batch)
        rows += len(batch)
        if rows >= int(most):
            break
    table = pa.Table.from_batches(batches).slice(0, int(most))
    x = np.column_stack([table[name].to_numpy() for name in table.column_names if name.startswith("x")])
    learner = LinearDML(
        model_y=LinearRegression(), model_t=LogisticRegression(), discrete_treatment=True, cv=2, random_state=0
    )
    learner.fit(table["y"].to_numpy(), table["a"].to_numpy(), X=x)


def root_errors(path: Path, covariates: int) -> list[float]:
    """Return the root mean squared error of a release, and of its mean."""
    table = drawn(20_000, 1 << 40, covariates).to_pandas()[[f"x{j}" for j in range(covariates)]]
    truth, found = effect(table.to_numpy()), load_release(path).effect(table)
    estimates = found, np.full_like(truth, truth.mean())
    return [float(np.sqrt(np.mean((estimate - truth) ** 2))) for estimate in estimates]


def answer_ratio(path: Path, covariates: int) -> float:
    """Return the processor time of a million effects over that of their features and product, on one thread."""
    torch.set_num_threads(1)
    release = load_release(path)
    x = np.random.default_rng(0).uniform(-1, 1, (ANSWERS, covariates))
    rows = torch.from_numpy(x)
    ratios = []
    for _ in range(REPEATS):
        start = time.process_time()
        torch.cat([release.features(part) @ release.theta for part in rows.split(BATCH)])
        bare, start = time.process_time() - start, time.process_time()
        release.effect(x)
        ratios.append((time.process_time() - start) / bare)
    return median(ratios)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--ways", nargs="+", default=["stream"], choices=list(WAYS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--covariates", type=int, default=COLUMNS)
    parser.add_argument("--folder", type=Path, help="where tables are written for a while")
    options = parser.parse_args()
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            alone(write_all, Path(folder), rows, options.covariates)
            measured(Path(folder), rows, options.covariates, options.ways, options.threads)


def measured(folder: Path, rows: int, covariates: int, ways: Sequence[str], threads: int) -> None:
    """Print the figures of one size, and add them to the table."""
    size = (folder / "table.parquet").stat().st_size / 2**30
    print(f"{rows:,} rows x {covariates} covariates, {size:.2f} GiB of parquet, {threads} threads")
    once, few = alone(pyarrow_pass, folder / "table.parquet"), min(rows, MOST_OF_DML)
    dml = in_process(linear_dml, folder, threads, "table.parquet", str(few))
    print(f"a pass of pyarrow: {once:.1f} s; LinearDML on {few:,} rows: {said(dml)}")
    for way in ways:
        run = trained(folder, threads, (*WAYS[way], f"run_dir=run_{way}"))
        summary = json.loads((folder / f"run_{way}" / "curator" / "summary.json").read_text())
        release = folder / f"run_{way}" / "release" / "release.safetensors"
        error, constant = alone(root_errors, release, covariates)
        ratio = alone(answer_ratio, release, covariates)
        print(
            f"{way}: {run.passes} passes, {said(run)}: {run.processor_seconds / once:.1f} times the "
            f"pass, {run.processor_seconds / rows / (dml.processor_seconds / few):.2f} times LinearDML a row\n"
            f"  {summary['form']}; RMSE of the effect {error:.4f}, of its true mean {constant:.4f}\n"
            f"  a million effects take {ratio:.2f} times their features and product"
        )
        found = (run.processor_seconds, run.peak_mib, once, few, dml.processor_seconds, dml.peak_mib)
        about = run.seconds, *found, summary["form"], error, constant, ratio
        figures = Figures(rows, covariates, way, threads, run.passes, *about)
        with Appender(FIGURES, [field.name for field in fields(Figures)]) as file:
            file.write(figures, digits=5)


def said(run: Run) -> str:
    """Return seconds and memory in words."""
    return f"{run.processor_seconds:.1f} s of processor time ({run.seconds:.1f} s), {run.peak_mib:,.0f} MiB"


if __name__ == "__main__":
    main()
