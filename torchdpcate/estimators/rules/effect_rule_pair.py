"""Worst neighbours of a rule by a composed effect, for audits: of Gaussian steps, a perturbed objective, and sums."""

import math

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import FitPlan, HuberFit
from torchdpcate.composition.pure_fits import LARGEST, EffectSums, private_sums
from torchdpcate.composition.regressions import effect_fit
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.steps import EpsilonShares, NoisySteps, Shares, total_mu
from torchdpcate.composition.worst_case import drawn, objective_game
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_EFFECT
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, Target, k_norm_evidence, worst_case

_STEP, _STEPS, _WARM = "effect", 10, 2
_RULE = {"learner": "EffectRule"}  # what statements of its releases have
_FAR = 1e6  # of residuals, in clips: no step leads so far that one of them is not clipped
_COIN = 0.3  # P(A = 1): the treated arm's a - pi is the larger one, .7


def pair(world: int) -> HuberFit:
    """Return the effect's regression on three records of a trial: two in balance, and the one that differs.

    It is treated, hence as far from its propensity as any record, with a residual far above its prediction in one
    world, and far below in the other; its gradient is S in either direction.

    Example:
        >>> one = torch.zeros(1, dtype=torch.float64)
        >>> round((pair(1).gradient(one) - pair(0).gradient(one)).item(), 9)
        2.0
    """
    one = torch.ones(3, dtype=torch.float64)
    residual = _FAR * torch.tensor([1.0, -1.0, 1.0 - 2 * world], dtype=torch.float64)
    return effect_fit(one[:, None], residual, (1 - _COIN) * one, _COIN * one, 1.0)


@worst_case(
    "effect_rule",
    EffectRule,
    attacks=[Target(COMPOSED_EFFECT, _RULE, pure=False)],
    pair="a treated record of a trial of few treated, its residual far above its prediction, or far below it",
)
def _game(budget: PrivacyBudget) -> Game:
    shares, one = Shares(total_mu(budget), {_STEP: 1.0}), torch.ones(1, dtype=torch.float64)
    plan = FitPlan(_STEP, 3 * one, 0 * one, _STEPS, _WARM, _WARM / _STEPS, 0.25)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return drawn(pair(world), plan, NoisySteps(FitSession(noise), shares), runs)

    def evidence(theta: Tensor) -> Tensor:
        return -theta[:, 0]

    return Game(draw, shares.event(_STEP), Guarantee(Level.CERTIFIED, budget), evidence)


SUMS = EffectSums(scale=1.0, covariates=1, looked_at=True)
"""The sums of one covariate."""


def sums_pair(world: int) -> InMemory:
    """Return the one record of a trial, of one covariate.

    It is treated, its covariate beyond the clip, its outcome far above the centre in one world, and far below in the
    other: both sums move by two.

    Example:
        >>> (sums_pair(1).total(SUMS) - sums_pair(0).total(SUMS)).tolist()
        [2.0, 2.0]
    """
    one = torch.ones(1, dtype=torch.float64)
    residual = (2 * world - 1) * _FAR * one
    return InMemory(CausalData(_FAR * one[:, None], (1 - _COIN) * one, residual, _COIN * one))


@worst_case(
    "effect_sums",
    EffectRule,
    attacks=[Target(COMPOSED_EFFECT, {"effect_by": None}, pure=True)],
    pair="a treated record of a trial whose covariate is beyond the clip, its outcome far above the centre "
    "or far below",
)
def _sums_game(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)
    shares = EpsilonShares(pure.epsilon, {_STEP: 1.0})

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        steps = NoisySteps(FitSession(noise), shares)
        return torch.stack([private_sums(sums_pair(world), SUMS, _STEP, steps) for _ in range(runs)])

    low, high = (sums_pair(world).total(SUMS) for world in (0, 1))
    above = k_norm_evidence(high - low, 2 / pure.epsilon, math.inf)

    def evidence(sums: Tensor) -> Tensor:
        return above(sums - low)

    return Game(draw, shares.event(_STEP), Guarantee(Level.CERTIFIED, pure), evidence, most_runs=20_000)


def pure_pair(world: int) -> HuberFit:
    """Return the effect's regression on the one record of that trial, at the largest curvature it may have.

    It is treated, its residual far above its prediction in one world, and far below in the other.

    Example:
        >>> fit = pure_pair(1)
        >>> round(float(fit.weights * fit.predictors.norm()), 9), round(float(fit.weights * fit.predictors**2), 9)
        (1.0, 1.5)
    """
    one = torch.ones(1, dtype=torch.float64)
    psi = LARGEST / (1 - _COIN) * one[:, None]
    return effect_fit(psi, (2 * world - 1) * LARGEST * one, (1 - _COIN) * one, _COIN * one, 1.0)


@worst_case(
    "pure_effect_rule",
    EffectRule,
    attacks=[Target(COMPOSED_EFFECT, _RULE, pure=True)],
    pair="a treated record of a trial of few treated at the largest curvature it may have, its residual far above its "
    "prediction, or far below it",
)
def _pure_game(budget: PrivacyBudget) -> Game:
    return objective_game((pure_pair(0), pure_pair(1)), budget.epsilon)
