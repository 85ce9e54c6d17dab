"""Neighbours whose balancing weights move most, as far as searched: the attack on their indirect sensitivity."""

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.losses import HuberHinge
from torchdpcate.estimators.rules.mechanisms import OutputRule
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.nuisance.weights.balancing import BalancingWeights
from torchdpcate.nuisance.weights.mmd import MMDWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], -1.0, 1.0, overlap=0.45)
_SCHEME = MMDWeights(ridge=0.37, alpha=0.7, bandwidth=1.44)  # found by a search, with the pair and the overlap
_CROWDS = ((0.344, 0.0, 47), (0.704, 1.0, 51))  # place, treatment, size
_REPLACED = ((0.635, 0.0), (0.334, 1.0))  # place and treatment of the record before and after


def crossing_pair() -> tuple[CausalData, CausalData]:
    """Return two crowds, one untreated and one treated, and the record in front that crosses from arm to arm."""
    x = torch.cat([torch.full((size,), place) for place, _, size in _CROWDS])
    a = torch.cat([torch.full((size,), arm) for _, arm, size in _CROWDS])
    worlds = []
    for place, arm in _REPLACED:
        first = (torch.cat([torch.tensor([value]), others]).double() for value, others in ((place, x), (arm, a)))
        covariates, arms = first
        worlds.append(CausalData(covariates[:, None], arms, torch.zeros_like(arms)))
    return worlds[0], worlds[1]


def free_weights(scheme: BalancingWeights, records: CausalData) -> Tensor:
    """Return the weights of the records, for which nothing is charged and nothing drawn."""
    return scheme.fit(records, _DOMAIN, budget=None, session=FitSession(NoiseSource.fixed(0))).weights(records)


@worst_case(
    "balancing_weights",
    MMDWeights,
    pair="between an untreated crowd and a treated one, a record crosses to the other arm: all weights move",
)
def _balancing(budget: PrivacyBudget) -> Game:
    scheme, worlds = _SCHEME, crossing_pair()
    bounds = scheme.bounds(worlds[0].n, _DOMAIN)
    weights = [free_weights(scheme, records) for records in worlds]
    # a rule of one coefficient whose labels add all movements up, for the outcome's sign is free
    target = torch.sign(weights[1] - weights[0])
    psi, problems = torch.ones(worlds[0].n, 1, dtype=torch.float64), []
    for omega, label in zip(weights, (-1.0, 1.0), strict=True):
        signs = torch.cat([torch.tensor([label]).to(target), target[1:]])
        problems.append(WeightedERM(psi, signs, omega, HuberHinge(), ridge=1_000.0, bounds=bounds))
    return OutputRule("gamma").game(problems, budget, lambda theta: theta[:, 0])
