"""The rule by a composed effect: what it releases, what it costs, and what it refuses before anything is spent."""

import math

import numpy as np
import pytest
import torch

from torchdpcate import load_release
from torchdpcate.cli.plan import planned_targets
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.composed import ComposedRule
from torchdpcate.verify.file import verify_release

BUDGET = PrivacyBudget(4.0, 1e-5)
OBSERVED = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, better="higher")
TRIAL = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, propensity=0.5, better="higher")


def records(n: int = 1_500) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = (2 * a - 1) * (x[:, 0] - 0.5) + 0.2 * (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5)
    return x, a, y.clamp(-1, 1)


@pytest.fixture(scope="module")
def fitted() -> EffectRule:
    return EffectRule(TRIAL, BUDGET, noise=NoiseSource.fixed(1)).fit(*records())


def test_it_learns_whom_to_treat_and_verifies(tmp_path):
    rule = EffectRule(OBSERVED, BUDGET).fit(*records()).release()
    x = records()[0]
    assert isinstance(rule, ComposedRule)
    # the effect is 2 x0 - 1 at noise of about a tenth: fewer than four fifths agreeing has a chance below 1e-6
    assert (rule.decide(x) == (x[:, 0] > 0.5).numpy()).mean() > 0.8
    assert rule.privacy.level == "certified"
    assert (rule.privacy.public["learner"], rule.privacy.public["target"]) == ("EffectRule", "rule")
    path = rule.save(tmp_path / "rule.safetensors")
    verify_release(path)
    assert np.array_equal(load_release(path).decide(x), rule.decide(x))
    effect = rule.effect.save(tmp_path / "effect.safetensors")
    verify_release(effect)


@pytest.mark.parametrize("domain", [OBSERVED, TRIAL])
def test_a_lean_rule_verifies_and_costs_all_of_the_budget(domain, tmp_path):
    learner = EffectRule(domain, PrivacyBudget(1.0, 1e-5), noise=NoiseSource.fixed(4)).fit(*records(150))
    assert learner.plan_.reduced
    squared = math.fsum(entry.count / entry.event.noise_multiplier**2 for entry in learner.ledger_.entries)
    assert squared == pytest.approx(learner.plan_.shares.total**2, rel=1e-6)
    rule = learner.release()
    effect = rule.effect
    assert torch.equal(effect.curvatures, (learner.plan_.effect_curvature * effect.basis.feature_weights).diag())
    verify_release(rule.save(tmp_path / "rule.safetensors"))


@pytest.mark.parametrize("domain", [OBSERVED, TRIAL])
def test_by_pure_events_it_learns_whom_to_treat_too(domain):
    budget = PrivacyBudget(8.0, 0.0)
    learner = EffectRule(domain, budget).fit(*records())
    rule, x = learner.release(), records()[0]
    # the effect is 2 x0 - 1 at noise of about a tenth: fewer than four fifths agreeing has a chance below 1e-6
    assert (rule.decide(x) == (x[:, 0] > 0.5).numpy()).mean() > 0.8
    assert (rule.privacy.level, rule.privacy.epsilon, rule.privacy.delta) == ("certified", pytest.approx(8.0), 0.0)
    assert rule.privacy.public["target"] == "rule"
    spent = [entry.event.epsilon * entry.count for entry in learner.ledger_.entries]
    assert math.fsum(spent) == pytest.approx(8.0, rel=1e-8)


def test_one_fit_pays_for_rules_effect_and_average(fitted):
    spent = len(fitted.ledger_.entries)
    rule, effect = fitted.release(), fitted.release_function()
    x = records()[0].numpy()
    np.testing.assert_array_equal(rule.decide(x), effect.effect(x) > 0)
    np.testing.assert_array_equal(effect.rule(cost=0.2).decide(x), effect.effect(x) > 0.2)
    assert effect.rule(budget=0.1, population=x).decide(x).mean() <= 0.1
    assert abs(effect.average_effect) <= 2.0
    assert len(fitted.ledger_.entries) == spent


