"""Time of many average effects side by side against one by one, and time and memory of one over a long stream.

The repeats are whole mechanisms (weights, outcome model, sums, interval) on data sets of their own, of the confounded
design; one by one they are the same code with one data set each. The stream is a parquet file of that design, made for
the purpose in a temporary folder and read by a process of its own.

    python experiments/benchmarks/average_effects.py --threads 1
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from torchdpcate import Confounded, CovariateBalancingEffect, PrivacyBudget, TableStream
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.balancing_plan import BalancingPlan
from torchdpcate.estimators.average.covariate_balancing import make_plan
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords, make_batch
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.estimate import half_width

SECONDS_LIMIT, GROWTH_LIMIT = 60.0, 1.1
ETA, LEVEL = 0.1, 0.95
CHUNK = 1_000_000  # rows that are drawn at a time
FIXED = 131_072  # bytes from which glibc maps a block by itself


def data_sets(runs: int, n: int, plan: BalancingPlan, seed: int) -> StackedRecords:
    """Draw data sets of n records each, side by side."""
    design = Confounded()
    drawn = design.draw(runs * n, torch.Generator().manual_seed(seed))
    flat = make_batch(drawn, plan.features, design.domain())
    return StackedRecords(Batch(*(part.unflatten(0, (runs, n)) for part in flat)))


def one_of(records: StackedRecords, i: int) -> StackedRecords:
    """Return one of the data sets."""
    return StackedRecords(Batch(*(part[i] for part in records.batch)))


def estimated(records: StackedRecords, plan: BalancingPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the mechanism on each data set; return estimates and half widths of their intervals, [runs] each."""
    found = plan.run(records, NoiseSource.system())
    return found.estimate, half_width(LEVEL, found.gaussian, found.laplace)


def repeats(runs: int, n: int, epsilon: float, looped: int) -> bool:
    """Print times, errors and coverage; return whether the limit is missed."""
    design = Confounded()
    features = on_domain(None, design.domain())
    plan = make_plan(n, features, ATE(ETA), PrivacyBudget(epsilon, 0.0))
    records = data_sets(runs, n, plan, seed=0)
    estimated(one_of(records, 0), plan)  # imports and caches
    start = time.perf_counter()
    estimates, halves = estimated(records, plan)
    batched = time.perf_counter() - start
    start = time.perf_counter()
    for i in range(looped):
        estimated(one_of(records, i), plan)
    single = (time.perf_counter() - start) * runs / looped
    errors = estimates - design.average_effect("ATE")
    print(
        f"{runs} repeats, {n:,} records each, epsilon {epsilon:g} ({'balancing' if plan.balancing else 'logistic'} "
        f"loss): {batched:.2f} s side by side, {single:.2f} s one by one ({single / batched:.1f} times)"
    )
    print(
        f"  mean squared error {errors.square().mean():.2e}, {LEVEL:.0%} intervals hold the truth in "
        f"{(errors.abs() <= halves).double().mean():.1%} of the repeats, mean length {2 * halves.mean():.3f}"
    )
    return batched > SECONDS_LIMIT


def write(path: Path, rows: int) -> None:
    """Write records of the confounded design, some at a time."""
    design, writer = Confounded(), None
    for start in range(0, rows, CHUNK):
        drawn = design.draw(min(CHUNK, rows - start), torch.Generator().manual_seed(start))
        columns = dict(zip(design.domain().names, drawn.x.T.numpy(), strict=True))
        columns |= {"a": drawn.a.numpy().astype(np.int8), "y": drawn.y.numpy()}
        table = pa.table(columns)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=131072)
    assert writer is not None
    writer.close()


def streamed(path: str, threads: int) -> tuple[float, float, float, float]:
    """Estimate from a file; return estimate, half width, seconds, and peak memory in MiB beyond what imports took."""
    torch.set_num_threads(threads)
    design = Confounded()
    before = most_memory()
    start = time.perf_counter()
    stream = TableStream(path, design.domain())
    learner = CovariateBalancingEffect(design.domain(), PrivacyBudget(1.0, 0.0))
    release = learner.fit_stream(stream).release()
    ((low, high),) = release.interval(LEVEL)
    seconds = time.perf_counter() - start
    return release.estimate[0], (high - low) / 2, seconds, most_memory() - before


def most_memory() -> float:
    """Return the peak of this process' resident memory in MiB; ``resource`` counts its parent's too (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def streams(rows: int, threads: int) -> bool:
    """Print time and memory at a tenth of the rows and at all; return whether memory grows.

    By default glibc raises the size from which it maps blocks by themselves, and what is freed below it leaves holes in
    the heap: their number grows with the passes, not what the program holds. A fixed size, as here, leaves none.
    """
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(FIXED)
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for many in (rows // 10, rows):
            path = Path(folder) / "records.parquet"
            write(path, many)
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                estimate, half, seconds, grown = process.submit(streamed, str(path), threads).result()
            peaks.append(grown)
            print(
                f"stream of {many:,} records ({path.stat().st_size >> 20} MiB of parquet): {seconds:.1f} s, "
                f"{grown:.0f} MiB over the imports; {estimate:.4f} ± {half:.4f}"
            )
    return peaks[1] > GROWTH_LIMIT * peaks[0] + 16  # allocators differ by so much from run to run


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--looped", type=int, default=300, help="repeats that are timed one by one")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the stream; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} thread(s); wanted: 300 repeats in {SECONDS_LIMIT:g} s, a stream in constant memory")
    missed = False
    for epsilon in (0.5, 1.0, 5.0):
        missed |= repeats(options.runs, options.records, epsilon, min(options.looped, options.runs))
    if options.rows:
        missed |= streams(options.rows, options.threads)
    if missed:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
