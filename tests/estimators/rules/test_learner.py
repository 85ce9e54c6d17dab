"""Learners of rules: what they minimise, what they spend, what they refuse."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchdpcate import load_release
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.estimators.rules.outcome import Outcome, PrivateResidual, Shifted, SignedResidual
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS, WeightedERM
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.weights import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, Charge, Purpose
from torchdpcate.verify.file import verify_release

FACTS = {"outcome_low": -2.0, "outcome_high": 2.0, "overlap": 0.2, "better": "higher"}
BLIND = Domain([0.0, 0.0], [1.0, 1.0], **FACTS)
DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], **FACTS, propensity=0.5)


def records(n=1500, seed=0, p=0.5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator) < p).double()
    y = (2 * a - 1) * (x[:, 0] - x[:, 1]) + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, a, y.clamp(-2, 2)


def best(x):
    return (x[:, 0] > x[:, 1]).long().numpy()


def test_a_rule_without_privacy_is_the_weighted_minimiser():
    x, a, y = records()
    trial = Domain([0.0, 0.0], [1.0, 1.0], **FACTS, propensity=0.3)
    learner = OutcomeWeightedLearner(trial, None, outcome="shifted", ridge=2.0).fit(x, a, y)
    theta = learner.problem_.minimiser.clone().requires_grad_()
    psi = torch.cat([torch.ones(len(x), 1), 2 * x - 1], 1) / math.sqrt(3)
    weights = (y + 2) / 4 / (2 * (0.7 - 0.4 * a))
    z = (2 * a - 1) * (psi @ theta)
    loss = torch.where(z < 0.5, 1 - z, torch.where(z > 1.5, 0 * z, (1.5 - z) ** 2 / 2))
    total = (weights * loss).sum() + theta @ theta
    (gradient,) = torch.autograd.grad(total, theta)
    assert gradient.norm() < 1e-8
    assert np.allclose(learner.nonprivate_score(x), (psi @ theta).detach())


def test_confounding_is_weighted_away_by_the_right_arm_alone():
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(40_000, 2, generator=generator, dtype=torch.float64)
    pi = 0.2 + 0.6 * (x[:, 0] > 0.5).double()
    a = (torch.rand(len(x), generator=generator) < pi).double()
    effect = x[:, 1] - 0.5
    y = 1.5 * (x[:, 0] > 0.5) - 0.75 + a * effect
    domain, truth = Domain([0.0, 0.0], [1.0, 1.0], **FACTS, propensity="pi"), (effect > 0).numpy()
    right = OutcomeWeightedLearner(domain, None).fit(x, a, y, pi)
    blind = TwoStageRule(domain, None, weights="constant").fit(x, a, y, pi)
    accuracy = [((rule.nonprivate_score(x) > 0) == truth).mean() for rule in (right, blind)]
    assert accuracy[0] > 0.95
    assert accuracy[1] < 0.75


@pytest.mark.parametrize("mechanism", RULE_MECHANISMS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_every_way_releases_a_rule_that_follows_the_records(mechanism, delta, tmp_path):
    x, a, y = records(20_000)
    learner = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(4.0, delta), mechanism=mechanism)
    rule = learner.fit(x, a, y).release()
    assert (rule.decide(x) == best(x)).mean() > 0.9
    assert rule.privacy.level == "certified"
    assert rule.privacy.epsilon <= 4.0 * (1 + 1e-9)
    path = rule.save(tmp_path / "rule.safetensors")
    back = load_release(path)
    assert np.array_equal(back.score(x), rule.score(x))
    assert np.array_equal(back.decide(x), (rule.score(x) > 0).astype(int))
    verify_release(path)


def test_noise_below_that_of_the_formula_is_refused(monkeypatch, tmp_path):
    x, a, y = records(2_000)
    learner = TwoStageRule(DOMAIN, PrivacyBudget(2.0, 1e-6), weights="constant").fit(x, a, y)
    calibrate = PrivateFit.objective

    def weaker(*given, **facts):
        noise = calibrate(*given, **facts)
        return replace(noise, scale=noise.scale * 0.999)

    with monkeypatch.context() as made:
        made.setattr(PrivateFit, "objective", weaker)
        path = learner.release().save(tmp_path / "rule.safetensors")
    with pytest.raises(VerificationError, match="perturbation_scale"):
        verify_release(path)


def test_bought_constants_are_where_the_outcomes_are():
    x, a, y = records(4000)
    wide = Domain([0.0, 0.0], [1.0, 1.0], -100.0, 500.0, overlap=0.2, propensity=0.5, better="higher")
    private = OutcomeWeightedLearner(wide, PrivacyBudget(4.0, 0.0)).fit(x, a, y)
    # at epsilon 0.2 each the rank is off by more than 200 of 4,000 with a probability of 600 exp(-20)
    assert abs(private.outcome_.centre - y.median()) < 1.2  # a step of the grid is 1.2
    assert 0.3 < private.outcome_.clip < 1.5
    rule = private.release()
    assert (rule.decide(x) == best(x)).mean() > 0.9
    assert rule.privacy.public["outcome_clip"] == private.outcome_.clip
    assert rule.privacy.epsilon == pytest.approx(4.0)
    charges = [charge.charge for charge in rule.privacy.charges]
    assert charges == [OUTCOME, Charge(Purpose.RELEASE, "objective_box")]


def refused(match, budget=None, data=None, domain=DOMAIN, **settings):
    x, a, y = records() if data is None else data
    with pytest.raises(InputError, match=match):
        OutcomeWeightedLearner(domain, budget or PrivacyBudget(1.0, 0.0), **settings).fit(x, a, y).release()


def test_mistakes_are_named():
    x, a, y = records()
    refused(
        "leave something for the rule",
        outcome=PrivateResidual(budget_fraction=0.8),
        weights=PrivateWeights(budget_fraction=0.3),
        domain=BLIND,
    )
    refused("outcome.quantile = 2", outcome=PrivateResidual(quantile=2))
    refused("mechanism = magic", mechanism="magic")
    refused("outcome = raw", outcome="raw")
    refused("outcome.clip = 0", outcome=SignedResidual(clip=0.0))
    refused("same weight", outcome=SignedResidual(centre=5.0, clip=1.0))
    refused("same weight", outcome=Shifted(low=3.0, high=4.0))
    refused("weights = known", domain=BLIND)
    refused("outside its declared bounds", data=(x, a, y + 5))
    refused("no record with value 0", data=(x, torch.ones_like(a), y))
    refused("ridge = 0.01: objective perturbation spends", ridge=0.01)
    refused("ridge = -1", ridge=-1.0)


class Loud(Outcome):
    """An outcome of one's own that breaks its promise."""

    name = "loud"

    def transform(self, y, domain):
        return 3 * torch.ones_like(y), torch.ones_like(y)

    def public(self, domain):
        return {}


