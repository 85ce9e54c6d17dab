"""Intervals of the default average where clips hide the tail of one arm, and where no overlap is."""

import numpy as np
import pandas as pd
import pytest

from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.privacy.budget import PrivacyBudget


def days(random):
    """Days in hospital of a cohort of 3,600: skewed, with mean and spread by arm and covariates; the effect is 6.81."""
    x = random.random((3_600, 3)) < [0.66, 0.48, 0.64]
    a = random.random(3_600) < 0.62 + x @ [0.12, -0.05, -0.35]
    middle = np.where(a, 8 + x @ [-0.5, 1.5, 3.2], 2.2 + x @ [-0.3, 0.6, 2])
    return x, a, (middle * np.exp(np.where(a, 0.45, 0.75) * random.normal(size=3_600))).round().clip(1, 90)


def by_age(random):
    """Of 1,500 everybody of 60 and older is treated, and nobody else; the effect is 4."""
    x = random.integers([20, 0, 0], [90, 2, 2], (1_500, 3))
    a = x[:, 0] >= 60
    return x, a, (20 + 4 * a + 0.3 * (x[:, 0] - 50) + random.normal(0, 5, 1_500)).clip(0, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "truth", "epsilon", "draws"), [(days, 6.81, 1, 100), (by_age, 4, 4, 30), (by_age, 4, 1000, 30)]
)
def test_intervals_hold_where_clips_hide_a_tail_and_where_no_overlap_is(law, truth, epsilon, draws):
    """Of 100 draws fewer than 78, and of 30 fewer than 19, come once in two million if .93 hold; .7 did, and .1."""
    count = law is days
    outcome = {"name": "y", "low": 0, "high": 90 if count else 60, "kind": "count" if count else "continuous"}
    x = {"x0": {"low": 0, "high": 1 if count else 90}, "x1": {"categories": [0, 1]}, "x2": {"categories": [0, 1]}}
    schema = TableSchema.from_dict(
        {"treatment": "a", "outcome": outcome, "covariates": x, "overlap": 0.1 if count else 0.05}
    )
    held = 0
    for seed in range(draws):
        x, a, y = law(np.random.default_rng(seed))
        frame = pd.DataFrame(x.astype(int), columns=["x0", "x1", "x2"])
        low, high = (
            AverageEffect(schema, PrivacyBudget(epsilon, 1e-5))
            .fit(frame, a.astype(int), y)
            .release()
            .averages.interval()
        )
        held += low <= truth <= high
    assert held >= {100: 78, 30: 19}[draws]
