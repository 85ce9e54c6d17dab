"""Gross-error sensitivity of the neural head: time and quality against the obvious route, in one run.

The head has 30 covariates and two hidden layers of 32 (p = 2,081), trained and polished on n = 1,350 records;
gamma is taken for 300 queries in float64. The other side computes the same quantity through
`torch.func.hessian` and one run of SciPy's L-BFGS-B from one random start. The sides are timed in turn; over
20 seeds the suprema are compared (the Hessian of the other side does not depend on the seed and is reused). A
linear head with targets of zero has its supremum at a corner of the box, found by enumerating all of them.

    python experiments/benchmarks/gamma.py
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from statistics import median

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.fit.trainer import default_trainer, quiet_lightning
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.neural import NeuralHead, fit_neural_head
from torchdpcate.heads.supremum import gross_error_sensitivity

RECORDS, COVARIATES, QUERIES = 1_350, 30, 300
SECONDS_LIMIT, RATIO_LIMIT = 6.0, 3.0
TOLERANCE = 1e-9  # relative: the two sides end at the same corner by different arithmetic


@dataclass(frozen=True)
class Problem:
    """A fitted head and all that its gross-error sensitivity depends on."""

    model: Callable[[Tensor, Tensor], Tensor]
    theta: Tensor
    x: Tensor
    s: Tensor
    w: Tensor
    ridge: float
    queries: Tensor
    regression: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    domain: Domain

    def objective(self, theta: Tensor) -> Tensor:
        """The head's objective."""
        return ((self.s - self.w * self.model(theta, self.x)) ** 2).mean() + self.ridge * (theta @ theta)


def neural_problem(ridge: float) -> Problem:
    """An R-learner's second stage with fixed ReLU nuisances, fitted by the library."""
    generator = torch.Generator().manual_seed(0)

    def uniform(n: int) -> Tensor:
        return torch.rand(n, COVARIATES, dtype=torch.float64, generator=generator) * 2 - 1

    hidden = torch.randn(32, COVARIATES, dtype=torch.float64, generator=generator) / COVARIATES**0.5
    last = torch.randn(2, 32, dtype=torch.float64, generator=generator) / 32**0.5

    def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logit, m = (torch.relu(x @ hidden.T) @ last.T).unbind(1)
        return y - m.clamp(-2, 2), a - torch.sigmoid(logit).clamp(0.05, 0.95)

    x = uniform(RECORDS)
    s_zero, w_zero = regression(x, torch.zeros(RECORDS), torch.zeros(RECORDS))
    a = (torch.rand(RECORDS, dtype=torch.float64, generator=generator) < -w_zero).double()
    effect = torch.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3]
    noise = 0.3 * torch.randn(RECORDS, dtype=torch.float64, generator=generator)
    y = (-s_zero + (a + w_zero) * effect + noise).clamp(-3, 3)
    s, w = regression(x, a, y)
    domain = Domain([-1.0] * COVARIATES, [1.0] * COVARIATES, -3, 3)
    head = NeuralHead(domain, ridge=ridge, generator=generator)
    with quiet_lightning():
        fit = fit_neural_head(head, x, s, w, default_trainer, generator=generator)
    return Problem(head.functional, fit.theta, x, s, w, ridge, uniform(QUERIES), regression, domain)


def linear_problem() -> tuple[Problem, float]:
    """A linear head with targets of zero, and its supremum: the norm is convex in x, so a corner has it."""
    generator = torch.Generator().manual_seed(1)
    q = 14
    x, queries = (torch.rand(n, q, dtype=torch.float64, generator=generator) * 2 - 1 for n in (RECORDS, QUERIES))
    zero, one = torch.zeros(RECORDS, dtype=torch.float64), torch.ones(RECORDS, dtype=torch.float64)

    def model(theta: Tensor, x: Tensor) -> Tensor:
        return theta[0] + x @ theta[1:]

    def features(x: Tensor) -> Tensor:
        return torch.cat([x.new_ones(len(x), 1), x], 1)

    A = features(x).T @ features(x) / RECORDS + 0.05 * torch.eye(q + 1, dtype=torch.float64)
    corners = torch.tensor(list(product((-1.0, 1.0), repeat=q)), dtype=torch.float64)
    known = 3 * float((features(corners) @ torch.linalg.solve(A, features(queries).T)).norm(dim=1).max())
    domain = Domain([-1.0] * q, [1.0] * q, -2, 3)
    problem = Problem(
        model,
        torch.zeros(q + 1).double(),
        x,
        zero,
        one,
        0.05,
        queries,
        lambda x, a, y: (y, torch.ones_like(y)),
        domain,
    )
    return problem, known


