"""One composition of an effect on a stream of records: time and memory, each step one pass.

Records of design D of Niu et al. lie in a file of float32 numbers and are read a batch at a time. Each size runs in a
process of its own. ``--steps`` and ``--levels`` cut the plan's steps of a regression and halvings of a
quantile; what the whole plan would take is printed beside, by the time of each of its passes.

    python experiments/benchmarks/composed_effect.py [--rows 10000000] [--steps 5] [--levels 4] [--threads 1]
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.streamed import StreamedFit, stream_composition
from torchdpcate.data.niu import Niu
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

BUDGET = PrivacyBudget(1.0, 1e-5)
CHUNK, BATCH = 500_000, 32_768
STUDY = Niu("D", n=3_000)
GROWTH_LIMIT = 1.1  # of memory, from a tenth of the rows to all of them, and 16 MiB beside it


class Numbers(RecordStream):
    """Records of a file of float32 numbers: covariates, treatment, outcome."""

    def __init__(self, path: str) -> None:
        self.schema, self.path = STUDY.schema(), path
        self.columns = self.schema.domain.dimension + 2
        self.n = Path(path).stat().st_size // (4 * self.columns)
        self.ends: list[float] = []  # seconds at the end of each reading

    def __iter__(self) -> Iterator[CausalData]:
        """Yield all records."""
        with open(self.path, "rb") as file:
            while (numbers := np.fromfile(file, np.float32, BATCH * self.columns)).size:
                part = torch.from_numpy(numbers.reshape(-1, self.columns).astype(np.float64))
                yield CausalData(part[:, :-2], part[:, -2], part[:, -1])
        self.ends.append(time.perf_counter())


def write(path: Path, rows: int) -> None:
    """Write records of the design, some at a time."""
    with path.open("wb") as file:
        for start in range(0, rows, CHUNK):
            drawn = Niu("D", n=min(CHUNK, rows - start), seed=start, train_fraction=1.0 - 1e-4)._sample()
            numbers = torch.cat([drawn.x, drawn.a[:, None], drawn.y[:, None]], 1)
            numbers.float().numpy().tofile(file)


def fitted(path: str, constants: PlanConstants, threads: int) -> tuple[list[float], float, float, float, int]:
    """Fit from a file; return seconds of each pass, of CPU time, peak MiB beyond imports, error, and passes of all."""
    torch.set_num_threads(threads)
    stream, domain = Numbers(path), STUDY.domain()
    plan = ComposedPlan.of(stream.n, BUDGET, domain, constants=constants)
    session = FitSession.open({"records": stream.n}, BUDGET, NoiseSource.system()).scope(["records"], TRAINING)
    before, start, busy = most_memory(), time.perf_counter(), time.process_time()
    fit = stream_composition(stream, domain, plan, session, stream.schema.two_levels)
    busy, seconds = time.process_time() - busy, np.diff([start, *stream.ends]).tolist()
    full = ComposedPlan.of(stream.n, BUDGET, domain)
    passes = 3 * full.constants.quantile_levels + 1 + 3 * (1 + full.steps)
    return seconds, busy, most_memory() - before, error(fit), passes


def error(fit: StreamedFit) -> float:
    """Return the root mean squared error of the effect at held-out points."""
    study = STUDY.load()
    z = fit.standardisation(STUDY.domain().scale(study.queries))
    found = fit.effect.regression.basis(z) @ fit.effect.shrunk
    return float((found - study.effect).square().mean().sqrt())


def most_memory() -> float:
    """Return the peak of this process' resident memory in MiB; ``resource`` counts its parent's too (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=5, help="of each regression; 0 takes the plan's")
    parser.add_argument("--levels", type=int, default=4, help="of each quantile")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    constants = PlanConstants(quantile_levels=options.levels)
    if options.steps:
        constants = PlanConstants(quantile_levels=options.levels, step_bounds=(options.steps, options.steps))
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for many in (options.rows // 10, options.rows):
            path = Path(folder) / "records.f32"
            write(path, many)
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                found = process.submit(fitted, str(path), constants, options.threads).result()
            seconds, busy, grown, rmse, passes = found
            peaks.append(grown)
            print(
                f"stream of {many:,} records ({path.stat().st_size >> 20} MiB): {len(seconds)} passes in "
                f"{sum(seconds):.0f} s ({busy:.0f} s of CPU time), {min(seconds):.2f} to {max(seconds):.2f} s each; "
                f"{grown:.0f} MiB over the imports; root error of the effect {rmse:.3f}; the whole plan has {passes} "
                f"passes, about {passes * busy / len(seconds) / 60:.0f} min of CPU time",
                flush=True,
            )
    if peaks[1] > GROWTH_LIMIT * peaks[0] + 16:
        raise SystemExit("memory grows with the records")


if __name__ == "__main__":
    main()
