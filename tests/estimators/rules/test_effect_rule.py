"""The rule by a composed effect: what it releases, what it costs, and what it refuses before anything is spent."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.verify.words import check_words
from torchdpcate import load_release
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, MissingError
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.pages.reader import reader_page
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


CHOICES = {
    "cost": ({"cost": math.inf}, "cost = inf"),
    "share": ({"share": 1.5, "population": [[0.1, 0.1]]}, "budget = 1.5"),
    "no population": ({"share": 0.5}, "give population="),
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


@pytest.mark.parametrize("cost", [0.0, 0.2])
@pytest.mark.parametrize("domain", [OBSERVED, TRIAL])
def test_a_rule_comes_with_its_values_over_treating_none_and_all(domain, cost, tmp_path):
    learner = EffectRule(domain, BUDGET, cost=cost, noise=NoiseSource.fixed(2)).fit(*records(4_000))
    rule, x = learner.release(), records(4_000)[0]
    treated, gains = torch.as_tensor(rule.decide(x)) > 0, 2 * x[:, 0] - 1 - cost  # by the law of ``records``
    table = rule.lines(0.999)
    assert list(table["line"]) == ["the rule over treating nobody", "the rule over treating everybody"]
    for (_, row), truth in zip(table.iterrows(), ((treated * gains).mean(), -(~treated * gains).mean()), strict=True):
        assert row["low"] <= float(truth) <= row["high"]
        assert row["high"] - row["low"] < 0.3
    said = check_words(rule)
    assert all("treating nobody" in words or "treating everybody" in words for words in said.head[1:])
    assert ("Gains count a cost of 0.20 a treatment." in said.groups) is (cost > 0)
    assert [row["line"] for row in rule.summary()["values"]] == list(table["line"])
    path = rule.save(tmp_path / "rule.safetensors")
    page = reader_page(rule)
    assert "What the rule gains" in page
    assert all(cell in page for cell in table["line"])
    again = load_release(path)
    assert again.lines().equals(rule.lines())


def test_public_policies_have_the_costs_of_the_rule_and_stand_beside_its_values():
    stage = AdaptiveSecondStage(
        constants=RuleConstants(), intervals=False, lines=["rule", "policies"], cells=[{"x0": [0.5]}]
    )
    learner = EffectRule(TRIAL, BUDGET, cost=0.2, second_stage=stage, noise=NoiseSource.fixed(2)).fit(*records(4_000))
    rule, x = learner.release(), records(4_000)[0]
    table, gains = rule.lines(0.999), 2 * x[:, 0] - 1 - 0.2  # by the law of ``records``
    assert list(table["group"].unique()) == ["value of a policy", "value of the rule"]
    row = table[table["line"] == "treating x0 >= 0.5 over treating nobody"].iloc[0]
    assert row["low"] <= float(((x[:, 0] >= 0.5) * gains).mean()) <= row["high"]
    alone = EffectRule(TRIAL, BUDGET, cost=0.2, second_stage=replace(stage, lines=["policies"]))
    found = alone.fit(*records()).release().effect
    assert found.privacy.public["cost"] == 0.2
    assert "Gains count a cost of 0.20 a treatment." in check_words(found).groups


def test_a_rule_of_a_share_has_values_too_and_another_rule_by_its_effect_has_none():
    people = records(500)[0]
    learner = EffectRule(TRIAL, BUDGET, share=0.25, population=people, noise=NoiseSource.fixed(3)).fit(*records())
    rule = learner.release()
    assert rule.decide(people).mean() == 0.25
    assert rule.averages is not None
    assert rule.averages.records[rule.averages.place("rule over none")] == pytest.approx(0.25, abs=0.1)
    for other in (rule.effect.rule(cost=0.1), rule.effect.rule(threshold=0.1), rule.effect.rule()):
        assert other.averages is None
        with pytest.raises(MissingError, match="about another rule"):
            other.lines()
    assert len(check_words(rule.effect.rule()).head) == 1


def test_without_delta_a_rule_has_no_values_and_says_why():
    rule = EffectRule(TRIAL, PrivacyBudget(4.0, 0.0), noise=NoiseSource.fixed(4)).fit(*records()).release()
    assert rule.averages is None
    with pytest.raises(MissingError, match="delta = 0"):
        rule.lines()
