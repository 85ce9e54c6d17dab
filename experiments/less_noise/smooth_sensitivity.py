"""Noise of smooth sensitivity: `python -m experiments.less_noise.smooth_sensitivity` prints its page."""

import itertools
import math
from collections.abc import Iterator
from statistics import fmean

import torch

from experiments.defaults.random_laws import random_setting
from torchdpcate.causal.score import RScore
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.cate.mechanisms.smooth_sensitivity import local_sensitivity, noise_at_queries, smooth_bound
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.nuisances import NuisanceValues
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.heads.stage import LinearStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import (
    SmoothNoise,
    smooth_gaussian_multiplier,
    smooth_sensitivity_multiplier,
    smoothness,
)
from torchdpcate.privacy.noise import NoiseSource

DELTA, ANSWERS, SIZES, LAWS = 1e-5, (1, 10, 300), (1_000, 10_000, 100_000), 20
RIDGES = (0.1, 0.01)
RATIOS = (0.5, 0.05, 0.01, 0.002, 0.001)


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


def scales(stage: LinearStage, queries: torch.Tensor, budget: PrivacyBudget) -> tuple[float, float, float, float]:
    """Return the noise of an answer before, with a factor 1 + eta, after, and that of the whole function's noise."""
    eta, n, d = stage.problem.condition, stage.problem.n, len(queries)
    local, worst = local_sensitivity(stage.problem, stage.features(queries))
    earlier = smooth_bound((1 + eta) * local, worst, eta, smoothness(budget.epsilon, budget.delta, d))
    axes = min(d, stage.features.dimension)
    noise = SmoothNoise(budget.epsilon, budget.delta, axes, eta, n)
    return (
        earlier * smooth_sensitivity_multiplier(budget.epsilon, budget.delta),
        *(
            smooth_bound(factor * local, worst, eta, noise.smoothness) * noise.multiplier * math.sqrt(axes / d)
            for factor in (1 + eta, 1.0)
        ),
        noise_at_queries(stage, queries, budget)["function"],
    )


def random_laws() -> Iterator[str]:
    """Yield lines of the table of scales on the same records."""
    yield "| ridge | answers | n | before over after | after over with 1 + eta | that of the function over after |"
    yield "| --- | --- | --- | --- | --- | --- |"
    budget = PrivacyBudget(1.0, DELTA)
    for ridge, n in itertools.product(RIDGES, SIZES):
        stages = [stage_of(seed, n, ridge) for seed in range(LAWS)]
        for answers in ANSWERS:
            found = torch.tensor([scales(stage, x[:answers], budget) for stage, x in stages], dtype=torch.float64)
            before, factor, after, function = found.log().mean(0).exp().tolist()
            ratios = f"{before / after:.1f} | {after / factor:.4f} | {function / after:.2f}"
            yield f"| {ridge:g} | {answers} | {n:,} | {ratios} |"


def error(seed: int, n: int, epsilon: float, ratio: float) -> float:
    """Return the error of 100 answers over the effects' spread and a tenth of the outcome's noise."""
    setting = random_setting(3_000 + seed, n=n, epsilon=epsilon, covariates=4)
    case = setting.case
    learner = RLearner(
        case.schema.domain,
        PrivacyBudget(epsilon, DELTA),
        nuisance=ConvexNuisanceConfig(),
        second_stage=LinearSecondStage(features=Legendre(2), noise_ratio=ratio),
        noise=NoiseSource.fixed(seed),
    ).fit(case.records.x, case.records.a, case.records.y)
    answers, truth = learner.release_queries(case.queries[:100], "smooth_sensitivity").answers, case.truth[:100]
    unit = (truth - setting.effects.mean()).square().mean().sqrt() + 0.1 * setting.noise
    return float((answers - truth).square().mean().sqrt() / unit)


def ratios() -> Iterator[str]:
    """Yield lines of the table of errors by noise ratio."""
    yield "| n | epsilon | " + " | ".join(f"ratio {ratio:g}" for ratio in RATIOS) + " |"
    yield "| --- | --- |" + " --- |" * len(RATIOS)
    for n, epsilon in ((1_000, 1.0), (16_000, 1.0), (16_000, 4.0), (100_000, 4.0)):
        means = [math.exp(fmean(math.log(error(seed, n, epsilon, ratio)) for seed in range(LAWS))) for ratio in RATIOS]
        yield f"| {n:,} | {epsilon:g} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |"


def main() -> None:
    """Print the page."""
    print("# Smooth sensitivity: less noise\n")
    print("Printed by `python -m experiments.less_noise.smooth_sensitivity`. The proof is on the")
    print("[mechanism's page](../../docs/guarantees/smooth_sensitivity.md).")
    print(f"kappa: noise over the smooth bound of the sensitivity, at the earlier smoothness and delta = {DELTA:g}.\n")
    print("\n".join(multipliers()))
    print(f"\nNoise of an answer at epsilon = 1 on the records of {LAWS} random laws, four covariates and Legendre")
    print(
        "polynomials of degree two, geometric means. The smoothness is now picked by public numbers, and more answers"
    )
    print("than coefficients have the noise that coefficients could have. With 1 + eta: a local sensitivity that is")
    print("larger by that factor, which the proof does not need. The function's noise is that of")
    print("`gaussian_process`, for all queries that anybody may ask.\n")
    print("\n".join(random_laws()))
    print(f"\nError of 100 answers by `noise_ratio`, which sets the ridge, on {LAWS} further laws: root mean squared")
    print("error over the effects' spread and a tenth of the outcome's noise, geometric means. The default was 0.5 and")
    print("is now 0.002, which was settled on other laws of the same kind.\n")
    print("\n".join(ratios()))


if __name__ == "__main__":
    main()