def influence_of(problem: Problem) -> InfluenceFunction:
    """The library's influence function."""
    p = problem
    return InfluenceFunction(p.model, p.theta, p.x, p.s, p.w, p.ridge, p.queries)


def naive_rows(problem: Problem) -> Tensor:
    """``J H^{-1}`` through `torch.func`."""
    H = torch.func.hessian(problem.objective)(problem.theta)
    J = torch.func.jacrev(problem.model)(problem.theta, problem.queries)
    return torch.linalg.solve(H, J.T).T


def naive_supremum(problem: Problem, rows: Tensor, seed: int) -> float:
    """L-BFGS-B on the largest norm over the arms and the end points of y, from one random start."""
    low, high = problem.domain.covariate_low, problem.domain.covariate_high
    offset = -2 * problem.ridge * rows @ problem.theta
    arms = [(a, y) for a in (0.0, 1.0) for y in (problem.domain.outcome_low, problem.domain.outcome_high)]
    a, y = torch.tensor(arms, dtype=torch.float64).unbind(1)

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(point, requires_grad=True)
        theta = problem.theta.clone().requires_grad_()
        f = problem.model(theta, x[None])[0]
        (gradient,) = torch.autograd.grad(f, theta, create_graph=True)
        s, w = problem.regression(x.expand(4, -1), a, y)
        value = -((2 * w * (s - w * f))[:, None] * (rows @ gradient) + offset).norm(dim=1).max()
        (slope,) = torch.autograd.grad(value, x)
        return float(value.detach()), slope.numpy()

    start = low + (high - low) * torch.rand(len(low), generator=torch.Generator().manual_seed(seed)).double()
    bounds = list(zip(low.tolist(), high.tolist(), strict=True))
    return -float(minimize(negative, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds).fun)


def ours(problem: Problem, seed: int) -> float:
    """Gamma by the library, all of it."""
    return gross_error_sensitivity(influence_of(problem), problem.regression, problem.domain, seed=seed).value


def naive(problem: Problem, seed: int) -> float:
    """Gamma by the other side, all of it."""
    return naive_supremum(problem, naive_rows(problem), seed)


def main() -> None:
    """Run the benchmark and print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ridge", type=float, default=1e-2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    problem = neural_problem(options.ridge)
    seconds: dict[str, list[float]] = {"ours": [], "naive": []}
    print(f"p = {problem.theta.numel():,}, n = {RECORDS:,}, {QUERIES} queries, {options.threads} thread(s)")
    for repeat in range(options.repeats):
        for name, side in (("ours", ours), ("naive", naive)):
            start = time.perf_counter()
            value = side(problem, repeat)
            seconds[name].append(time.perf_counter() - start)
            print(f"run {repeat}, {name}: {seconds[name][-1]:.2f} s, gamma {value:.6g}")
    slowest = max(seconds["ours"])
    ratio = median(n / o for n, o in zip(seconds["naive"], seconds["ours"], strict=True))
    print(f"ours at most {slowest:.2f} s (limit {SECONDS_LIMIT}), {ratio:.1f} times faster (limit {RATIO_LIMIT})")

    influence, rows = influence_of(problem), naive_rows(problem)
    pairs = [
        (
            gross_error_sensitivity(influence, problem.regression, problem.domain, seed=seed).value,
            naive_supremum(problem, rows, seed),
        )
        for seed in range(options.seeds)
    ]
    as_large = sum(mine >= other * (1 - TOLERANCE) for mine, other in pairs)
    print(f"supremum at least as large in {as_large} of {options.seeds} seeds")
    for name, values in zip(("ours", "naive"), zip(*pairs, strict=True), strict=True):
        print(f"  {name}: {min(values):.6g} to {max(values):.6g}")

    linear, known = linear_problem()
    found = [
        gross_error_sensitivity(influence_of(linear), linear.regression, linear.domain, seed=seed).value
        for seed in range(options.seeds)
    ]
    error = max(abs(value / known - 1) for value in found)
    print(f"linear head, known supremum {known:.9g}: largest relative error over the seeds {error:.1e}")
    if slowest > SECONDS_LIMIT or ratio < RATIO_LIMIT or as_large < options.seeds or error > 1e-8:
        raise SystemExit("a limit is missed")


if __name__ == "__main__":
    main()
