"""The study of lines: laws whose true effects are theirs, rows of a release, and what is worked out of them."""

import numpy as np
import pandas as pd
import pytest

from experiments.one_fit import survival
from experiments.one_fit.laws import LAWS
from experiments.one_fit.study import domain_of, non_private, rows_of, summary
from tests.composition.test_censoring import kaplan_meier

MANY = 200_000


@pytest.mark.parametrize("law", ["trial", "trial, costs", "trial, days", "trial, deaths", "trial, three arms"])
def test_the_true_average_of_a_trial_is_what_its_arms_differ_by(law: str) -> None:
    draw = LAWS[law](np.random.default_rng(5), MANY)
    for arm, truth in enumerate(np.atleast_1d(draw.effect.mean(0)), start=1):
        treated, controls = (draw.y[draw.a == value] for value in (arm, 0))
        error = np.sqrt(treated.var() / len(treated) + controls.var() / len(controls))
        assert abs(treated.mean() - controls.mean() - truth) < 5 * error


@pytest.mark.parametrize("law", LAWS)
def test_draws_are_within_their_public_bounds(law: str) -> None:
    draw = LAWS[law](np.random.default_rng(1), 500)
    domain = domain_of(draw).domain
    assert (draw.x >= domain.covariate_low.numpy()).all()
    assert (draw.x <= domain.covariate_high.numpy()).all()
    assert (draw.y >= draw.bounds[0]).all()
    assert (draw.y <= draw.bounds[1]).all()
    assert draw.propensity.min() >= draw.overlap - 1e-12
    assert set(draw.a) <= set(range(draw.arms))


@pytest.mark.studies
def test_a_row_a_line_with_its_truth_and_width() -> None:
    rows = pd.DataFrame(rows_of("linear", 1_000, 4_000, 8.0, ("groups", "ATT", "slope", "rule")))
    assert {"average", "ATT", "slope", "rule over none", "rule over all"} <= set(rows["line"])
    assert rows[["estimate", "low", "high", "truth"]].notna().all().all()
    average = rows[rows["line"] == "average"].iloc[0]
    assert abs(average["estimate"] - average["np"]) < 6 * (average["high"] - average["low"])
    found = summary(rows)
    assert found.loc[("average", "linear"), "runs"] == 1
    of_arms = pd.DataFrame(rows_of("three arms", 1_000, 4_000, 8.0, ("groups",)))
    assert list(of_arms["line"]) == ["arm 1", "arm 2"]
    assert (abs(of_arms["estimate"] - of_arms["np"]) < 6 * (of_arms["high"] - of_arms["low"])).all()
    assert found.loc[("average", "linear"), "width"] > 0.5


@pytest.mark.parametrize("law", ["linear", "three arms"])
def test_the_estimate_without_privacy_is_aipw(law: str) -> None:
    draw = LAWS[law](np.random.default_rng(3), 20_000)
    for arm, truth in enumerate(np.atleast_1d(draw.effect.mean(0)), start=1):
        estimate, error = non_private(draw, arm)
        assert abs(estimate - truth) < 5 * error


@pytest.mark.parametrize("law", survival.LAWS)
def test_without_privacy_averages_by_a_horizon_are_those_of_the_law(law: str) -> None:
    kind, cohort = survival.LAWS[law]
    draw = survival.drawn(np.random.default_rng(3), 40_000, kind, cohort)
    estimate, error = survival.non_private(draw, kind)
    assert abs(estimate - draw.effect.mean()) < 5 * error


def test_the_share_that_has_not_ended_is_kaplan_meier_s() -> None:
    random = np.random.default_rng(4)
    time, ended = random.exponential(size=300), random.uniform(size=300) < 0.4
    at, exact = kaplan_meier(time, ended.astype(float))
    places = np.searchsorted(at, time, side="left")  # before each time
    found = survival.uncensored(time, ended, np.ones(300, dtype=bool))
    assert found == pytest.approx(np.concatenate([[1.0], exact])[places])


@pytest.mark.studies
def test_a_row_of_a_law_by_a_horizon() -> None:
    rows = pd.DataFrame([survival.row_of("cohort, deaths", 1_000, 5_000, 2.0)])
    assert rows[["estimate", "low", "high", "truth"]].notna().all().all()
    assert survival.summary(rows)["width"].between(0.8, 5).all()
