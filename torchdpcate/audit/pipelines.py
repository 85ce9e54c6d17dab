"""Attacks on learners: fitted to records, one record replaced by the worst found, refitted, released."""

from functools import partial

import torch

from torchdpcate.audit.neighbours import refitted, worst_neighbour
from torchdpcate.data.generators import Dataset1
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism
from torchdpcate.estimators.cate.mechanisms.objective import ObjectivePerturbation
from torchdpcate.estimators.cate.recompute import LEARNERS
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.second_stage.recipes import LinearSecondStage

_RECORDS = 400
_NUISANCE = NuisanceConfig(width=8, batch_size=50, epochs=2)


def learner_game(
    learner: CATELearner, mechanism: FunctionMechanism, budget: PrivacyBudget, seed: int = 0
) -> tuple[Game, float]:
    """Return the game of a learner's function release on a record of the second-stage block, and how far it moves.

    The learner is fitted once to generated records and the worst neighbour of its second-stage block is searched
    for; nuisances and threshold stay, as they do for that neighbour. The evidence is that of a classifier,
    which does not know how the release was made.

    Args:
        learner: Not fitted; with a budget.
        mechanism: Of the release.
        budget: Of the release, at most the learner's.
        seed: Public seed of the records and of the search.

    Returns:
        The game, and the share of the proved sensitivity that the neighbour reaches.
    """
    records = Dataset1(n=_RECORDS, seed=seed).load().records
    learner.fit(records.x, records.a, records.y)
    stage = learner.stage_
    found = worst_neighbour(stage, seed=seed)
    worlds = [mechanism.prepare(s, budget) for s in (stage, refitted(stage, found.block(stage.block)))]
    assert worlds[0].event is not None
    return Game(partial(_draw, worlds), worlds[0].event, worlds[0].guarantee, most_runs=100_000), found.ratio


def _draw(worlds: list[Prepared], world: int, runs: int, noise: NoiseSource) -> torch.Tensor:
    return worlds[world].draw(noise, runs)


def _declare(name: str, kind: type[CATELearner]) -> None:
    @worst_case(f"{name}_learner", kind, attack="classifier", pair=_PAIR)
    def game(budget: PrivacyBudget) -> Game:
        domain = Dataset1(n=_RECORDS).load().domain
        learner = kind(domain, budget, nuisance=_NUISANCE, second_stage=LinearSecondStage())
        return learner_game(learner, ObjectivePerturbation(), budget)[0]


_PAIR = "generated records, one of the second stage's replaced by the worst that a search found; default mechanism"

for _name in sorted(LEARNERS, reverse=True):
    _declare(_name, LEARNERS[_name])
