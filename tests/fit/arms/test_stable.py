"""Stable nuisances: default ridges, spreads, refusals, and fits that meet what the certificate rests on."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from tests.sessions import of_ledger
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.linear_fits import ArmCoefficients, ShrinkageTarget
from torchdpcate.fit.arms.stable import CONSTANTS, StableNuisances
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import ARMS
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], outcome_low=-1.0, outcome_high=3.0, overlap=0.1)


def facts(arms: int = 2, training: int = 300, scoring: int = 400, overlap: float = 0.1) -> SelectionFacts:
    return SelectionFacts(DOMAIN, tuple(range(arms)), overlap, training, scoring)


def stable(*ridges: float, **settings) -> StableNuisances:
    """Nuisances about equal shares and the middle."""
    return StableNuisances(*ridges, **{"target": None, **settings})


def records(n: int, arms: int = 2, seed: int = 0) -> CausalData:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
    y = 4 * torch.rand(n, generator=generator, dtype=torch.float64) - 1
    return CausalData(x, torch.randint(arms, (n,), generator=generator).double(), y)


@pytest.mark.first(2)
@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("constants", CONSTANTS)
def test_default_ridges_are_the_smallest_that_spill_no_more_than_a_record(arms, constants):
    nuisances = stable(constants=constants)
    ridge, other = nuisances.ridges(facts(arms))
    bound = nuisances.bound(facts(arms))
    if constants == "paper":
        assert bound.paper(400) == pytest.approx(2 * 4 * 11)
    else:
        part = 0.1 if constants == "localised" else 1.0  # where S falls with the ridge
        assert bound.indirect(400) == pytest.approx(part * 2 * bound.own)
        assert nuisances.range_sensitivity(facts(arms)) == pytest.approx(2 * bound.own)
    assert ridge == other
    least = nuisances.ridges(facts(arms), part=1.0)[0]
    assert (least < 0.2 * ridge) is (constants == "localised")
    nuisances = replace(nuisances, ridge=least, propensity_ridge=least)
    smaller = replace(nuisances, ridge=0.99 * least, propensity_ridge=0.99 * least)
    assert smaller.range_sensitivity(facts(arms)) > nuisances.range_sensitivity(facts(arms))


def test_localised_spreads_are_the_smallest():
    spreads = [stable(50 / 21, 50 / 21, constants=name).range_sensitivity(facts(2, 1500, 1500)) for name in CONSTANTS]
    assert spreads == pytest.approx([4 * 2.862845, 4 * 27.200361, 4 * 57.228204], rel=1e-6)


@pytest.mark.parametrize("given", [{"ridge": 5.0}, {"propensity_ridge": 5.0}])
def test_one_ridge_given_leaves_the_rest_to_the_other(given):
    nuisances = stable(**given)
    ridges = dict(zip(("ridge", "propensity_ridge"), nuisances.ridges(facts()), strict=True))
    assert ridges.items() >= given.items()
    bound = nuisances.bound(facts())
    assert bound.indirect(400) == pytest.approx(2 * bound.own)
    with pytest.raises(InputError, match=r"= 0.001: alone it lets a training record do more"):
        stable(**dict.fromkeys(given, 1e-3)).check(facts(), None)


@pytest.mark.first(1)
@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("features", [None, Legendre(3)])
def test_functions_lie_where_the_certificate_says(arms, features):
    nuisances = stable(features=features)
    nuisances.check(facts(arms), None)
    certified = nuisances.fit(records(300, arms), facts(arms))
    x = records(400, arms, seed=1).x
    e, mu, bound = certified.nuisances.propensity(x), certified.nuisances.outcome(x), nuisances.bound(facts(arms))
    assert e.shape == mu.shape == (400, arms)
    assert e.dtype == mu.dtype == torch.float64
    torch.testing.assert_close(e.sum(1), torch.ones(400, dtype=torch.float64))
    assert e.min() >= bound.overlap >= 0.1
    assert (mu - 1).abs().max() <= bound.outcome_range - 2
    assert StableNuisances.level is Level.CERTIFIED
    assert StableNuisances.moves_all_scores
    assert (
        certified.public["indirect_sensitivity"]
        <= certified.range_sensitivity
        == nuisances.range_sensitivity(facts(arms))
    )


@pytest.mark.parametrize("target", [None, "private"])
def test_a_replaced_record_spreads_all_sums_within_the_certificate(target):
    """Worst policies of each pair of neighbours: every scoring record counts where the change is on one side.

    A private target is public, and refits about it keep to it.
    """
    train, score = records(300), records(400, seed=1)
    nuisances = StableNuisances(target=target)
    if target:
        nuisances = nuisances.settle(train, facts())
        assert nuisances.target.outcome == pytest.approx([train.y[train.a == a].mean().item() for a in (0, 1)])
    generator = torch.Generator().manual_seed(2)
    index, new = torch.randint(300, (200,), generator=generator), records(200, seed=3)
    new.y[:] = torch.where(new.y > 1, 3.0, -1.0)
    before, after = nuisances.fit(train, facts()).nuisances, nuisances.refit(train, facts(), index, new)
    scores = []
    for functions in (before, after):
        mu, e = functions.outcome(score.x), functions.propensity(score.x)
        own = torch.nn.functional.one_hot(score.a.long(), 2)
        scores.append(mu + own * (score.y[:, None] - mu) / e)
    moved = scores[1] - scores[0]
    spread = (moved.amax(-1) - moved.amin(-1)).sum(-1)
    assert 0.01 < spread.max() / nuisances.bound(facts()).indirect(400) < 1


def test_refits_are_fits_of_neighbours():
    nuisances, train, new, given = stable(), records(100), records(3, seed=1), facts(training=100)
    replaced = nuisances.refit(train, given, torch.tensor([4, 50, 99]), new)
    x, a, y = train.x.clone(), train.a.clone(), train.y.clone()
    x[50], a[50], y[50] = new.x[1], new.a[1], new.y[1]
    own = nuisances.fit(CausalData(x, a, y), given).nuisances
    for function in ("propensity", "outcome"):
        both = getattr(replaced, function)(new.x)[1], getattr(own, function)(new.x)
        torch.testing.assert_close(*both, rtol=0, atol=1e-9)


@dataclass(frozen=True)
class Restless(StableNuisances):
    """A learner that starts at random and stops early."""

    def solve(self, records, ridge, propensity_ridge):
        found = super().solve(records, ridge, propensity_ridge)
        return ArmCoefficients(found.means, found.logits + 1e-3 * torch.rand(found.logits.shape))


@dataclass(frozen=True)
class Sloppy(StableNuisances):
    """A learner that is always as wrong."""

    def solve(self, records, ridge, propensity_ridge):
        found = super().solve(records, ridge, propensity_ridge)
        return ArmCoefficients(found.means, found.logits + 1e-6)


def test_a_learner_whose_two_fits_differ_is_refused():
    with pytest.raises(InputError, match="nuisance = Restless: two fits of the same records differ"):
        Restless().fit(records(300), facts())


def test_a_learner_that_misses_the_minimum_is_refused_unless_the_tolerance_covers_it():
    with pytest.raises(NumericalError, match="nothing is released"):
        Sloppy().fit(records(300), facts())
    ridges = {"ridge": 0.1, "propensity_ridge": 0.1}
    certified = Sloppy(tolerance=1e-4, target=None, **ridges).fit(records(300), facts())
    assert certified.range_sensitivity > stable(**ridges).range_sensitivity(facts())


def test_a_certificate_for_other_sizes_is_refused():
    with pytest.raises(InputError, match="that of 300 training records"):
        stable().fit(records(30), facts())


def test_arms_without_training_records_get_the_middle():
    train = records(300, 3)
    train.a[train.a == 2] = 0
    certified = stable().fit(train, facts(3))
    assert certified.nuisances.outcome(train.x)[:, 2].tolist() == [1.0] * 300


OUT_OF_RANGE = (
    {"ridge": 0.0},
    {"propensity_ridge": -1.0},
    {"tolerance": 0.0},
    {"constants": "loose"},
    {"budget_fraction": 1.0},
    {"budget_fraction": 0.0},
    {"target": "mine"},
    {"target": 0.5},
    {"target": {"propensities": 0.5}},
)
SMALL = PrivacyBudget(1e-6, 0.0)


@pytest.mark.parametrize(
    ("settings", "given", "match"),
    [
        ({}, {"arms": 3, "overlap": 0.4}, r"overlap zeta = 0.4: K = 3 propensities .* at most 1 / K = 0.3333"),
        ({}, {"overlap": 0.0}, "overlap zeta = 0"),
        ({}, {"overlap": -0.1}, "overlap zeta = -0.1"),
        ({}, {"training": 0}, "split: leaves 0 records to train"),
        ({}, {"scoring": 0}, "0 to score"),
        ({}, {"overlap": math.nan}, "overlap"),
        ({"target": {"propensity": [0.5, 0.3, 0.2]}}, {}, "propensity has 3 numbers"),
        ({"target": {"propensity": 0.05}}, {}, "none lies below the overlap"),
        ({"target": {"outcome": 5.0}}, {}, "outcome has 2 values outside"),
        ({"target": "private"}, {"budget": SMALL}, r"larger privacy\.epsilon"),
        *((settings, {}, next(iter(settings))) for settings in OUT_OF_RANGE),
    ],
)
def test_refusals_come_before_anything_is_spent(settings, given, match):
    sizes = {name: value for name, value in given.items() if name != "budget"}

    def refused():
        stable(**settings).check(facts(**sizes), given.get("budget"))

    with pytest.raises(InputError, match=match):
        refused()


TARGETS = {2: {"propensity": 0.2, "outcome": [0.0, 2.0]}, 3: ShrinkageTarget((0.7, 0.15, 0.15), (-0.5, 0.5, 2.0))}


@pytest.mark.slow
@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("constants", CONSTANTS)
def test_fits_about_a_guess_lie_where_the_certificate_says(arms, constants):
    nuisances = StableNuisances(target=TARGETS[arms], constants=constants)
    nuisances.check(facts(arms), None)
    certified = nuisances.fit(records(300, arms), facts(arms))
    x = records(400, arms, seed=1).x
    e, mu, bound = certified.nuisances.propensity(x), certified.nuisances.outcome(x), nuisances.bound(facts(arms))
    torch.testing.assert_close(e.sum(1), torch.ones(400, dtype=torch.float64))
    assert e.min() >= bound.overlap >= 0.1
    assert (
        certified.public["indirect_sensitivity"]
        <= certified.range_sensitivity
        == nuisances.range_sensitivity(facts(arms))
    )
    assert certified.public["target"] == "public"
    if constants == "localised":
        assert bound.indirect(400) == pytest.approx(0.1 * 2 * bound.own)
        for a, own in enumerate(bound.arms):
            assert e[:, a].min() >= own.least
            assert torch.maximum(3 - mu[:, a], mu[:, a] + 1).max() <= own.residual


def test_large_ridges_leave_the_guess():
    certified = StableNuisances(1e9, 1e9, target=TARGETS[3]).fit(records(300, 3), facts(3))
    x = records(5, 3).x
    mixed = 0.7 * torch.tensor([0.7, 0.15, 0.15]).double() + 0.1
    torch.testing.assert_close(certified.nuisances.propensity(x)[0], mixed, rtol=0, atol=1e-8)
    means = torch.tensor([-0.5, 0.5, 2.0]).double()
    torch.testing.assert_close(certified.nuisances.outcome(x)[0], means, rtol=0, atol=1e-8)


def test_a_guess_that_says_nothing_changes_no_fit():
    train, x = records(300), records(50, seed=1).x
    ridges = {"ridge": 0.5, "propensity_ridge": 0.5}
    plain = stable(**ridges).fit(train, facts())
    neutral = stable(target=ShrinkageTarget(), **ridges).fit(train, facts())
    for function in ("propensity", "outcome"):
        assert torch.equal(getattr(plain.nuisances, function)(x), getattr(neutral.nuisances, function)(x))
    assert neutral.public["score_spread"] == pytest.approx(plain.public["score_spread"])
    assert neutral.public["indirect_sensitivity"] < plain.public["indirect_sensitivity"]


def test_a_guess_is_bought_from_the_training_block_alone():
    ledger = Ledger({"nuisance": PrivacyBudget(2.0, 0.0), "scoring": PrivacyBudget(2.0, 0.0)})
    session = of_ledger(ledger, "nuisance", budget=PrivacyBudget(2.0, 0.0))
    nuisances = StableNuisances(budget_fraction=0.25)
    nuisances.check(facts(), session.budget)
    certified = nuisances.fit(records(300), facts(), session=session)
    (entry,) = ledger.entries
    assert (entry.block, entry.charge, entry.event.epsilon, entry.level) == ("nuisance", ARMS, 0.5, Level.CERTIFIED)
    assert certified.public["target"] == "private"
    again = StableNuisances(
        target=ShrinkageTarget(certified.public["target_propensity"], certified.public["target_outcome"])
    )
    bound = again.bound(facts())  # the range follows from the target, and from what the training block has left
    assert certified.public["choice_share"] == 0.75
    assert again.ridges(facts(), 0.75)[0] == certified.public["ridge"] > again.ridges(facts())[0]
    assert certified.range_sensitivity == pytest.approx(2 * certified.public["score_spread"])
    assert certified.range_sensitivity < 2 * bound.own
    assert certified.public["indirect_sensitivity"] == pytest.approx(0.1 * 0.75 * certified.range_sensitivity)


def test_a_guess_is_needed_before_its_certificate():
    for ask in (StableNuisances().ridges, StableNuisances().bound, StableNuisances().range_sensitivity):
        with pytest.raises(InputError, match="target = private: is not known yet"):
            ask(facts())


@pytest.mark.parametrize("given", [{"ridge": 1e-3}, {"propensity_ridge": 1e-3}])
def test_once_a_guess_is_paid_for_a_small_ridge_is_no_reason_to_refuse(given):
    with pytest.raises(InputError, match="alone it lets"):
        StableNuisances(**given, target=ShrinkageTarget()).check(facts(), None)
    nuisances = StableNuisances(**given)
    nuisances.check(facts(), PrivacyBudget(1.0, 0.0))
    certified = nuisances.fit(records(300), facts())
    assert (certified.public["ridge"], certified.public["propensity_ridge"]) == (1e-3, 1e-3)
    assert 0.9 * certified.range_sensitivity == pytest.approx(certified.public["indirect_sensitivity"])
    assert certified.range_sensitivity > 2 * certified.public["score_spread"]
