"""Streamed normal equations: speed against a bare GEMM of the same shapes, and memory over millions of rows.

The speed side adds batches that lie in memory, so that nothing but the sums is timed; the baseline is ``torch.mm`` of
the same batches. The memory side works out Fourier features of generated covariates batch by batch, as a fit does.

    python experiments/benchmarks/normal_equations.py --threads 1
    python experiments/benchmarks/normal_equations.py --device cuda
"""

import argparse
import resource
import time
from statistics import median

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.fit.minimise import NormalEquations

SHARE_LIMIT, EXTRA_MIB = 0.6, 300


def finish(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work, batches: list, device: torch.device) -> float:
    """Seconds of work(batch) over all batches."""
    finish(device)
    start = time.perf_counter()
    for batch in batches:
        work(*batch)
    finish(device)
    return time.perf_counter() - start


def speed(rows: int, m: int, batch: int, repeats: int, device: torch.device) -> float:
    """Print times and rates of both sides; return the share of the GEMM's rate."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(batch, m, dtype=torch.float64, generator=generator).to(device)
    s = torch.randn(batch, dtype=torch.float64, generator=generator).to(device)
    batches, out = [(v, s)] * (rows // batch), torch.empty(m, m, dtype=torch.float64, device=device)
    ours, bare = [], []
    for _ in range(repeats):
        equations = NormalEquations(m, device)
        ours.append(timed(equations.add, batches, device))
        bare.append(timed(lambda v, s: torch.mm(v.T, v, out=out), batches, device))
    flops = 2 * len(batches) * batch * m**2
    share = median(b / o for b, o in zip(bare, ours, strict=True))
    for name, seconds in (("NormalEquations.add", median(ours)), ("torch.mm", median(bare))):
        print(f"  {name}: {seconds:.3f} s, {flops / seconds / 1e9:.1f} GFlop/s")
    return share


def memory(rows: int, m: int, batch: int, device: torch.device) -> float:
    """Stream generated rows; return the peak memory in MiB beyond what there was before."""
    domain = Domain([-1.0] * 30, [1.0] * 30, 0.0, 1.0)
    features, generator = Fourier(m // 2).setup(domain).to(device), torch.Generator().manual_seed(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    equations, start = NormalEquations(m, device), time.perf_counter()
    for _ in range(rows // batch):
        x = (2 * torch.rand(batch, 30, dtype=torch.float64, generator=generator) - 1).to(device)
        equations.add(features(x), x[:, 0])
    theta = equations.solve(torch.tensor([1e-4, 1e-3, 1e-2], dtype=torch.float64))
    finish(device)
    print(f"  {equations.n:,} rows and 3 ridges: {time.perf_counter() - start:.1f} s, theta {tuple(theta.shape)}")
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--streamed", type=int, default=2_000_000, help="rows of the memory side")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, m = torch.device(options.device), options.features
    print(f"m = {m}, batches of {options.batch:,}, {device}, {options.threads} thread(s)")
    print(f"memory: {options.streamed:,} rows of {m} features would be {options.streamed * m * 8 / 2**20:,.0f} MiB")
    extra = memory(options.streamed, m, options.batch, device)
    print(f"  {extra:.0f} MiB beyond the start (limit {EXTRA_MIB})")
    print(f"speed: {options.rows:,} rows")
    share = speed(options.rows, m, options.batch, options.repeats, device)
    print(f"  share of the GEMM's rate {share:.2f} (limit {SHARE_LIMIT})")
    if share < SHARE_LIMIT or extra > EXTRA_MIB:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
