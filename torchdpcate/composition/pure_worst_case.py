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
from torchdpcate.privacy.charge import COMPOSED
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, Target, worst_case

_STEP = "effect"


def objective_game(fits: tuple[HuberFit, HuberFit], epsilon: float) -> Game:
    """Return the game of a perturbed objective of one coefficient on either of two data sets.

    The adversary has the exact densities of the minimiser.

    Args:
        fits: Regressions of neighbours, with slope 1.
        epsilon: Of the one step.
    """
    pure, one = PrivacyBudget(epsilon, 0.0), torch.ones(1, dtype=torch.float64)
    shares = EpsilonShares(pure.epsilon, {_STEP: 1.0})
    ridge = least_ridge(pure.epsilon, 1.0)
    plan = FitPlan(_STEP, one, ridge * one, 1, 0, RIDGE_SHARE, 1.0)
    scale = objective_noise(fits[0], plan, shares.event(_STEP)).scale

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return PerturbedObjective().draw(fits[world], plan, NoisySteps(FitSession(noise), shares), runs)

    def log_density(fit: HuberFit, theta: Tensor) -> Tensor:
        scores, weighted = fit.predictors[0, 0] * theta[:, 0], fit.predictors[0, 0] * fit.weights
        pull = ridge * theta[:, 0] + weighted * fit.pulls(scores)
        curvature = ridge + fit.predictors[0, 0] * weighted * fit.curvatures(scores)
        return curvature.log() - pull.abs() / scale

    def evidence(theta: Tensor) -> Tensor:
        return log_density(fits[1], theta) - log_density(fits[0], theta)

    return Game(draw, shares.event(_STEP), Guarantee(Level.CERTIFIED, pure), evidence)


@worst_case(
    "composed_pure_effect",
    PerturbedObjective,
    attacks=[Target(charge, pure=True) for charge in COMPOSED],
    pair="one record whose residual is far above its prediction, or far below it, at the largest curvature it may have",
)
def _game(budget: PrivacyBudget) -> Game:
    g, one = torch.full((1, 1), LARGEST, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    low, high = (HuberFit(g, 1 / g[:, 0], sign * LARGEST * one, 1.0) for sign in (-1.0, 1.0))
    return objective_game((low, high), budget.epsilon)
