"""Effects from a feature release against the bare expression product, cos, sin, product on the same arrays.

Timed are the head alone (``features.product``), the whole ``effect_tensor`` of a release (scaling, nuisance networks
and clip included), and with ``--stream`` the memory of ``torchdpcate predict`` on two lengths of a parquet file.

    python experiments/benchmarks/feature_release.py --threads 1
    python experiments/benchmarks/feature_release.py --stream
"""

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.release.release import FunctionRelease
from torchdpcate.release.statement import PrivacyStatement

RATIO_LIMIT = 1.3
_PEAK = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-c", "from torchdpcate.cli.main import main; main()", *sys.argv[1:]]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
raise SystemExit(code)
"""


def made_release(q: int, m: int) -> FunctionRelease:
    """A release of m frequencies on q covariates with untrained networks: times do not depend on the weights."""
    torch.manual_seed(0)
    domain = Domain([-2.0] * q, [3.0] * q, 0.0, 1.0)
    nuisances = Nuisances(domain).double().eval().requires_grad_(False)
    theta = torch.randn(2 * m, dtype=torch.float64)
    statement = PrivacyStatement("output", "f", "heuristic", "no privacy guarantee", None, None, 0, [])
    return FunctionRelease(theta, Fourier(m).setup(domain), nuisances, TableSchema.from_domain(domain), statement, 0.1)


def bare(x: torch.Tensor, frequencies: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """The expression with nothing around it: covariates are scaled already, and the factor is in theta."""
    angles, m = x @ frequencies, frequencies.shape[1]
    return angles.cos() @ theta[:m] + angles.sin() @ theta[m:]


def speed(options: argparse.Namespace) -> bool:
    """Print times and ratios; return whether a limit is missed."""
    release = made_release(options.covariates, options.frequencies)
    x = release.domain.grid(options.rows)
    scaled, theta = release.domain.scale(x), release.theta / math.sqrt(options.frequencies)
    sides = {
        "bare expression": lambda: bare(scaled, release.features.frequencies, theta),
        "head": lambda: release.features.product(release.theta, x),
        "whole effect": lambda: release.effect_tensor(x),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, work in sides.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    gap = float((sides["head"]() - sides["bare expression"]()).abs().max())
    print(f"largest difference of head and bare expression {gap:.1e}")
    missed = gap > 1e-12
    for name, own in seconds.items():
        ratio = median(o / b for o, b in zip(own, seconds["bare expression"], strict=True))
        print(f"{name}: {median(own):.3f} s, ratio {ratio:.2f} (limit {RATIO_LIMIT})")
        missed |= ratio > RATIO_LIMIT
    return missed


def stream(options: argparse.Namespace) -> bool:
    """Print the peak memory of ``torchdpcate predict`` at a quarter of the rows and at all; return whether it grows."""
    release = made_release(options.covariates, options.frequencies)
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        path = release.save(Path(folder) / "release.safetensors")
        for rows in (options.rows // 4, options.rows):
            table = Path(folder) / f"{rows}.parquet"
            values = np.random.default_rng(0).uniform(-2, 3, (rows, options.covariates))
            pd.DataFrame(values, columns=list(release.domain.names)).to_parquet(table, row_group_size=65_536)
            words = ["predict", str(path), str(table), "-o", str(Path(folder) / "effects.parquet")]
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", _PEAK, *words], capture_output=True, text=True, check=True)
            peaks.append(int(done.stdout.split()[-1]))
            print(f"predict, {rows:,} rows: {time.perf_counter() - start:.1f} s, {peaks[-1]} MiB")
    return peaks[1] > 1.1 * peaks[0]


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--covariates", type=int, default=30)
    parser.add_argument("--frequencies", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--stream", action="store_true", help="memory of torchdpcate predict instead")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"m = {options.frequencies}, q = {options.covariates}, {options.rows:,} rows, {options.threads} thread(s)")
    if stream(options) if options.stream else speed(options):
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
