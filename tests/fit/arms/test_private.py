"""Nuisances that a private mechanism pays for: budgets, range sensitivities and more than two actions."""

import pytest
import torch

from tests.sessions import of_ledger
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.private import PrivateNuisances
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger

DOMAIN = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0, overlap=0.05)
BUDGET = PrivacyBudget(8.0, 1e-5)


def facts(arms: int = 2, overlap: float = 0.1, n: int = 20_000) -> SelectionFacts:
    return SelectionFacts(DOMAIN, tuple(range(arms)), overlap, n, n)


def records(n: int, arms: int) -> CausalData:
    """Outcomes of 0.2, 0.5 and 0.8 by arm; the last arm is the rarer the smaller x."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    a = torch.randint(arms, (n,), generator=generator).double()
    a[torch.rand(n, generator=generator) > 0.5 + x[:, 0] / 2] = 0
    return CausalData(x, a, 0.2 + 0.3 * a)


def fitted(nuisances: PrivateNuisances, given: SelectionFacts, budget: PrivacyBudget | None = BUDGET):
    ledger = Ledger({"nuisance": BUDGET})
    nuisances.check(given, budget)
    train = records(given.training, given.arms)
    certified = nuisances.fit(train, given, session=of_ledger(ledger, "nuisance", budget=budget))
    return certified, ledger


@pytest.mark.first(1)
@pytest.mark.parametrize("arms", [2, 3])
def test_functions_are_near_the_truth_paid_for_and_within_their_ranges(arms):
    certified, ledger = fitted(PrivateNuisances(), facts(arms))
    x = DOMAIN.grid(500)
    e, mu = certified.nuisances.propensity(x), certified.nuisances.outcome(x)
    torch.testing.assert_close(e.sum(1), torch.ones(500, dtype=torch.float64))
    assert e.min() >= 0.1
    assert (mu.mean(0) - 0.2 - 0.3 * torch.arange(arms)).abs().max() < 0.1
    assert e[x[:, 0] < 0.1, -1].mean() < e[x[:, 0] > 0.9, -1].mean()
    spent = ledger.spent("nuisance")
    assert 0.99 * 8 <= spent["epsilon"] <= 8 * (1 + 1e-9)
    assert spent["delta"] <= 1e-5
    assert not PrivateNuisances.moves_all_scores
    for values, ends in zip((e, mu), certified.nuisances.ranges(), strict=True):
        assert (ends[:, 0] <= values.amin(0) + 1e-12).all()
        assert (values.amax(0) <= ends[:, 1] + 1e-12).all()
    # never above what the floor says, and here well below
    assert certified.range_sensitivity == 2 * certified.public["score_spread"] < 0.9 * 2 * 1 / 0.1


@pytest.mark.slow
def test_networks_by_dp_sgd():
    recipe = NuisanceConfig(width=4, epochs=1, batch_size=250)
    certified, ledger = fitted(PrivateNuisances(recipe), facts(n=1000))
    assert certified.public["nuisance"] == "NuisanceConfig"
    assert ledger.spent("nuisance")["epsilon"] <= 8 * (1 + 1e-9)
    assert certified.nuisances.propensity(DOMAIN.grid(5)).dtype == torch.float64


def test_a_floor_of_a_half_leaves_nothing_to_learn():
    certified, _ = fitted(PrivateNuisances(), facts(overlap=0.5, n=500))
    assert certified.nuisances.propensity(DOMAIN.grid(5)).flatten().tolist() == pytest.approx([0.5] * 10)


def test_pure_budgets_are_refused_with_a_remedy():
    with pytest.raises(InputError, match=r"delta = 0: .*nuisance_guarantee=stability, which is pure"):
        PrivateNuisances().check(facts(), PrivacyBudget(1.0, 0.0))


def test_what_a_recipe_refuses_is_refused_early():
    with pytest.raises(InputError, match="batch_size=128 exceeds the block's n=100"):
        PrivateNuisances(NuisanceConfig()).check(facts(n=100), BUDGET)
    assert PrivateNuisances(ConvexNuisanceConfig()).check(facts(), None) is None