def test_an_outcome_out_of_range_is_refused_before_anything_is_spent(tmp_path):
    x, a, y = records()
    path = tmp_path / "ledger.sqlite"
    learner = TwoStageRule(DOMAIN, PrivacyBudget(4.0, 0.0), outcome=Loud(), ledger_path=path)
    with pytest.raises(InputError, match="magnitudes in"):
        learner.fit(x, a, y)
    assert not path.exists()


def test_weights_that_are_all_zero_release_the_noise_of_the_ridge_alone():
    """One outcome above the bound would weigh something: a refusal would reveal that it is not there."""
    x, a, y = records()
    for outcome in ("shifted", Shifted(low=1.0, high=2.0)):
        learner = TwoStageRule(DOMAIN, PrivacyBudget(4.0, 0.0), outcome=outcome, weights="constant")
        learner.fit(x, a, torch.full_like(y, -2.0))
        assert not learner.problem_.minimiser.any()
        release = learner.release()
        assert release.theta.any()
        assert (release.privacy.level, release.privacy.epsilon) == ("certified", pytest.approx(4.0))


class Own(Outcome):
    """An outcome of one's own; ``leaky`` it looks at all records."""

    name = "own"

    def __init__(self, leaky=False):
        self.leaky = leaky

    def transform(self, y, domain):
        centre = y.mean() if self.leaky else 0.25
        return ((y - centre).abs() / 4).clamp(max=1.0), torch.where(y > centre, 1.0, -1.0).to(y)

    def public(self, domain):
        return {}


def test_an_outcome_of_ones_own_is_tried_and_makes_the_claim_conditional():
    x, a, y = records()
    release = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(4.0, 0.0), outcome=Own()).fit(x, a, y).release()
    assert release.privacy.level == "conditional"
    assert [condition["name"] for condition in release.privacy.conditions] == ["outcome"]
    refused("one outcome at a time", outcome=Own(leaky=True))


def test_weights_above_their_bound_are_refused():
    psi, ones = torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    for weights in (2 * ones, -ones):
        with pytest.raises(InputError, match="public bound"):
            WeightedERM(psi, ones, weights, HuberHinge(), 1.0, WeightBounds.per_record(1.0))
    for ridge in (0.0, math.inf, math.nan):
        with pytest.raises(InputError, match="ridge"):
            WeightedERM(psi, ones, ones, HuberHinge(), ridge, WeightBounds.per_record(1.0))
