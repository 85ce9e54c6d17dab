"""Attacks on learners: fitted to records, one record of the second stage replaced by its worst, refitted, released."""

from dataclasses import replace

import torch

from torchdpcate.audit.neighbours import refitted, replaced
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.effect_plan import LEARNERS
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.objective import ObjectivePerturbation
from torchdpcate.estimators.cate.mechanisms.worst_pairs import FAR, NEAR, function_game
from torchdpcate.features.maps import Identity
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.second_stage.recipes import LinearSecondStage
from torchdpcate.second_stage.stage import LinearStage

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
    ends = learner.stage_.block.domain.outcome_low, learner.stage_.block.domain.outcome_high
    stages = [refitted(stage, replaced(stage.block, 0, place, 1, y)) for y in ends]
    assert all(isinstance(one, LinearStage) for one in stages)
    mechanism = ObjectivePerturbation()
    game = function_game(stages, lambda one: mechanism.prepare(one, budget))  # type: ignore[arg-type]
    return replace(game, curve=mechanism.curve(stages[0].problem, budget))  # type: ignore[attr-defined]


def _declare(name: str, kind: type[CATELearner]) -> None:
    @worst_case(f"{name}_learner", kind, pair=_PAIR)
    def game(budget: PrivacyBudget) -> Game:
        return learner_game(kind(_DOMAIN, budget, nuisance=_NUISANCE, second_stage=_STAGE), budget)


_PAIR = "one treated record of the second stage apart from all others, its outcome at either end; default mechanism"

for _name in sorted(LEARNERS, reverse=True):
    _declare(_name, LEARNERS[_name])
