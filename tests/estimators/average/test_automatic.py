"""The choice of the estimator of least planned error: what is valid, what is chosen, and that no record decides it."""

import pytest
from sklearn.base import clone

from tests.estimators.average.confounded import arrays
from torchdpcate import AverageEffect, Domain, PrivacyBudget
from torchdpcate.fit.feature_maps import Identity, Products
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

PURE, SOME = PrivacyBudget(0.5, 0.0), PrivacyBudget(0.5, 1e-5)


def domain(q: int = 4, **facts) -> Domain:
    return Domain([-1.0] * q, [1.0] * q, 0.0, 1.0, **facts)


CHOICES = {
    "a trial": (domain(propensity=0.5), PURE, "ATE", 5000, ["known_propensity"]),
    "a small trial": (domain(propensity=0.4), PURE, "ATT", 445, ["known_propensity"]),
    "no delta": (domain(overlap=0.1), PURE, "ATE", 5000, ["covariate_balancing"]),
    "few covariates": (domain(overlap=0.1), SOME, "ATE", 5000, ["composed", "covariate_balancing"]),
    "of the treated": (domain(overlap=0.1), SOME, "ATT", 5000, ["covariate_balancing"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_valid_and_what_is_chosen(name):
    facts, budget, estimand, n, expected = CHOICES[name]
    choice = AverageEffect(facts, budget, estimand=estimand).choose(n)
    assert [planned.effect for planned in choice.planned] == expected
    assert choice.effect == expected[0]
    totals = [planned.total for planned in choice.planned]
    assert totals == sorted(totals)
    assert all(planned.effect in choice.reason for planned in choice.planned)


@pytest.mark.parametrize(
    ("settings", "why"), [({"estimand": "ATC"}, "estimand = 'ATC'"), ({"basis": Products()}, "basis = ")]
)
def test_what_needs_balancing_weights_leaves_the_composition_out(settings, why):
    choice = AverageEffect(domain(overlap=0.1), SOME, **settings).choose(5000)
    assert choice.effect == "covariate_balancing"
    assert why in choice.refused["composed"]
    assert AverageEffect(domain(overlap=0.1), SOME, basis=Identity()).choose(5000).effect == "composed"
    assert AverageEffect(domain(overlap=0.1), None).choose(5000).effect == "covariate_balancing"


def test_a_choice_is_by_public_facts_alone():
    x, a, y = arrays(500, 1)
    learner = AverageEffect(domain(propensity=0.5), PrivacyBudget(1.0, 0.0))
    other = clone(learner).fit(x, 1 - a, 1 - y)
    assert learner.fit(x, a, y).choice_.reason == other.choice_.reason == learner.choose(500).reason


@pytest.mark.parametrize("known", [None, 0.5])
def test_a_release_says_what_was_chosen_and_verifies(known, tmp_path):
    learner = AverageEffect(domain(overlap=0.1, propensity=known), PrivacyBudget(4.0, 0.0)).fit(*arrays(2000, 1))
    release = learner.release()
    public = release.privacy.public
    assert public["chosen_by"] == "auto"
    assert public["planned_error"] == learner.choice_.error.total == learner.planned_error(2000).total
    assert public["learner"] == type(learner.chosen_).__name__
    assert release.summary()["planned_error"] == public["planned_error"]
    assert release.privacy.level == "certified"
    path = release.save(tmp_path / "r.safetensors")
    assert verify_release(path)
    assert load_release(path).assumptions == release.assumptions
    assert learner.sizes_ == {"records": 2000}
    assert learner.nonprivate_estimate().value == pytest.approx(release.estimate, abs=0.2)
    assert learner.release() is release
