"""Kernel ridge: fit, answers and influence directions at the queries, against a bare Cholesky and solves of that size.

The baseline gets its matrix ready made and factors it, then solves with one right-hand side for the fit and one for
each query: what no exact method can do without. The other side starts from covariates: kernel matrix, factor, fit with
its gradient norm, answers, and the directions h of the influence function at the queries. Both sides must agree. Huber
fits, which need a factor of the records within the threshold and updates of it, are timed beside them.

    python experiments/benchmarks/kernel_ridge.py --threads 1

Beyond ``--largest-dense`` records no matrix fits, so there is no baseline: the squared fit by products alone is timed,
and what its stop adds to the sensitivity is printed. Its residuals at 200 records are worked out anew, by differences
of covariates and without tiles.

    python experiments/benchmarks/kernel_ridge.py --threads 1 --records 100000 --queries 3
"""

import argparse
import math
import resource
import time
from statistics import median

import torch

from torchdpcate import Domain
from torchdpcate.causal.score import ScoreBounds
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.kernel import KernelInfluenceFunction, KernelStage
from torchdpcate.heads.kernel_system import SQUARED, ResidualLoss
from torchdpcate.heads.stage import SecondStageBlock

LIMIT = 1.5
BOUND, RIDGE = 0.9, 1e-3
QUANTILES = (0.9, 0.5)  # of |s| that become Huber thresholds


def records(n: int, q: int, seed: int) -> SecondStageBlock:
    """Uniform covariates, an effect that bends, and noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, q, dtype=torch.float64, generator=generator)
    w = BOUND * (2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1)
    noise = 0.3 * torch.randn(n, dtype=torch.float64, generator=generator)
    s = (w * torch.sin(5 * x[:, 0]) + noise).clamp(-1, 1)
    domain = Domain([0.0] * q, [1.0] * q, -1.0, 1.0)
    return SecondStageBlock(x, s, w, lambda x, a, y: (y, a), domain, ScoreBounds(BOUND, 1.0, BOUND**2, BOUND))


def bare(matrix: torch.Tensor, rhs: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Seconds of the factor and its solves, and what they gave."""
    start = time.perf_counter()
    solved = torch.cholesky_solve(rhs, torch.linalg.cholesky(matrix))
    return time.perf_counter() - start, solved


def ours(stage: KernelStage, queries: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Seconds of all that a query release asks of the stage; its answers, and its directions at the queries."""
    start = time.perf_counter()
    answers = stage.correction(queries)
    h, _ = KernelInfluenceFunction(stage, queries).direction(queries)
    return time.perf_counter() - start, answers, h


def huber(stage: KernelStage, quantile: float) -> str:
    """A line on one Huber fit."""
    tau = stage.block.s.abs().quantile(quantile).item()
    fitted = KernelStage(stage.block, stage.kernel, stage.ridge, ResidualLoss(tau))
    start = time.perf_counter()
    beyond = int((fitted.fit.residual.abs() > tau).sum())
    seconds = time.perf_counter() - start
    return f"Huber, threshold at quantile {quantile}: {seconds:.2f} s, {beyond:,} records beyond it, gradient norm " + (
        f"{fitted.gradient_norm:.0e}"
    )


def by_products(stage: KernelStage, queries: torch.Tensor) -> float:
    """Print time, memory and exactness of a fit without a matrix; return the largest error of a residual."""
    start = time.process_time()
    stage.system  # noqa: B018  # computed on first use
    made = time.process_time()
    answers, added = stage.correction(queries), stage.gradient_norm / (2 * stage.ridge)
    fitted = time.process_time()
    print(f"CPU time: preconditioner {made - start:.1f} s, fit and {len(queries)} answers {fitted - made:.1f} s")
    print(
        f"gradient norm {stage.gradient_norm:.1e} (tolerance {stage.tolerance:.1e}), largest answer {answers.max():.3f}"
    )
    print(f"within {added:.1e} of the minimiser, the sensitivity being {stage.sensitivity:.1e}")
    print(f"most memory, with imports: {memory():.2f} GiB (a matrix: {stage.n**2 / 2**27:.0f} GiB)")
    some, block = slice(0, stage.n, max(1, stage.n // 200)), stage.block
    again = block.s[some] - block.w[some] * stage.correction(block.x[some])
    gap = float((again - stage.fit.residual[some]).abs().max())
    print(f"largest difference of residuals worked out anew: {gap:.1e}")
    if len(queries):
        start = time.process_time()
        h, _ = KernelInfluenceFunction(stage, queries).direction(queries)
        seconds = time.process_time() - start
        print(f"directions at the queries: {seconds:.1f} s of CPU, largest {float(h.abs().max()):.3g}")
        print(f"most memory: {memory():.2f} GiB")
    return gap


def memory() -> float:
    """Largest resident set of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--covariates", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest-dense", type=int, default=15_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n, d, q = options.records, options.queries, options.covariates
    print(f"n = {n:,}, d = {d:,}, q = {q}, {options.threads} thread(s)")
    block, queries = records(n, q, 0), records(d, q, 1).x
    kernel = UnitKernel(math.sqrt(q), block.domain)
    ours(KernelStage(records(100, q, 2), kernel, RIDGE), queries)  # imports, and the first call of everything
    if n > options.largest_dense:
        if by_products(KernelStage(block, kernel, RIDGE, largest_dense=options.largest_dense), queries) > 1e-10:
            raise SystemExit("a limit is missed")
        return
    w, cross = block.w, kernel(block.x, queries)
    rhs = torch.cat([block.s[:, None], w[:, None] * cross], 1)
    times, gap = [], 0.0
    for _ in range(options.repeats):
        matrix = kernel(block.x, block.x).mul_(w).mul_(w[:, None])
        matrix.diagonal().add_(n * RIDGE)
        seconds, solved = bare(matrix, rhs)
        del matrix
        stage = KernelStage(block, kernel, RIDGE, SQUARED)
        other, answers, h = ours(stage, queries)
        times.append((seconds, other))
        u, T = solved[:, 0], solved[:, 1:].T
        expected = (kernel(queries, queries) - T @ (w[:, None] * cross)) / RIDGE
        gap = max(gap, float((answers - cross.T @ (w * u)).abs().max()), float((h - expected.T).abs().max()) * RIDGE)
        del stage, solved
    ratio = median(b / a for a, b in times)
    print(f"bare Cholesky and {d + 1} solves: {median(a for a, _ in times):.2f} s")
    print(f"kernel, fit, answers and directions: {median(b for _, b in times):.2f} s")
    print(f"  ratio {ratio:.2f} (limit {LIMIT}), largest difference {gap:.1e}")
    stage = KernelStage(block, kernel, RIDGE)
    for quantile in QUANTILES:
        print(huber(stage, quantile))
    print(f"most memory: {memory():.2f} GiB")
    if ratio > LIMIT or gap > 1e-8:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
