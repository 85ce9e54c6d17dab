"""Influence against truth: closed forms, a counterexample to either condition, and finite differences."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from experiments.audit.influence_truth import crowd_held_back
from experiments.audit.measure import measure, scale_delta

pytestmark = pytest.mark.studies


def test_theorem_1_fails_outright_where_one_record_holds_back_a_crowd():
    """Replacing the treated record by one more control frees the crowd: a closed form in one dimension."""
    n, crowd, c = 400, 20, 0.1
    found = measure(crowd_held_back(n, crowd, 0), starts=64)
    ridge = c / n
    before = (crowd * 0.05 - 0.95) / n / (ridge + (crowd * 0.05**2 + 0.95**2) / n)
    after = (crowd + 1) * 0.05 / n / (ridge + (crowd + 1) * 0.05**2 / n)
    assert found["change"] >= (after - before) * (1 - 1e-9)
    assert found["ratio"] > 2
    assert found["smooth_ratio"] > 10
    assert found["leak"] > 100


def test_the_scales_delta_is_that_of_the_note_and_of_a_simulation():
    assert scale_delta(1 + 0.25 / (1350 * 0.01), 300, 1.0) == pytest.approx(4.9e-3, abs=5e-5)
    assert scale_delta(1 + 1.0, 30, 1.0) == pytest.approx(0.988, abs=5e-4)
    assert scale_delta(1.0, 10, 1.0) == 0.0
    draws = 1.3 * np.random.default_rng(0).standard_normal((400_000, 3))
    wide, narrow = (multivariate_normal(np.zeros(3), r**2 * np.eye(3)).logpdf(draws) for r in (1.3, 1.0))
    simulated = np.clip(1 - np.exp(0.2 + narrow - wide), 0, None).mean()
    # at most one in standard deviation 0.5 / sqrt(400,000): five of them
    assert scale_delta(1.3, 3, 0.2) == pytest.approx(simulated, abs=4e-3)
