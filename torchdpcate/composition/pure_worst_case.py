"""Worst neighbours of a pure composition's regressions, for audits."""

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import FitPlan, HuberFit
from torchdpcate.composition.perturbed_objective import (
    LARGEST,
    RIDGE_SHARE,
    PerturbedObjective,
    least_ridge,
    objective_noise,
)
from torchdpcate.composition.shares import EpsilonShares
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_STEP = "effect"


@worst_case(
    "composed_pure_effect",
    PerturbedObjective,
    pair="one record whose residual is far above its prediction, or far below it, at the largest curvature it may have",
)
def _game(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)
    shares, slope = EpsilonShares(pure.epsilon, {_STEP: 1.0}), 1.0
    g, one = torch.full((1, 1), LARGEST, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    ridge = least_ridge(pure.epsilon, 1.0)
    plan = FitPlan(_STEP, one, ridge * one, 1, 0, RIDGE_SHARE, 1.0)
    fits = [HuberFit(g, 1 / g[:, 0], sign * LARGEST * one, slope) for sign in (-1.0, 1.0)]
    scale = objective_noise(fits[0], plan, shares.event(_STEP)).scale

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        steps = NoisySteps(FitSession(noise), shares)
        return torch.stack([PerturbedObjective().solve(fits[world], plan, steps) for _ in range(runs)])

    def log_density(fit: HuberFit, theta: Tensor) -> Tensor:
        scores = LARGEST * theta[:, 0]
        pull = ridge * theta[:, 0] + LARGEST * fit.weights * fit.pulls(scores)
        curvature = ridge + LARGEST**2 * fit.weights * fit.curvatures(scores)
        return curvature.log() - pull.abs() / scale

    def evidence(theta: Tensor) -> Tensor:
        return log_density(fits[1], theta) - log_density(fits[0], theta)

    return Game(draw, shares.event(_STEP), Guarantee(Level.CERTIFIED, pure), evidence, most_runs=20_000)
