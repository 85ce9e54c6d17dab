"""Time of weighted convex fits: one large one against scikit-learn's, many small ones at once against one by one.

Both sides minimise the same objective and must agree. The simulations of outcome weighted learning fit 200 data sets
of 1,000 records with 5 features; a benchmark of releases fits 200 linear terms of one data set.

    python experiments/benchmarks/weighted_erm.py --threads 1
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression

from torchdpcate.fit.losses import HuberHinge, Logistic
from torchdpcate.fit.minimise import default_tolerance, minimise

GAMMA, MOST = 60.0, 4.0
LARGE_LIMIT, MANY_LIMIT = 3.0, 1.0  # seconds of the large fit, and of many small ones at once
SOLVERS = ("lbfgs", "newton-cholesky")  # the default, and the one that is as accurate as ours
APART = 1e-5


def records(shape: tuple[int, ...], p: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of unit norm, labels from a noisy linear score, and weights up to MOST."""
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(*shape, p, dtype=torch.float64, generator=generator)
    psi = psi / psi.norm(dim=-1, keepdim=True)
    score = psi[..., 0] - psi[..., 1] + 0.5 * torch.randn(*shape, dtype=torch.float64, generator=generator)
    return psi, score.sign(), MOST * torch.rand(*shape, dtype=torch.float64, generator=generator)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what was made."""
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def large(n: int, p: int, repeats: int) -> bool:
    """One fit of n records, logistic loss; returns whether a limit is missed."""
    psi, target, weights = records((n,), p, 0)
    data, zero = [part.numpy() for part in (psi, target, weights)], torch.zeros(1, p)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {solver: [] for solver in SOLVERS}
    for _ in range(repeats):
        seconds, theta = timed(
            lambda: minimise(psi, target, weights, Logistic(), GAMMA, zero, default_tolerance(1.0, MOST))
        )
        ours.append(seconds)
        for solver in SOLVERS:
            other = LogisticRegression(C=1 / GAMMA, fit_intercept=False, tol=1e-8, max_iter=1_000, solver=solver)
            seconds, _ = timed(partial(other.fit, data[0], data[1], sample_weight=data[2]))
            theirs[solver].append(seconds)
            gap = float((theta[0] - torch.as_tensor(other.coef_[0])).norm())
            if gap > APART:
                raise SystemExit(f"{solver} is {gap:.1e} away")
    print(f"n = {n:,}, p = {p}, logistic loss: {median(ours):.2f} s (limit {LARGE_LIMIT:g} s)")
    for solver, times in theirs.items():
        ratio = median(t / o for t, o in zip(times, ours, strict=True))
        print(f"  LogisticRegression ({solver}) {median(times):.2f} s, ratio {ratio:.1f}")
    hinge = timed(lambda: minimise(psi, target, weights, HuberHinge(0.5), GAMMA, zero, default_tolerance(1.0, MOST)))
    print(f"  Huber's hinge {hinge[0]:.2f} s")
    return median(ours) > LARGE_LIMIT


def many(name: str, runs: int, n: int, p: int, repeats: int, shared: bool) -> bool:
    """Runs small fits at once, and one by one; returns whether a limit is missed."""
    psi, target, weights = records((n,) if shared else (runs, n), p, 1)
    linear_terms = 20 * records((runs,), p, 2)[0]
    loss, stop = HuberHinge(0.5), default_tolerance(1.0, MOST)

    def alone() -> torch.Tensor:
        rows = [(psi, target, weights) if shared else (psi[k], target[k], weights[k]) for k in range(runs)]
        return torch.cat([minimise(*row, loss, GAMMA, linear_terms[k : k + 1], stop) for k, row in enumerate(rows)])

    together, single, gap = [], [], 0.0
    for _ in range(repeats):
        seconds, thetas = timed(lambda: minimise(psi, target, weights, loss, GAMMA, linear_terms, stop))
        together.append(seconds)
        seconds, solved = timed(alone)
        single.append(seconds)
        gap = max(gap, float((thetas - solved).norm(dim=1).max()))
    ratio = median(s / t for s, t in zip(single, together, strict=True))
    print(f"{runs} {name}, n = {n:,}, p = {p}: at once {median(together):.3f} s (limit {MANY_LIMIT:g} s)")
    print(f"  one by one {median(single):.3f} s, ratio {ratio:.1f}, largest distance {gap:.1e}")
    return median(together) > MANY_LIMIT or gap > APART


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} thread(s)")
    missed = large(options.records, options.features, options.repeats)
    for n in (200, 1_000):
        missed |= many("data sets", options.runs, n, 5, options.repeats, shared=False)
    missed |= many("linear terms of one data set", options.runs, 1_000, 5, options.repeats, shared=True)
    if missed:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
