"""Time and memory of the utilities of a library of policies, against two plain ways to sum their scores.

The baselines are a loop over policies, and one gather of the scores by all decisions [n, M] at once (on a part of the
records where these would not fit). All sides alternate within a run and must agree to the last bit.

    python experiments/benchmarks/policy_utilities.py --threads 1
"""

import argparse
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import torch
from torch import Tensor

from torchdpcate.candidates.kinds import LinearPolicies, PolicyFamily, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.scores import utilities
from torchdpcate.privacy.exact_sums import sum_grid

BOUND = 11.0  # of a score: outcomes of range one, propensities of at least a tenth
SECONDS_LIMIT, RATIO_LIMIT, MIB_LIMIT = 2.0, 1.0, 300.0
DENSE_MOST = 2**27  # decisions that the dense baseline may hold
LOOP_MOST = 40  # policies that the loop is timed on; the rest is reckoned from them

Way = Callable[[Tensor, PolicyLibrary, Tensor], Tensor]


def records(n: int, q: int, K: int) -> tuple[Tensor, Tensor]:
    """Scores on the grid [n, K] and covariates [n, q]."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(n, q, generator=generator, dtype=torch.float64) - 1
    scores = BOUND * (2 * torch.rand(n, K, generator=generator, dtype=torch.float64) - 1)
    step = sum_grid(n, BOUND)
    return torch.round(scores / step) * step, x


def libraries(M: int, q: int, K: int) -> dict[str, list[PolicyFamily]]:
    """Policies by kind; thresholds decide between two actions only."""
    generator = torch.Generator().manual_seed(1)
    shape = (M, q) if K == 2 else (M, K, q)
    found: dict[str, list[PolicyFamily]] = {
        "linear": [LinearPolicies(torch.randn(shape, generator=generator, dtype=torch.float64))]
    }
    if K == 2:
        cuts = torch.linspace(-0.95, 0.95, M // q, dtype=torch.float64).tolist()
        found["thresholds"] = [Thresholds(f"x{j}", cuts) for j in range(q)]
    return found


def by_loop(scores: Tensor, library: PolicyLibrary, x: Tensor) -> Tensor:
    """A policy at a time: decide, pick, sum."""
    found = []
    for m in range(min(len(library), LOOP_MOST)):
        decisions = library.ready[m].decide(x)  # type: ignore[attr-defined]
        found.append(scores.gather(1, decisions.long()).sum())
    return torch.stack(found)


def by_gather(scores: Tensor, library: PolicyLibrary, x: Tensor) -> Tensor:
    """All decisions at once, and as many picked scores."""
    return scores.gather(1, library.decide(x).long()).sum(0)


def seconds(way: Way, scores: Tensor, library: PolicyLibrary, x: Tensor) -> tuple[float, Tensor]:
    """Wall time of one way, and what it found."""
    start = time.perf_counter()
    found = way(scores, library, x)
    return time.perf_counter() - start, found


def compare(kind: str, n: int, M: int, q: int, K: int, repeats: int, threads: int) -> bool:
    """Print the figures of one library, in a process whose peak memory is its own; return whether a limit is missed."""
    torch.set_num_threads(threads)
    scores, x = records(n, q, K)
    domain, actions = Domain([-1.0] * q, [1.0] * q, 0.0, 1.0), tuple(range(K))
    library = PolicyLibrary.of(libraries(M, q, K)[kind]).setup(domain, actions)
    part = min(n, DENSE_MOST // M)
    looped = min(len(library), LOOP_MOST)
    library.ready = [library.one(m).setup(domain, actions) for m in range(looped)]  # type: ignore[attr-defined]
    ours, loop, dense, agree = [], [], [], True
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    utilities(scores, library, x)  # burn_in, and before a baseline has raised the peak
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for _ in range(repeats):
        taken, found = seconds(utilities, scores, library, x)
        ours.append(taken)
        taken, single = seconds(by_loop, scores, library, x)
        loop.append(taken * len(library) / looped)
        taken, gathered = seconds(by_gather, scores[:part], library, x[:part])
        dense.append(taken * n / part)
        agree &= torch.equal(found[:looped], single)
        agree &= torch.equal(gathered, utilities(scores[:part], library, x[:part]))
    ratios = [median(b / o for b, o in zip(base, ours, strict=True)) for base in (loop, dense)]
    held = 9 * len(library) * part / 2**20
    print(f"{M:,} policies ({kind}), {K} actions, {n:,} records: {median(ours):.3f} s, peak + {grown:.0f} MiB")
    print(f"  a loop over policies {median(loop):.2f} s, {ratios[0]:.1f} times longer (limit {RATIO_LIMIT:g})")
    print(f"  a dense gather {median(dense):.2f} s, {ratios[1]:.1f} times longer, which held {held:,.0f} MiB and more")
    print(f"  {'equal to the last bit' if agree else 'NOT EQUAL'}")
    slow = M <= 160 and K == 2 and median(ours) > SECONDS_LIMIT
    return slow or not agree or min(ratios) < RATIO_LIMIT or grown > MIB_LIMIT


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--covariates", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} thread(s); wanted: 160 policies of two actions in {SECONDS_LIMIT:g} s, {MIB_LIMIT:g} MiB")
    missed = False
    for M, K in ((160, 2), (160, 3), (10_000, 2)):
        for kind in libraries(M, options.covariates, K):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                case = (kind, options.records, M, options.covariates, K, options.repeats, options.threads)
                missed |= process.submit(compare, *case).result()
    if missed:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
