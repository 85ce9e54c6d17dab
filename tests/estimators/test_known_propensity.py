"""A propensity that the domain knows, by strata, by a column or of all: taken as it is, and not paid for."""

import pandas as pd
import pytest
import torch

from tests.registered import (
    DRLearner,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    TwoStageRule,
)
from tests.verify.forgery import card_html
from torchdpcate import Domain, LinearSecondStage, PrivacyBudget
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.privacy.charge import Purpose
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

BUDGET, PURE = PrivacyBudget(4.0, 1e-5), PrivacyBudget(8.0, 0.0)
STRATA = {"x1": {0: 0.3, 1: 0.6}}
TWO_BLOCKS = {"nuisance": NuisanceConfig(width=0, batch_size=50, epochs=1), "second_stage": LinearSecondStage()}
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.0, 0.5])]
N = 1_000


def domain(propensity=None) -> Domain:
    return Domain([-1, 0], [1, 1], -1.0, 1.0, 0.1, two_levels=[False, True], propensity=propensity, better="higher")


def drawn() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(N, 2, generator=generator, dtype=torch.float64) - 1
    x[:, 1] = (x[:, 1] > 0).double()
    p = torch.tensor([0.3, 0.6], dtype=torch.float64)[x[:, 1].long()]
    a = (torch.rand(N, generator=generator, dtype=torch.float64) < p).double()
    return x, a, (2 * a - 1) * x[:, 0], p


X, A, Y, P = drawn()
FRAME = pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "p": P})


@pytest.mark.parametrize("kind", [RLearner, DRLearner])
def test_a_column_and_strata_are_the_same_propensity_of_an_effect(kind) -> None:
    by_strata = kind(domain(STRATA), None, **TWO_BLOCKS).fit(X, A, Y)
    by_column = kind(domain("p"), None, **TWO_BLOCKS).fit(X, A, Y, propensity=P)
    by_frame = kind(domain("p"), None, **TWO_BLOCKS).fit(FRAME, A, Y)
    assert torch.equal(by_strata.stage_.block.w, by_column.stage_.block.w)
    assert torch.equal(by_column.stage_.block.s, by_frame.stage_.block.s)
    if kind is RLearner:
        assert torch.equal(by_strata.stage_.block.w, (A - P)[by_strata.blocks_["second_stage"]])


def test_the_composition_takes_it() -> None:
    settings = {"second_stage": AdaptiveSecondStage()}
    by_strata = RLearner(domain(STRATA), None, **settings).fit(X, A, Y).composed_
    by_column = RLearner(domain("p"), None, **settings).fit(X, A, Y, propensity=P).composed_
    assert torch.equal(by_strata.propensity, by_column.propensity)
    assert torch.equal(by_strata.propensity, P)


def test_the_noise_of_a_trial_follows_from_its_propensity() -> None:
    settings = TWO_BLOCKS | {"second_stage": LinearSecondStage(threshold=0.5, ridge=0.02)}  # else they differ too
    known, estimated = (RLearner(domain(given), BUDGET, **settings) for given in (0.5, None))
    first, second = (fitted.fit(X, A, Y).stage_.sensitivity for fitted in (known, estimated))
    assert first < 0.7 * second


def test_a_search_of_the_covariates_refuses_a_column() -> None:
    with pytest.raises(InputError, match="each record's propensity is the column 'p'"):
        RLearner(domain("p"), BUDGET, **TWO_BLOCKS).check(N, "influence")


def test_a_private_propensity_of_a_rule_is_not_paid_for_where_it_is_known() -> None:
    learner = OutcomeWeightedLearner(domain(0.4), PURE, weights="private").fit(X, A, Y)
    assert learner.settings_["weights"] == "known"
    assert TwoStageRule(domain(), PURE).scheme().name == "private"
    by_strata = OutcomeWeightedLearner(domain(STRATA), None).fit(X, A, Y)
    by_column = OutcomeWeightedLearner(domain("p"), None).fit(FRAME, A, Y)
    assert torch.equal(by_strata.problem_.weights, by_column.problem_.weights)


def test_scores_of_policies_weigh_by_each_records_own() -> None:
    settings = {"policies": POLICIES, "nuisance_guarantee": "fixed"}
    by_strata = PolicySelector(domain(STRATA), None, **settings).fit(X, A, Y)
    by_column = PolicySelector(domain("p"), None, **settings).fit(X, A, Y, P)
    assert torch.equal(by_strata.utilities_, by_column.utilities_)
    assert by_strata.range_sensitivity_ < by_column.range_sensitivity_
    # by hand: treat all against none, scores (y / p(a)) for a middle of 0
    value = (Y * A / P).sum() - (Y * (1 - A) / (1 - P)).sum()
    assert (by_strata.utilities_[1] - by_strata.utilities_[0]).item() == pytest.approx(value.item(), rel=1e-6)
    known = PolicySelector(domain(0.4), None, **settings).fit(X, A, Y)
    given = PolicySelector(domain(), None, policies=POLICIES, nuisance=FixedNuisances(0.4)).fit(X, A, Y)
    assert torch.equal(known.utilities_, given.utilities_)
    assert known.range_sensitivity_ == given.range_sensitivity_


@pytest.mark.parametrize("given", [0.4, STRATA, "p"])
@pytest.mark.parametrize("estimand", ["ATE", "ATT"])
def test_an_average_by_it_is_near_the_effect_and_verifies(given, estimand, tmp_path) -> None:
    learner = KnownPropensityEffect(domain(given), PrivacyBudget(20.0, 0.0), estimand=estimand)
    release = learner.fit(X, A, 0.5 * Y + 0.4 * A, P if given == "p" else None).release()
    assert release.estimate == pytest.approx(0.4, abs=0.2)  # six standard errors
    assert (release.privacy.level, release.privacy.delta) == ("certified", 0.0)
    assert ("size" in release.numbers) == (estimand == "ATT" and given != 0.4)
    assert verify_release(release.save(tmp_path / "r.safetensors"))
    found = load_release(tmp_path / "r.safetensors")
    assert found.interval(0.95).tolist() == release.interval(0.95).tolist()
    assert "propensity that the domain states" in found.assumptions


LEARNERS = {
    "outcome weighted": lambda facts: OutcomeWeightedLearner(facts, PURE),
    "two stages": lambda facts: TwoStageRule(facts, PURE),
    "centred": lambda facts: PolicySelector(facts, PURE, policies=POLICIES),
    "fixed": lambda facts: PolicySelector(facts, PURE, policies=POLICIES, nuisance_guarantee="fixed"),
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("given", [0.4, STRATA, "p"])
def test_decisions_by_it_pay_nothing_for_it_and_verify(name, given, tmp_path) -> None:
    learner = LEARNERS[name](domain(given)).fit(X, A, Y, P if given == "p" else None)
    release = learner.release()
    assert all(charge.purpose is not Purpose.WEIGHTS for charge in release.privacy.charges)
    assert verify_release(release.save(tmp_path / "r.safetensors"))
    again = load_release(tmp_path / "r.safetensors")
    assert again.domain.known_propensity is not None
    assert again.decide([[-1.0, 0.0], [1.0, 0.0]]).tolist() == [0, 1]
    assert "known by the design" in card_html(again)
