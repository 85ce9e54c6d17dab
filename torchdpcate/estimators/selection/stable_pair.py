"""Neighbouring training records of which one turns the nuisances of all scoring records, for audits."""

import math

import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.causal.score import dr_scores
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.selection.utilities import utilities
from torchdpcate.features.maps import FeatureMap, Fourier
from torchdpcate.features.user_maps import on_domain
from torchdpcate.nuisance.arms.base import SelectionFacts
from torchdpcate.nuisance.arms.stable import StableNuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection_mechanisms import PermuteAndFlip
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=-0.5, outcome_high=0.5, overlap=0.1)
# Far more scoring than training records: then the ridge at which a training record does all that noise covers is
# large, and the suprema that the bound adds up are met by one pair.
_FACTS = SelectionFacts(_DOMAIN, actions=(0, 1), overlap=0.1, training=100, scoring=19_999)
_FEATURES = Fourier(pairs=1, bandwidth=0.1)  # a circle


def _place(features: FeatureMap, angle: float) -> float:
    """Return the covariate whose features are (cos angle, sin angle)."""
    return (angle / features.frequencies.item() + 1) / 2  # type: ignore[operator]


def turning_pair() -> tuple[CausalData, CausalData]:
    """Return training blocks in which one treated record of the best outcome lies at a point, or opposite to it.

    It raises the propensity and the outcome model of the treated there, or lowers both by as much. The others, half of
    them in each arm and of the middle outcome, lie across.
    """
    features, m = on_domain(_FEATURES, _DOMAIN), _FACTS.training
    x = torch.full((m, 1), _place(features, math.pi / 2), dtype=torch.float64)
    a, y = (torch.arange(m) % 2).double(), torch.zeros(m, dtype=torch.float64)
    a[0], y[0] = 1.0, _DOMAIN.outcome_high
    worlds = []
    for angle in (0.0, math.pi):
        own = x.clone()
        own[0] = _place(features, angle)
        worlds.append(CausalData(own, a, y))
    return worlds[0], worlds[1]


def turned_utilities() -> tuple[Tensor, Tensor, float]:
    """Return the utilities of two policies in both worlds, [2] each, and their certified range sensitivity.

    All scoring records are treated and of the best outcome. Half of them lie at the point, where the first policy alone
    treats, and but for one as many lie opposite, where the second alone does: worth the same in one of the worlds, the
    policies are that far apart in the other.
    """
    ridges = StableNuisances(features=_FEATURES, target=None).ridges(_FACTS, part=1.0)
    nuisances, n = StableNuisances(*ridges, features=_FEATURES, target=None), _FACTS.scoring
    features = on_domain(_FEATURES, _DOMAIN)
    places = torch.tensor([_place(features, angle) for angle in (0.0, math.pi)], dtype=torch.float64)
    x = places.repeat_interleave(torch.tensor([n - n // 2, n // 2]))[:, None]
    arm, y = torch.ones(n, dtype=torch.long), torch.full((n,), _DOMAIN.outcome_high, dtype=torch.float64)
    nearer = int(places[0] > places[1])
    cuts = Thresholds("x0", [places.mean().item()] * 2, above=[nearer, 1 - nearer], below=[1 - nearer, nearer])
    library = PolicyLibrary.of(cuts).setup(_DOMAIN, _FACTS.actions)
    worlds = []
    for train in turning_pair():
        certified = nuisances.fit(train, _FACTS)
        functions = certified.nuisances
        worlds.append(utilities(dr_scores(arm, y, functions.propensity(x), functions.outcome(x)), library, x))
    return worlds[0], worlds[1], certified.range_sensitivity


@worst_case(
    "stable_nuisances",
    StableNuisances,
    pair="a treated training record lies where half of all scoring records do, or where the others do: all scores turn",
)
def _stable(budget: PrivacyBudget) -> Game:
    *worlds, range_sensitivity = turned_utilities()
    mechanism = PermuteAndFlip(budget.epsilon, range_sensitivity)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return mechanism.select(worlds[world], noise, runs).double()[:, None]

    pure = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    # the record at the point lowers what the first policy is worth
    return Game(draw, mechanism.event, pure, evidence=lambda chosen: -chosen[:, 0].sign(), most_runs=40_000)
