"""Neighbouring records on which choices of policies are attacked."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.estimators.selection.scores import Scores, gains_as_scores, utilities
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.laws import AddedNoise, Choice
from torchdpcate.privacy.accounting import curve_beside, range_beside
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import ExponentialMechanism
from torchdpcate.privacy.worst_case import Game, Target, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.4, better="higher")
_RECORDS, _POLICIES = 40, 30  # the more policies, the nearer the worst pair comes to epsilon


def _selector(dataset: int) -> PolicySelector:
    """All records score nothing but one, of the best outcome, whose arm distinguishes the datasets.

    The first policy treats it, the others do not.
    """
    x, y = torch.zeros(_RECORDS, 1, dtype=torch.float64), torch.zeros(_RECORDS, dtype=torch.float64)
    a = torch.arange(_RECORDS) % 2
    x[0], a[0], y[0] = 0.5, 1 - dataset, 1.0
    thresholds = [0.4, *torch.linspace(0.6, 0.9, _POLICIES - 1, dtype=torch.float64).tolist()]
    nuisances, policies = FixedNuisances(propensity=0.5, outcome=0.0), [Thresholds("x0", thresholds)]
    return PolicySelector(_DOMAIN, None, policies=policies, nuisance=nuisances).fit(x, a, y)


@worst_case(
    "policy_selector",
    PolicySelector,
    pair="records that score nothing and one of the best outcome, treated or not; one policy of 30 treats it",
)
def _policy_selector(budget: PrivacyBudget) -> Game:
    one, other = (_selector(dataset) for dataset in (0, 1))
    plan = replace(one.plan_, budget=PrivacyBudget(budget.epsilon, 0.0), epsilon=budget.epsilon)
    return plan.game("choice", one.utilities_, other.utilities_, most_runs=40_000)


_UNKNOWN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, better="higher")
_CLIP, _CHOICES, _SHARE = 3.0, 10, 0.4  # of mu^2 to the Gaussian steps
_FAR = 1e6  # of a score
_NODES = 401  # of the curve: enough to compare it with counts of runs


def reaching_utilities() -> Tensor:
    """Return the utilities of both datasets, [2, M], of three actions.

    One record's outcome under the action that it got is far above all others', or far below, and half of the policies
    give it that action: of all shares this one brings a choice nearest to two logistic laws.

    Example:
        >>> moved = reaching_utilities()[0] - reaching_utilities()[1]
        >>> (moved.max() - moved.min()).item() / 3.0
        2.0
    """
    thresholds = torch.linspace(0.05, 0.95, _CHOICES, dtype=torch.float64).tolist()
    library = PolicyLibrary.of(Thresholds("x0", thresholds, above=1, below=0)).setup(_UNKNOWN, (0, 1, 2))
    x, values = torch.tensor([[0.5], [0.0]], dtype=torch.float64), torch.zeros(2, 2, 3, dtype=torch.float64)
    values[:, 0, 1] = torch.tensor([_FAR, -_FAR])
    datasets = [Scores(dataset, torch.ones(2, dtype=torch.int64), dataset[:, 0]).gains(_CLIP) for dataset in values]
    return torch.stack([utilities(gains_as_scores(dataset), library, x) for dataset in datasets])


@worst_case(
    "composed_selection",
    ComposedScores,
    attacks=[Target(COMPOSED_SCORES, {"policies": None})],
    pair="one record of gain C or -C, which half of 10 policies treat, and which moves all steps before by as much",
)
def _composed(budget: PrivacyBudget) -> Game:
    mu, datasets = total_mu(budget) * math.sqrt(_SHARE), reaching_utilities()
    mechanism = ExponentialMechanism(range_beside(mu, budget), 2 * _CLIP)
    steps = AddedNoise(GaussianMechanism.of_event(GaussianEvent(1 / mu), 1.0), 1)
    choice, numbers = Choice(mechanism, datasets.shape[1], composed=True), torch.tensor([[0.0], [1.0]]).double()
    of_steps, of_choice = steps.evidence(*numbers), choice.evidence(*datasets)

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.cat([steps.draw(noise, runs, numbers[dataset]), choice.draw(noise, runs, datasets[dataset])], 1)

    def curve(factor: float, epsilons: np.ndarray) -> np.ndarray:
        return curve_beside(factor * mu, factor * mechanism.epsilon, epsilons, _NODES)

    def evidence(seen: Tensor) -> Tensor:
        return of_steps(seen[:, :1]) + of_choice(seen[:, 1:])

    event = ApproximateEvent(budget.epsilon, budget.delta)
    return Game(draw, event, Guarantee(Level.CERTIFIED, budget), evidence, most_runs=40_000, curve=curve)
