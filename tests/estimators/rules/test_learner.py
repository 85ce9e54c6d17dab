"""Learners of rules: what they minimise, what they spend, what they refuse."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate import load_release
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.estimators.rules import weighted_erm
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.estimators.rules.outcome import Outcome, PrivateResidual, Shifted, SignedResidual
from torchdpcate.estimators.rules.weighted_erm import ObjectiveRule, OutputRule, WeightedERM, default_ridge
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.fit.losses import HuberHinge, Squared
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.weights.private import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, Charge, Purpose
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], outcome_low=-2.0, outcome_high=2.0, overlap=0.2, better="higher")


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
    learner = OutcomeWeightedLearner(DOMAIN, None, propensity=0.3, outcome="shifted", ridge=2.0).fit(x, a, y)
    theta = learner.problem_.minimiser.clone().requires_grad_()
    psi = torch.cat([torch.ones(len(x), 1), 2 * x - 1], 1) / math.sqrt(3)
    weights = (y + 2) / 4 / (2 * (0.7 - 0.4 * a))
    z = (2 * a - 1) * (psi @ theta)
    loss = torch.where(z < 0.5, 1 - z, torch.where(z > 1.5, 0 * z, (1.5 - z) ** 2 / 2))
    total = (weights * loss).sum() + theta @ theta
    (gradient,) = torch.autograd.grad(total, theta)
    assert gradient.norm() < 1e-8
    assert np.allclose(learner.nonprivate_score(x), (psi @ theta).detach())


def test_signed_residual_and_shift_agree_on_who_is_better_off():
    x, a, y = records(n=20_000)
    for outcome in ("shifted", "signed_residual", SignedResidual(centre=0.3), Shifted(low=-1.5, high=2.0)):
        rule = OutcomeWeightedLearner(DOMAIN, None, outcome=outcome).fit(x, a, y)
        assert ((rule.nonprivate_score(x) > 0) == best(x)).mean() > 0.97


def test_confounding_is_weighted_away_by_the_right_arm_alone():
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(40_000, 2, generator=generator, dtype=torch.float64)
    pi = 0.2 + 0.6 * (x[:, 0] > 0.5).double()
    a = (torch.rand(len(x), generator=generator) < pi).double()
    effect = x[:, 1] - 0.5
    y = 1.5 * (x[:, 0] > 0.5) - 0.75 + a * effect
    domain = Domain([0.0, 0.0, 0.2], [1.0, 1.0, 0.8], -2.0, 2.0, overlap=0.2, names=["u", "v", "pi"], better="higher")
    X, truth = torch.cat([x, pi[:, None]], 1), (effect > 0).numpy()
    right = OutcomeWeightedLearner(domain, None, propensity="pi").fit(X, a, y)
    blind = TwoStageRule(domain, None, weights="constant").fit(X, a, y)
    accuracy = [((rule.nonprivate_score(X) > 0) == truth).mean() for rule in (right, blind)]
    assert accuracy[0] > 0.95
    assert accuracy[1] < 0.75


WAYS = [(cls.way, kind) for cls in (ObjectiveRule, OutputRule) for kind in (*cls.kinds, None)]


@pytest.mark.parametrize(("mechanism", "perturbation"), WAYS)
def test_every_way_releases_a_rule_that_follows_the_records(mechanism, perturbation, tmp_path):
    x, a, y = records(20_000)
    budget = PrivacyBudget(4.0, 1e-6)
    learner = OutcomeWeightedLearner(DOMAIN, budget, mechanism=mechanism, perturbation=perturbation)
    rule = learner.fit(x, a, y).release()
    assert (rule.decide(x) == best(x)).mean() > 0.9
    assert rule.privacy.level == "certified"
    assert rule.privacy.epsilon <= 4.0 * (1 + 1e-9)
    path = rule.save(tmp_path / "rule.safetensors")
    back = load_release(path)
    assert np.array_equal(back.score(x), rule.score(x))
    assert np.array_equal(back.decide(x), (rule.score(x) > 0).astype(int))
    verify_release(path)


def test_gaussian_noise_below_that_of_the_formula_is_refused(monkeypatch, tmp_path):
    x, a, y = records(2_000)
    learner = TwoStageRule(DOMAIN, PrivacyBudget(2.0, 1e-6), weights="constant", perturbation="gaussian").fit(x, a, y)
    calibrate = PrivateFit.objective

    def weaker(*given, **facts):
        noise = calibrate(*given, **facts)
        return replace(noise, scale=noise.scale * 0.999)

    with monkeypatch.context() as made:
        made.setattr(PrivateFit, "objective", weaker)
        path = learner.release().save(tmp_path / "rule.safetensors")
    with pytest.raises(VerificationError, match="perturbation_scale"):
        verify_release(path)


def test_private_weights_take_their_share_and_a_block_takes_none():
    x, a, y = records(4000)
    shared = TwoStageRule(DOMAIN, PrivacyBudget(2.0, 0.0), weights=PrivateWeights(budget_fraction=0.5)).fit(x, a, y)
    assert shared.ledger_.spent("records")["epsilon"] == pytest.approx(1.2)  # and a tenth for the outcome
    split = TwoStageRule(DOMAIN, PrivacyBudget(2.0, 0.0), weights=PrivateWeights(block_fraction=0.25)).fit(x, a, y)
    assert split.sizes_ == {"weights": 1000, "records": 3000}
    assert split.ledger_.spent("records")["epsilon"] == pytest.approx(0.2)
    rule = split.release()
    assert rule.privacy.epsilon == pytest.approx(2.0)
    assert [block.name for block in rule.privacy.blocks] == ["weights", "records"]


def test_the_propensity_column_is_weight_and_no_feature():
    x, a, y = records()
    domain = Domain([0, 0, 0.3], [1, 1, 0.6], -2.0, 2.0, overlap=0.2, names=["u", "v", "pi"], better="higher")
    frame = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "pi": 0.5})
    learner = OutcomeWeightedLearner(domain, PrivacyBudget(2.0, 0.0), propensity="pi").fit(frame, a, y)
    assert learner.problem_.size == 3
    assert learner.problem_.bounds == WeightBounds.per_record(0.5 / 0.3)
    rule = learner.release()
    assert rule.schema.columns == ("u", "v")  # a reader need not know how people came to be treated
    assert np.array_equal(rule.score(frame), rule.score(x))
    assert learner.nonprivate_score(frame).shape == (1500,)


def test_bought_constants_are_where_the_outcomes_are():
    x, a, y = records(4000)
    wide = Domain([0.0, 0.0], [1.0, 1.0], outcome_low=-100.0, outcome_high=500.0, overlap=0.2, better="higher")
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


def test_squared_loss_is_confined_to_its_ball():
    x, a, y = records()
    learner = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(40.0, 0.0), loss="squared", radius=0.5)
    problem = learner.fit(x, a, y).problem_
    assert problem.loss == Squared(2 + 0.5 / math.sqrt(3))
    assert problem.minimiser.abs().sum() <= 0.5 + 1e-9
    residual = (problem.target - problem.psi @ problem.minimiser).abs().max()
    assert residual <= problem.loss.most_residual


def test_an_l1_radius_sets_coefficients_to_zero_and_is_stated_and_verified(tmp_path):
    x, a, y = records()
    learner = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(40.0, 0.0), radius=0.05, radius_norm="l1").fit(x, a, y)
    assert learner.problem_.minimiser.abs().sum() <= 0.05 + 1e-9
    assert (learner.problem_.minimiser == 0).any()
    release = learner.release()
    assert release.theta.abs().sum() <= 0.05 + 1e-6  # noise hides where the solver stopped
    assert release.privacy.public["radius_norm"] == "l1"
    release.save(tmp_path / "rule.safetensors")
    verify_release(tmp_path / "rule.safetensors")


def test_default_gamma_costs_a_tenth_of_epsilon():
    bounds = WeightBounds.per_record(2.0)
    for epsilon in (0.1, 1.0):
        ridge = default_ridge(100, epsilon, bounds, 1.0)
        assert math.log1p(2.0 / ridge) == pytest.approx(epsilon / 10)
    assert default_ridge(10**6, 5.0, bounds, 1.0) == 2000


def test_a_plan_names_the_spill_of_unpaid_weights():
    x, a, y = records(400)
    settings = {"ridge_bound": 1e9}
    spilled = TwoStageRule(DOMAIN, PrivacyBudget(4.0, 0.0), weights="ipw", **settings).fit(x, a, y).plan()
    private = TwoStageRule(DOMAIN, PrivacyBudget(4.0, 0.0), **settings).fit(x, a, y).plan()
    assert spilled.indirect_fraction > 0.3
    assert private.indirect_fraction == 0
    assert any("weights=private" in line for line in spilled.advice)
    assert str(spilled).count("\n") > 3


def refused(match, budget=None, data=None, **settings):
    x, a, y = records() if data is None else data
    with pytest.raises(InputError, match=match):
        OutcomeWeightedLearner(DOMAIN, budget or PrivacyBudget(1.0, 0.0), **settings).fit(x, a, y).release()


def test_mistakes_are_named():
    x, a, y = records()
    refused(
        "leave something for the rule",
        outcome=PrivateResidual(budget_fraction=0.8),
        propensity=PrivateWeights(budget_fraction=0.3),
    )
    refused("outcome.quantile = 2", outcome=PrivateResidual(quantile=2))
    refused("delta = 0", perturbation="gaussian")
    refused("mechanism = magic", mechanism="magic")
    refused("perturbation = box", mechanism="output", perturbation="box")
    refused("loss = zero_one", loss="zero_one")
    refused("give a radius", loss="squared")
    refused("radius = -1", radius=-1.0)
    refused("radius_norm = l3", radius=1.0, radius_norm="l3")
    refused("radius_norm = l1: it is of a radius", radius_norm="l1")
    refused("outcome = raw", outcome="raw")
    refused("outcome.clip = 0", outcome=SignedResidual(clip=0.0))
    refused("same weight", outcome=SignedResidual(centre=5.0, clip=1.0))
    refused("same weight", outcome=Shifted(low=3.0, high=4.0))
    refused("propensity", propensity=1.5)
    refused("no such covariate", propensity="age")
    refused("outside its declared bounds", data=(x, a, y + 5))
    refused("no record with value 0", data=(x, torch.ones_like(a), y))
    refused("ridge = 0.01: objective perturbation spends", ridge=0.01)
    refused("ridge = -1", ridge=-1.0)


def test_an_epsilon_that_leaves_only_noise_is_refused_with_what_to_expect():
    x, a, y = records(40)
    refused(r"epsilon = 0.02.*accuracy of 0.5", budget=PrivacyBudget(0.02, 0.0), data=(x, a, y))
    learner = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(0.02, 0.0), ridge_bound=1e9)
    assert learner.fit(x, a, y).release().theta.norm() > 0


def test_weights_above_their_bound_are_refused():
    psi, ones = torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    for weights in (2 * ones, -ones):
        with pytest.raises(InputError, match="public bound"):
            WeightedERM(psi, ones, weights, HuberHinge(), 1.0, WeightBounds.per_record(1.0))
    for ridge in (0.0, math.inf, math.nan):
        with pytest.raises(InputError, match="ridge"):
            WeightedERM(psi, ones, ones, HuberHinge(), ridge, WeightBounds.per_record(1.0))


def test_empty_arm_in_the_weights_block_is_no_error():
    # the private propensity is a ridge fit: one arm alone in its block gives a number, and who was drawn stays hidden
    x, a, y = records(40)
    a[:] = 0
    a[0] = 1
    data = CausalData(x, a, y)
    weights = PrivateWeights(block_fraction=0.25)
    learner = TwoStageRule(DOMAIN, PrivacyBudget(20.0, 0.0), weights=weights).fit(data.x, data.a, data.y)
    assert torch.isfinite(learner.release().theta).all()


def test_settings_changed_after_the_fit_change_no_release():
    x, a, y = records()
    learner = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(4.0, 0.0)).fit(x, a, y)
    learner.set_params(outcome="shifted", loss="logistic", features=Fourier(pairs=4), propensity=0.2)
    rule = learner.release()
    assert (rule.privacy.public["outcome"], rule.privacy.public["loss"]) == ("private_residual", "huber_hinge")
    assert rule.privacy.public["propensity"] == 0.5
    assert rule.decide(x).shape == (1500,)
    assert learner.nonprivate_score(x).shape == (1500,)


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


@pytest.mark.parametrize("epsilon", [1e4, 1e8])
@pytest.mark.parametrize("own", [True, False])
def test_a_budget_without_end_has_a_ridge(own, epsilon):
    bounds = WeightBounds.per_record(1.0) if own else WeightBounds.with_indirect(1.0, 2.0)
    assert default_ridge(400, epsilon, bounds, 1.0) == pytest.approx(0.4)
    assert 0 < bounds.ridge_for(1.0, epsilon / 2) < 1e-3


class Outside(OutputRule):
    """A mechanism of a user's with one kind of noise."""

    way = "outside"
    kinds = ("gaussian",)


def test_a_new_mechanism_plans_releases_and_verifies(tmp_path, monkeypatch):
    monkeypatch.setitem(weighted_erm.RULE_MECHANISMS, Outside.way, Outside)
    settings = {"propensity": 0.5, "mechanism": "outside"}
    learner = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(8.0, 1e-5), **settings)
    known = OutcomeWeightedLearner(DOMAIN, PrivacyBudget(8.0, 1e-5), propensity=0.5, mechanism="output")
    assert learner.expected_noise(1500).value == known.set_params(perturbation="gaussian").expected_noise(1500).value
    assert learner.plan(1500).others["outside gaussian"] == learner.plan(1500).others["output gaussian"]
    release = learner.fit(*records()).release()
    assert (release.privacy.mechanism, release.privacy.level) == ("outside_gaussian", "conditional")
    assert verify_release(release.save(tmp_path / "release.safetensors"))
    with pytest.raises(InputError, match="delta = 0: perturbation = gaussian"):
        OutcomeWeightedLearner(DOMAIN, PrivacyBudget(8.0, 0.0), **settings).check(1500)
    monkeypatch.setattr(Outside, "kinds", ("laplace",))
    with pytest.raises(InputError, match="perturbation = laplace: "):
        learner.check(1500)
