"""The attack on learners of effects by one record of the second stage."""

from dataclasses import replace

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.head import LEARNERS
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.perturbation import ObjectivePerturbation
from torchdpcate.estimators.cate.mechanisms.worst_pairs import FAR, NEAR, function_game
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.heads.stage import LinearStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.worst_case import Game, worst_case

_RECORDS = 400
_NUISANCE = NuisanceConfig(width=8, batch_size=50, epochs=2)
# the least propensity of an arm, so that a treated record's weight is at its bound
_DOMAIN = Domain([0.0], [1.0], -0.5, 0.5, overlap=0.1, propensity=0.1)
_STAGE = LinearSecondStage(features=Identity(), ridge=1.0, threshold=0.01)
"""A large ridge, so that determinants cost next to nothing, and residuals beyond the threshold."""


def learner_game(learner: CATELearner, budget: PrivacyBudget) -> Game:
    """Return the game of a learner's function release on a record of the second-stage block.

    The learner is fitted once to records at one end of its only covariate; one of the second-stage block then lies at
    the other end, treated, with the highest outcome or the lowest. Nuisances and threshold stay, as they do for that
    neighbour. Features at the two ends are at right angles, so that no other record moves the coefficient there.

    Args:
        learner: Not fitted; with a budget, of ``_DOMAIN`` and with ``_STAGE``.
        budget: Of the release, at most the learner's.
    """
    x = torch.full((_RECORDS, 1), FAR, dtype=torch.float64)
    learner.fit(x, (torch.arange(_RECORDS) % 10 == 0).double(), torch.zeros(_RECORDS, dtype=torch.float64))
    stage, place = learner.stage_, torch.tensor([NEAR], dtype=torch.float64)
    assert isinstance(stage, LinearStage)
    ends = learner.stage_.block.domain.outcome_low, learner.stage_.block.domain.outcome_high
    stages = [replace(stage, block=replaced(stage.block, 0, place, 1, y)) for y in ends]
    mechanism = ObjectivePerturbation()
    game = function_game(stages, lambda one: mechanism.prepare(one, budget))
    return replace(game, curve=mechanism.curve(stages[0].problem, budget))


def _declare(name: str, kind: type[CATELearner]) -> None:
    @worst_case(f"{name}_learner", kind, pair=_PAIR)
    def game(budget: PrivacyBudget) -> Game:
        return learner_game(kind(_DOMAIN, budget, nuisance=_NUISANCE, second_stage=_STAGE), budget)


_PAIR = "one treated record of the second stage apart from all others, its outcome at either end; default mechanism"

for _name in sorted(LEARNERS, reverse=True):
    _declare(_name, LEARNERS[_name])


def replaced(block: SecondStageBlock, index: int, x: Tensor, a: int, y: float) -> SecondStageBlock:
    """Return the block with record ``index`` replaced by (x, a, y)."""
    with torch.no_grad():
        s, w = block.regression(x[None], x.new_tensor([float(a)]), x.new_tensor([y]))
    rows = torch.tensor([index], device=block.x.device)
    return replace(
        block,
        x=block.x.index_copy(0, rows, x[None]),
        s=block.s.index_copy(0, rows, s),
        w=block.w.index_copy(0, rows, w),
    )
