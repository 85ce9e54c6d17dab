"""What an attack could show at most where the conditions of theorem 1 hold, for one answer."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from torchdpcate.audit.attack import Rates, pure_bound

DELTA = 1e-5
KAPPA, XI = 5 * math.sqrt(2 * math.log(2 / DELTA)), 1 / (4 * (1 + 2 * math.log(2 / DELTA)))


def rates(ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positive rates of the likelihood ratio of N(0, 1) and N(1 / kappa, ratio^2)."""
    x = np.linspace(-12, 12, 40_001)
    before, after = norm.pdf(x), norm.pdf(x, 1 / KAPPA, ratio)
    order = np.argsort(-after / before)
    return tuple(np.minimum(np.cumsum(law[order]) * (x[1] - x[0]), 1.0) for law in (before, after))


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "limit"), [(math.exp(XI), 0.0627), (math.exp(-XI), 0.0635)])
def test_no_attack_on_theorem_1_shows_more_at_that_number_of_runs(ratio, limit):
    false, true = rates(ratio)
    found = pure_bound(Rates.of(1e5 * false, 1e5 * true, 100_000, 0.95), DELTA)
    assert np.nanmax(found) == pytest.approx(limit, abs=5e-4)


def test_the_noise_of_theorem_1_is_generous_where_its_conditions_hold():
    false, true = rates(math.exp(XI))
    assert np.log(np.maximum(true - DELTA, 1e-300) / false)[10:].max() == pytest.approx(0.243, abs=2e-3)
