"""The choice of the estimator of least planned error: what is valid, what is chosen, and that no record decides it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from tests.estimators.average.confounded import arrays
from torchdpcate import AverageEffect, Domain, NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import Identity, Products
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

LALONDE = Path(__file__).parents[3].parent / "shared" / "data" / "lalonde" / "nsw_dw.csv"
PURE, SOME = PrivacyBudget(0.5, 0.0), PrivacyBudget(0.5, 1e-5)


def domain(q: int = 4, **facts) -> Domain:
    return Domain([-1.0] * q, [1.0] * q, 0.0, 1.0, **facts)


def stratified() -> Domain:
    return Domain(
        [0.0, -1.0], [1.0, 1.0], 0, 1, 0.1, ["s", "x"], two_levels=[True, False], propensity={"s": {0: 0.3, 1: 0.6}}
    )


CHOICES = {
    "a trial": (domain(propensity=0.5), PURE, "ATE", 5000, ["known_propensity"]),
    "a small trial": (domain(propensity=0.4), PURE, "ATT", 445, ["known_propensity"]),
    "a large uneven trial": (
        domain(propensity=0.2), PrivacyBudget(4.0, 0.0), "ATE", 50_000, ["known_propensity"],
    ),
    "a stratified trial": (stratified(), PURE, "ATE", 5000, ["known_propensity"]),
    "no delta": (domain(overlap=0.1), PURE, "ATE", 5000, ["covariate_balancing"]),
    "few covariates": (domain(overlap=0.1), SOME, "ATE", 5000, ["composed", "covariate_balancing"]),
    "of the treated": (domain(overlap=0.1), SOME, "ATT", 5000, ["covariate_balancing"]),
    "an overlap beyond what models reach": (
        domain(overlap=0.01), SOME, "ATE", 5000, ["composed", "covariate_balancing"],
    ),
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


def test_settings_that_no_estimator_takes_are_refused():
    with pytest.raises(InputError, match="estimand = 'LATE'"):
        AverageEffect(domain(), PURE, estimand="LATE").choose(100)


def nsw() -> tuple[TableSchema, pd.DataFrame]:
    """The trial's 445 records; 185 were treated, and the site's coin is taken for its probability."""
    frame = pd.read_csv(LALONDE)
    facts = TableSchema.from_yaml("lalonde").to_dict() | {"propensity": 185 / 445, "out_of_bounds": "clip"}
    return TableSchema.from_dict(facts), frame


@pytest.mark.skipif(not LALONDE.is_file(), reason=f"{LALONDE} is not there")
def test_job_training_is_planned_as_a_trial():
    """What estimates the propensity is off by thousands of dollars at epsilon = 1."""
    schema, frame = nsw()
    learner = AverageEffect(schema, PrivacyBudget(1.0, 0.0))
    choice = learner.choose(len(frame))
    assert choice.effect == "known_propensity"
    assert choice.error.noise < 1000
    without = TableSchema.from_dict({name: value for name, value in schema.to_dict().items() if name != "propensity"})
    assert AverageEffect(without, PrivacyBudget(1.0, 0.0)).choose(445).error.noise > 5 * choice.error.noise


@pytest.mark.slow
def test_job_training_is_estimated_with_the_noise_that_was_planned():
    """1,794 dollars in the trial, 670 of sampling."""
    schema, frame = nsw()
    learner, runs = AverageEffect(schema, PrivacyBudget(1.0, 0.0)), []
    choice = learner.choose(len(frame))
    for _ in range(60):
        fitted = clone(learner).fit(frame, frame["treat"], frame["re78"])
        runs.append(fitted.release().estimate)
    exact = fitted.nonprivate_estimate().value
    assert exact == pytest.approx(1794, abs=60)
    noise = float(np.std(np.array(runs) - exact))
    # outcomes are about a tenth of their range, where the contrast has 1.6 times the noise that a centre of 1/2 has;
    # the deviation of 60 draws of Laplace noise is off by 15 %
    assert choice.error.noise * 0.8 < noise < choice.error.noise * 3


@pytest.mark.slow
@pytest.mark.parametrize(("known", "epsilon"), [(None, 4.0), (0.5, 0.5)])
def test_intervals_of_the_choice_hold_the_effect(known, epsilon):
    """300 data sets. A coverage of .95 gives 264 or fewer of 300 less often than once in 10^6 runs."""
    inside = 0
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        x = 2 * torch.rand(2000, 2, generator=generator, dtype=torch.float64) - 1
        e = torch.full((2000,), 0.5) if known else torch.sigmoid(0.8 * x[:, 0])
        a = (torch.rand(2000, generator=generator) < e).double()
        y = (0.5 + 0.15 * x[:, 0] + 0.1 * (a - 0.5) + 0.1 * torch.randn(2000, generator=generator)).clamp(0, 1)
        facts, noise = domain(2, overlap=0.2, propensity=known), NoiseSource.system()
        learner = AverageEffect(facts, PrivacyBudget(epsilon, 0.0), noise=noise)
        low, high = learner.fit(x, a, y).release().interval(0.95)
        inside += low <= 0.1 <= high
    assert inside > 264
