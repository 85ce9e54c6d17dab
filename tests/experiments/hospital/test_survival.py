"""Averages of outcomes by a horizon: without privacy they are those of the law, and a row has its figures."""

import numpy as np
import pandas as pd
import pytest

from experiments.hospital import survival
from tests.composition.test_censoring import kaplan_meier


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
