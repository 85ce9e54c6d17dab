"""Time of replace-one refits of the linear head: all at once, against one `solve` for each.

Both sides refit the same neighbours, and must agree. Of the one-by-one side some are timed and the rest reckoned
from them; it starts from zero each time, as `solve` does.

    python experiments/benchmarks/refits.py --threads 1
"""

import argparse
import dataclasses
import math
import time
from statistics import median

import torch

from experiments.audit.refit import Replacements, refit
from torchdpcate.heads.linear import LinearProblem, solve

BOUND, TARGET, RIDGE = 0.9, 1.0, 0.01
RATIO_LIMIT = {math.inf: 20, 0.5: 5}


def records(n: int, p: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unit features, targets and weights within the bounds."""
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(n, p, dtype=torch.float64, generator=generator)
    s = torch.randn(n, dtype=torch.float64, generator=generator).clamp(-TARGET, TARGET)
    w = BOUND * (2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1)
    return psi / psi.norm(dim=1, keepdim=True), s, w


def one_by_one(problem: LinearProblem, candidates: Replacements, count: int) -> torch.Tensor:
    """The baseline: a new regression and a solve for each of the first neighbours."""
    thetas = []
    for k in range(count):
        psi, s, w, i = problem.psi.clone(), problem.s.clone(), problem.w.clone(), candidates.index[k]
        psi[i], s[i], w[i] = candidates.psi[k], candidates.s[k], candidates.w[k]
        thetas.append(solve(dataclasses.replace(problem, psi=psi, s=s, w=w)).theta)
    return torch.stack(thetas)


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_350)
    parser.add_argument("--features", type=int, default=61)
    parser.add_argument("--refits", type=int, default=2_000)
    parser.add_argument("--timed", type=int, default=200, help="solves of the baseline that are timed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n, p, K = options.records, options.features, options.refits
    print(f"n = {n:,}, p = {p}, {K:,} refits, {options.threads} thread(s)")
    missed = False
    for threshold, limit in RATIO_LIMIT.items():
        problem = LinearProblem(*records(n, p, 0), RIDGE, BOUND, TARGET, threshold)
        index = torch.randint(n, (K,), generator=torch.Generator().manual_seed(1))
        candidates = Replacements(index, *records(K, p, 2))
        batched, single, gap = [], [], 0.0
        for _ in range(options.repeats):
            start = time.perf_counter()
            thetas = refit(problem, candidates.index, candidates.psi, candidates.s, candidates.w)
            batched.append(time.perf_counter() - start)
            start = time.perf_counter()
            solved = one_by_one(problem, candidates, options.timed)
            single.append((time.perf_counter() - start) * K / options.timed)
            gap = max(gap, float((thetas[: options.timed] - solved).norm(dim=1).max()))
        ratio = median(s / b for s, b in zip(single, batched, strict=True))
        name = "squared" if math.isinf(threshold) else f"Huber, threshold {threshold}"
        print(f"{name}: all at once {median(batched):.3f} s, one `solve` each {median(single):.2f} s")
        print(f"  ratio {ratio:.0f} (limit {limit}), largest distance {gap:.1e}")
        missed |= ratio < limit or gap > 1e-9
    if missed:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
