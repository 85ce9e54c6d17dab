"""`torchdpcate train` on a table of millions of rows, from parquet to the release: time, memory, and reading's share.

The table has 30 covariates, a confounded treatment and an effect of four of them. The run is a process of its own, as a
user starts it; reading is timed apart: all batches of the cached copy, against the step in which they take part most
often, a noisy gradient of the effect's regression.

    python experiments/benchmarks/large_table.py [--rows 1000000 10000000] [--threads 2]

The figures are also appended to large_table.csv, which growth.py reads.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import yaml
from pyarrow import parquet

from experiments.rows import Appender
from torchdpcate import PrivacyBudget, TableStream, load_release
from torchdpcate.composition.regressions import effect_fit
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.records import CausalData
from torchdpcate.data.table import CachedStream

COLUMNS, CHUNK = 30, 250_000
FIGURES = Path(__file__).with_name("large_table.csv")
NAMES = [f"x{j}" for j in range(COLUMNS)]
DOMAIN = {
    "treatment": "a",
    "outcome": {"name": "y", "low": -6, "high": 8, "better": "higher"},
    "covariates": {name: {"low": -1, "high": 1} for name in NAMES},
    "overlap": 0.1,
}


@dataclass
class Figures:
    """What was measured at one size: seconds, MiB, errors in units of the outcome; a remark, by hand."""

    rows: int
    threads: int
    seconds: float
    processor_seconds: float
    peak_mib: float
    form: str
    root_error: float
    root_error_of_mean: float
    copy_seconds: float
    read_seconds: float
    gradient_seconds: float
    note: str = ""


def effect(x: np.ndarray) -> np.ndarray:
    """Return the true effect at covariates [n, 30]."""
    return 1 + x[:, 0] - 0.5 * x[:, 1] + x[:, 2] * x[:, 3]


def drawn(rows: int, seed: int) -> pa.Table:
    """Draw records of the design."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, COLUMNS))
    a = rng.random(rows) < 1 / (1 + np.exp(-x[:, 0] - 0.5 * x[:, 4]))
    y = x[:, 0] + np.sin(3 * x[:, 5]) + a * effect(x) + 0.5 * rng.standard_normal(rows)
    columns = {name: x[:, j] for j, name in enumerate(NAMES)}
    return pa.table({**columns, "a": a.astype(np.int8), "y": y.clip(-6, 8)})


def write(path: Path, rows: int) -> None:
    """Write records, some at a time."""
    writer = None
    for start in range(0, rows, CHUNK):
        table = drawn(min(CHUNK, rows - start), seed=start)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=131_072)
    assert writer is not None
    writer.close()


def write_all(folder: Path, rows: int) -> None:
    """Write records and their domain, as ``trained`` reads them."""
    write(folder / "table.parquet", rows)
    (folder / "domain.yaml").write_text(yaml.safe_dump(DOMAIN))


def trained(folder: Path, threads: int, more: Sequence[str] = ("data.stream=true",)) -> tuple[float, float, float]:
    """Run the program; return its seconds, seconds of processor time and peak resident memory in MiB."""
    words = ["data=table", "data.path=table.parquet", "data.domain=domain.yaml", "run_dir=run", *more]
    code = "import sys; from torchdpcate.cli.main import main; sys.exit(main(sys.argv[1:]))"
    start = time.perf_counter()
    run = subprocess.Popen(
        [sys.executable, "-c", code, "train", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
    )
    _, status, usage = os.wait4(run.pid, 0)
    if status:
        raise SystemExit("the run failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def passes(stream: TableStream, folder: Path) -> tuple[float, float, float]:
    """Return seconds of writing a copy, of a pass that only reads it, and of one that works out a gradient of it."""
    start = time.perf_counter()
    with CachedStream(stream, folder) as cached:
        copied, start = time.perf_counter() - start, time.perf_counter()
        for _ in cached:
            pass
        read = time.perf_counter() - start
        plan = AdaptiveSecondStage().plan(stream.n, PrivacyBudget(1.0, 1e-5), stream.schema.domain)
        basis = plan.effect((False,) * plan.retained).basis
        theta, start = torch.zeros(len(basis.feature_weights), dtype=torch.float64), time.perf_counter()
        for batch in cached:
            _gradient(batch, basis, plan.retained, theta)
        return copied, read, time.perf_counter() - start


def _gradient(batch: CausalData, basis: object, kept: int, theta: torch.Tensor) -> torch.Tensor:
    psi, pi = basis(batch.x[:, :kept]), torch.full_like(batch.y, 0.5)  # type: ignore[operator]
    return effect_fit(psi, batch.y, batch.a - pi, pi, 1.0).gradient(theta)


def root_errors(path: Path) -> Iterator[float]:
    """Yield the root mean squared error of a release, and of its mean."""
    table = drawn(20_000, seed=1 << 40).to_pandas()
    truth = effect(table[NAMES].to_numpy())
    found = load_release(path).effect(table[NAMES])
    for estimate in (found, np.full_like(truth, truth.mean())):
        yield float(np.sqrt(np.mean((estimate - truth) ** 2)))


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            measured(Path(folder), rows, options.threads)


def measured(folder: Path, rows: int, threads: int) -> None:
    """Print the figures of one size."""
    write_all(folder, rows)
    size = (folder / "table.parquet").stat().st_size / 2**30
    print(f"{rows:,} rows x {COLUMNS} covariates, {size:.2f} GiB of parquet, {threads} threads")
    seconds, busy, peak = trained(folder, threads)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    error, constant = root_errors(folder / "run" / "release" / "release.safetensors")
    print(f"train: {seconds:.0f} s, {busy:.0f} s of processor time, {peak:.0f} MiB at most; {summary['form']}")
    print(f"RMSE of the effect {error:.4f}, of its true mean {constant:.4f}")
    copied, read, step = passes(TableStream(folder / "table.parquet", folder / "domain.yaml"), folder)
    print(
        f"copy {copied:.1f} s; a pass that reads {read:.2f} s, with a gradient {step:.2f} s ({step / read:.1f} times)"
    )
    found = Figures(rows, threads, seconds, busy, peak, summary["form"], error, constant, copied, read, step)
    with Appender(FIGURES, [field.name for field in fields(Figures)]) as file:
        file.write(found, digits=5)


if __name__ == "__main__":
    main()
