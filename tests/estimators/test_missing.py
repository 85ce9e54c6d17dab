"""Releases of records with missing covariates: fits, queries, files and checks take them by the schema's rule."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.registered import AverageEffect, EffectRule, PolicySelector, RLearner, SubgroupEffects
from torchdpcate import PrivacyBudget
from torchdpcate.candidates.library import threshold_grid
from torchdpcate.data.schema import TableSchema
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

N = 3_000
FACTS = {
    "treatment": "a",
    "outcome": {"name": "y", "low": 0, "high": 12, "better": "higher"},
    "covariates": {
        "age": {"low": 10, "high": 90, "missing": "indicator"},
        "site": {"categories": ["n", "s", "w"], "missing": "indicator"},
    },
    "propensity": 0.5,
}
BUDGET = PrivacyBudget(5.0, 1e-5)
ASKED = pd.DataFrame({"age": [30.0, 50.0, 70.0, np.nan], "site": ["n", "s", None, "w"]})


def records(share: float, n: int = N) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A trial in which the age is missing of a share, and the effect grows with it: 1 + .03 (age - 50)."""
    draws = np.random.default_rng(0)
    age, a = draws.uniform(20, 80, n), draws.integers(0, 2, n)
    y = 5 + 0.05 * (age - 50) + a * (1 + 0.03 * (age - 50)) + draws.normal(0, 1, n)
    site = draws.choice(["n", "s", "w", None], n)
    frame = pd.DataFrame({"age": np.where(draws.random(n) < share, np.nan, age), "site": site})
    return frame, a, y.clip(0, 12)


def schema() -> TableSchema:
    return TableSchema.from_dict(FACTS)


def test_an_effect_takes_missing_values_in_records_and_queries(tmp_path: Path) -> None:
    release = RLearner(schema(), BUDGET).fit(*records(0.3)).release()
    effects = release.effect(ASKED)
    assert effects.shape == (4,)
    assert np.isfinite(effects).all()
    release.save(tmp_path / "r.safetensors")
    loaded = load_release(tmp_path / "r.safetensors")
    assert loaded.effect(ASKED).tolist() == effects.tolist()
    assert loaded.schema.to_dict()["covariates"]["age"]["missing"] == "indicator"
    assert verify_release(tmp_path / "r.safetensors")
    assert release.schema.encode(ASKED)[3, :2].tolist() == [50.0, 1.0]


@pytest.mark.slow
def test_the_effect_of_a_covariate_that_is_mostly_missing_is_found() -> None:
    """No product of a value with its own indicator: it would be a multiple of the value, and share its slope."""
    own = {"covariates": {"age": FACTS["covariates"]["age"]}}
    frame, a, y = records(0.6, 20_000)
    release = RLearner(TableSchema.from_dict(FACTS | own), BUDGET).fit(frame[["age"]], a, y).release()
    low, middle, high = release.effect(pd.DataFrame({"age": [30.0, 50.0, 70.0]}))
    assert (low, middle, high) == pytest.approx((0.4, 1.0, 1.6), abs=0.25)


def test_averages_subgroups_rules_and_selection_take_missing_values() -> None:
    table = records(0.3)
    average = AverageEffect(schema(), BUDGET).fit(*table).release()
    assert abs(average.average_effect - 1) < 0.5
    cells = SubgroupEffects(schema(), BUDGET, subgroups=[{"age": [50]}, {"site": True}]).fit(*table).release()
    sites = [f"site = {site}" for site in ("n", "s", "w", "missing")]
    assert cells.subgroups.labels == ["age < 50", "age >= 50", "age missing", *sites]
    rule = EffectRule(schema(), BUDGET).fit(*table).release()
    assert set(rule.decide(ASKED).tolist()) <= {0, 1}
    policies = threshold_grid(schema())
    assert {"age > 42", "age=missing > 0.5"} <= set(policies.names)
    chosen = PolicySelector(schema(), BUDGET, policies=policies).fit(*table).release()
    assert len(chosen.decide(ASKED)) == 4


@pytest.mark.parametrize("known", [True, False])
def test_the_statement_says_what_is_assumed(known: bool) -> None:
    """A trial assumes nothing of missing covariates; where the propensity is estimated, the release says what."""
    facts = {key: fact for key, fact in FACTS.items() if key != "propensity" or known}
    average = AverageEffect(TableSchema.from_dict(facts), BUDGET).fit(*records(0.3)).release()
    stated = average.privacy.public["missing_values"]
    assert stated.startswith("of age, site: a missing covariate is a value of its own")
    assert ("nothing is assumed" in stated) is known
    assert ("what a missing covariate would be" in average.line_assumptions) is not known