def test_a_known_propensity_costs_nothing(fitted):
    parts = {entry.charge.part for entry in fitted.ledger_.entries}
    assert "propensity" not in parts
    assert not any(part.startswith("interval") for part in parts)
    squared = math.fsum(entry.count / entry.event.noise_multiplier**2 for entry in fitted.ledger_.entries)
    assert squared == pytest.approx(fitted.plan_.shares.total**2, rel=1e-6)


def test_small_rules_are_the_estimates_and_constant_ones_say_so():
    x, a, y = records(400)
    linear = EffectRule(TRIAL, PrivacyBudget(1.0, 1e-5), noise=NoiseSource.fixed(2)).fit(x, a, y).release_function()
    assert linear.form == "linear"
    assert torch.equal(linear.theta, linear.estimates)
    constant = EffectRule(TRIAL, PrivacyBudget(0.05, 1e-5), noise=NoiseSource.fixed(3)).fit(x, a, y).release()
    assert constant.constant in (0, 1)
    assert len(set(constant.decide(x).tolist())) == 1
    remarks = EffectRule(TRIAL, PrivacyBudget(0.05, 1e-5)).expected_noise(400).remarks
    assert "a constant rule: nothing about covariates can be learnt" in remarks[0]


def test_the_plan_is_in_outcome_units_and_names_the_least_n():
    narrow = EffectRule(TRIAL, BUDGET).expected_noise(1_000)
    wide = Domain([0.0, 0.0], [1.0, 1.0], -10.0, 10.0, overlap=0.25, propensity=0.5, better="higher")
    assert EffectRule(wide, BUDGET).expected_noise(1_000).value == pytest.approx(10 * narrow.value)
    assert narrow.value < EffectRule(TRIAL, BUDGET).expected_noise(500).value
    assert "records are enough to lose less" in narrow.remarks[1]
    assert narrow.feasible


CHOICES = {
    "cost": ({"cost": math.inf}, "cost = inf"),
    "share": ({"share": 1.5, "population": [[0.1, 0.1]]}, "budget = 1.5"),
    "no population": ({"share": 0.5}, "give population="),
    "outside": ({"share": 0.5, "population": [[0.1, 7.0]]}, "population: query 'x1'"),
    "second stage": ({"second_stage": LinearSecondStage()}, "one composition; give an AdaptiveSecondStage"),
    "intervals": ({"domain": OBSERVED, "second_stage": AdaptiveSecondStage(intervals=True)}, "intervals = true"),
    "pure intervals": (
        {"budget": PrivacyBudget(1.0, 0.0), "second_stage": AdaptiveSecondStage(intervals=True)},
        "intervals = true",
    ),
}


@pytest.mark.parametrize("mistake", CHOICES)
def test_mistakes_are_refused_before_anything_is_spent(mistake, tmp_path):
    settings, words = CHOICES[mistake]
    ledger = tmp_path / "ledger.sqlite"
    learner = EffectRule(**{"domain": TRIAL, "budget": BUDGET, "ledger_path": ledger, **settings})
    with pytest.raises(InputError, match=words):
        learner.fit(*records(200))
    assert not ledger.exists()
    with pytest.raises(InputError, match=words):
        learner.check(200)


@pytest.mark.slow
def test_a_rule_is_worth_asking_where_it_loses_less_than_treating_all_alike():
    domain = Domain([0.0] * 8, [1.0] * 8, 0.0, 60_000.0, better="higher")
    schema = TableSchema.from_domain(domain)
    found = {n: planned_targets(schema, n, PrivacyBudget(1.0, 1e-5))[2] for n in (200, 700, 40_000)}
    pure = planned_targets(schema, 40_000, PrivacyBudget(1.0, 0.0))[2]
    assert (pure.task, pure.verdict) == ("rule", "yes")
    assert [target.task for target in found.values()] == ["rule"] * 3
    assert [target.verdict for target in found.values()] == ["no", "for large effects", "yes"]
    for n, target in found.items():
        noise = EffectRule(domain, PrivacyBudget(1.0, 1e-5)).expected_noise(n)
        assert target.noise is not None
        assert target.noise.value == noise.value
