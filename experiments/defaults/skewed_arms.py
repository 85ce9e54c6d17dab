"""Coverage of intervals of a composed effect where the law of the residuals follows arm and covariate.

A trial of a coin with three normal covariates and the effect .5 + .5 x0. *skewed*: log-normal noise in the treated
arm, whose scale follows x1; *costs*: log-normal noise about its mean in both arms; *two scales*: normal, of deviation
.1 or 1.3 by the sign of x1; *plain*: normal. Shares of queries, and of averages, that 95 % intervals hold, with what
long tails hide and features miss, and without.

    python -m experiments.defaults.skewed_arms --n 6000 --epsilon 1
"""

import argparse
from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor

from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

LAWS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "skewed": lambda x, a, e: torch.where(a > 0, (e.exp() - 1.6487) * (0.3 + 0.7 * torch.sigmoid(2 * x[:, 1])), e / 2),
    "costs": lambda x, a, e: (0.8 * e + 0.4 * x[:, 1]).exp() - (0.32 + 0.4 * x[:, 1]).exp(),
    "two scales": lambda x, a, e: e * torch.where(x[:, 1] > 0, 1.3, 0.1),
    "plain": lambda x, a, e: 0.7 * e,
}
"""Noise of covariates, arms and standard normal numbers."""


def covered(law: str, n: int, epsilon: float, seed: int, constants: PlanConstants) -> tuple[float, float]:
    """Return the share of 200 queries whose effect lies in its interval, and whether the average does."""
    draws = torch.Generator().manual_seed(7 * seed + n)
    x = torch.randn(n, 3, generator=draws, dtype=torch.float64).clamp(-3, 3)
    a = (torch.rand(n, generator=draws) < 0.5).double()
    noise = LAWS[law](x, a, torch.randn(n, generator=draws, dtype=torch.float64))
    y = (x[:, 1] + (0.5 + 0.5 * x[:, 0]) * a + noise).clamp(-20, 20)
    domain = Domain([-3.0] * 3, [3.0] * 3, -20.0, 20.0, propensity=0.5)
    stage = AdaptiveSecondStage(constants=constants)
    learner = RLearner(domain, PrivacyBudget(epsilon, 1e-5), second_stage=stage, noise=NoiseSource.fixed(seed))
    release = learner.fit(x, a, y).release_function()
    queries = torch.randn(200, 3, generator=draws, dtype=torch.float64).clamp(-3, 3)
    truth, ends = 0.5 + 0.5 * queries[:, 0].numpy(), release.interval(queries)
    low, high = release.average()
    return float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()), float(low <= 0.5 <= high)


def main() -> None:
    """Print a line a law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=6_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for law in LAWS:
        for name, constants in (("in use", PlanConstants()), ("without", PlanConstants(missed=0.0))):
            found = [covered(law, given.n, given.epsilon, seed, constants) for seed in range(given.seeds)]
            queries, averages = (fmean(values) for values in zip(*found, strict=True))
            print(f"{law:10s} {name:8s} queries {queries:.2f}  average {averages:.2f}")


if __name__ == "__main__":
    main()
