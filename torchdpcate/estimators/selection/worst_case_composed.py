"""Neighbouring records on which a choice by composed scores is attacked, with the Gaussian steps before it."""

import math

import numpy as np
import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.estimators.selection.gains import Scores, gains_as_scores
from torchdpcate.estimators.selection.utilities import utilities
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent
from torchdpcate.privacy.gaussian_dp import curve_beside, range_beside
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection_mechanisms import ExponentialMechanism
from torchdpcate.privacy.worst_case import Game, Target, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0)
_CLIP, _POLICIES, _SHARE = 3.0, 10, 0.4  # of mu^2 to the Gaussian steps
_FAR = 1e6  # of a score
_NODES = 401  # of the curve: enough to compare it with counts of runs


def reaching_utilities() -> Tensor:
    """Return the utilities of both worlds, [2, M], of three actions.

    One record's outcome under the action that it got is far above all others', or far below, and half of the policies
    give it that action: of all shares this one brings a choice nearest to two logistic laws.

    Example:
        >>> moved = reaching_utilities()[0] - reaching_utilities()[1]
        >>> (moved.max() - moved.min()).item() / 3.0
        2.0
    """
    thresholds = torch.linspace(0.05, 0.95, _POLICIES, dtype=torch.float64).tolist()
    library = PolicyLibrary.of(Thresholds("x0", thresholds, above=1, below=0)).setup(_DOMAIN, (0, 1, 2))
    x, values = torch.tensor([[0.5], [0.0]], dtype=torch.float64), torch.zeros(2, 2, 3, dtype=torch.float64)
    values[:, 0, 1] = torch.tensor([_FAR, -_FAR])
    worlds = [Scores(world, torch.ones(2, dtype=torch.int64), 0.0).gains(_CLIP) for world in values]
    return torch.stack([utilities(gains_as_scores(world), library, x) for world in worlds])


@worst_case(
    "composed_selection",
    ComposedScores,
    attacks=[Target(COMPOSED_SCORES, {"policies": None})],
    pair="one record of gain C or -C, which half of 10 policies treat, and which moves all steps before by as much",
)
def _game(budget: PrivacyBudget) -> Game:
    mu = total_mu(budget) * math.sqrt(_SHARE)
    worlds, gaussian = reaching_utilities(), GaussianMechanism.of_event(GaussianEvent(1 / mu), 1.0)
    mechanism = ExponentialMechanism(range_beside(mu, budget), 2 * _CLIP)
    laws = mechanism.probabilities(worlds).log()

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        answers = gaussian.add_noise(torch.full((runs, 1), float(world), dtype=torch.float64), noise)
        return torch.cat([answers, mechanism.select(worlds[world], noise, runs).double()[:, None]], 1)

    def evidence(seen: Tensor) -> Tensor:
        # both losses add up
        chosen = seen[:, 1].long()
        return mu * mu * (seen[:, 0] - 0.5) + laws[1, chosen] - laws[0, chosen]

    def curve(factor: float, epsilons: np.ndarray) -> np.ndarray:
        return curve_beside(factor * mu, factor * mechanism.epsilon, epsilons, _NODES)

    event = ApproximateEvent(budget.epsilon, budget.delta)
    return Game(draw, event, Guarantee(Level.CERTIFIED, budget), evidence, most_runs=40_000, curve=curve)
