"""Noise of smooth sensitivity: `python -m experiments.less_noise.smooth_sensitivity` prints its page."""

import itertools
from collections.abc import Iterator

import torch

from experiments.defaults.random_laws import random_setting
from torchdpcate.causal.score import RScore
from torchdpcate.estimators.cate.mechanisms.offer import noise_at_queries
from torchdpcate.estimators.cate.mechanisms.smooth_sensitivity import local_sensitivity, smooth_bound
from torchdpcate.features.maps import Legendre
from torchdpcate.nuisance.model import NuisanceValues
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import smooth_sensitivity_multiplier, smoothness
from torchdpcate.privacy.smooth_gaussian import SmoothNoise, smooth_gaussian_multiplier
from torchdpcate.second_stage.stage import LinearStage, SecondStageBlock

DELTA, ANSWERS, SIZES, LAWS = 1e-5, (1, 10, 300), (1_000, 10_000, 100_000), 20
RIDGES = (0.1, 0.01)


def multipliers() -> Iterator[str]:
    """Yield lines of the table of noise over the smooth bound, at the earlier smoothness."""
    yield "| answers | epsilon | kappa before | after | times less |"
    yield "| --- | --- | --- | --- | --- |"
    for answers in ANSWERS:
        for epsilon in (0.1, 1.0, 5.0, 10.0):
            before = smooth_sensitivity_multiplier(epsilon, DELTA)
            after = smooth_gaussian_multiplier(epsilon, DELTA, answers, smoothness(epsilon, DELTA, answers))
            yield f"| {answers} | {epsilon:g} | {before:.3f} | {after:.3f} | {before / after:.1f} |"


def stage_of(seed: int, n: int, ridge: float) -> tuple[LinearStage, torch.Tensor]:
    """Return the squared head of a random law's records, nuisances a half and zero, and queries."""
    case = random_setting(seed, n=n, epsilon=1.0, covariates=4).case
    domain, records = case.schema.domain, case.records
    middle = torch.full((n,), (domain.outcome_low + domain.outcome_high) / 2, dtype=torch.float64)

    def regression(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return RScore().regression(a, y, NuisanceValues(torch.full_like(y, 0.5), middle[: len(y)], middle[: len(y)]))

    s, w = regression(records.x, records.a, records.y)
    block = SecondStageBlock(records.x, s, w, regression, domain, RScore().bounds(domain))
    return LinearStage(block, Legendre(2).setup(domain), ridge), case.queries


def scales(stage: LinearStage, queries: torch.Tensor, budget: PrivacyBudget) -> tuple[float, float, float]:
    """Return the noise of an answer before and after, and that of the whole function's noise, in outcome units."""
    eta, n, d = stage.problem.condition, stage.problem.n, len(queries)
    bounds = local_sensitivity(stage.problem, stage.features(queries))
    earlier = smooth_bound(*bounds, eta, smoothness(budget.epsilon, budget.delta, d))
    noise = SmoothNoise(budget.epsilon, budget.delta, d, eta, n)
    return (
        earlier * smooth_sensitivity_multiplier(budget.epsilon, budget.delta),
        smooth_bound(*bounds, eta, noise.smoothness) * noise.multiplier,
        noise_at_queries(stage, queries, budget)["function"],
    )


def random_laws() -> Iterator[str]:
    """Yield lines of the table of scales on the same records."""
    yield "| ridge | answers | n | noise before over after | noise of the function over after |"
    yield "| --- | --- | --- | --- | --- |"
    budget = PrivacyBudget(1.0, DELTA)
    for ridge, n in itertools.product(RIDGES, SIZES):
        stages = [stage_of(seed, n, ridge) for seed in range(LAWS)]
        for answers in ANSWERS:
            found = torch.tensor([scales(stage, x[:answers], budget) for stage, x in stages], dtype=torch.float64)
            before, after, function = found.log().mean(0).exp().tolist()
            yield f"| {ridge:g} | {answers} | {n:,} | {before / after:.1f} | {function / after:.2f} |"


def main() -> None:
    """Print the page."""
    print("# Smooth sensitivity: less noise\n")
    print("Printed by `python -m experiments.less_noise.smooth_sensitivity`. The proof is on the")
    print("[mechanism's page](../../docs/guarantees/smooth_sensitivity.md).")
    print(f"kappa: noise over the smooth bound of the sensitivity, at the earlier smoothness and delta = {DELTA:g}.\n")
    print("\n".join(multipliers()))
    print(f"\nNoise of an answer at epsilon = 1 on the records of {LAWS} random laws, four covariates and Legendre")
    print("polynomials of degree two, geometric means. The smoothness is now picked by public numbers. The function's")
    print("noise is that of `gaussian_process`, for all queries that anybody may ask.\n")
    print("\n".join(random_laws()))


if __name__ == "__main__":
    main()
