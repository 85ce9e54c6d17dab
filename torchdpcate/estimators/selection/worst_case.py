"""Neighbouring records on which the choice of a policy is attacked."""

from dataclasses import replace

import torch

from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.nuisance.arms.fixed import FixedNuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.4)
_RECORDS, _POLICIES = 40, 30  # the more policies, the nearer the worst pair comes to epsilon


def _selector(world: int) -> PolicySelector:
    """All records score nothing but one, of the best outcome, whose arm distinguishes the worlds.

    The first policy treats it, the others do not.
    """
    x, y = torch.zeros(_RECORDS, 1, dtype=torch.float64), torch.zeros(_RECORDS, dtype=torch.float64)
    a = torch.arange(_RECORDS) % 2
    x[0], a[0], y[0] = 0.5, 1 - world, 1.0
    thresholds = [0.4, *torch.linspace(0.6, 0.9, _POLICIES - 1, dtype=torch.float64).tolist()]
    nuisances, policies = FixedNuisances(propensity=0.5, outcome=0.0), [Thresholds("x0", thresholds)]
    return PolicySelector(_DOMAIN, None, policies=policies, nuisance=nuisances).fit(x, a, y)


@worst_case(
    "policy_selector",
    PolicySelector,
    pair="records that score nothing and one of the best outcome, treated or not; one policy of 30 treats it",
)
def _policy_selector(budget: PrivacyBudget) -> Game:
    one, other = (_selector(world) for world in (0, 1))
    plan = replace(one.plan_, budget=PrivacyBudget(budget.epsilon, 0.0), epsilon=budget.epsilon)
    return plan.game("choice", one.utilities_, other.utilities_, most_runs=40_000)
