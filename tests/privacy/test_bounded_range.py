import math

import numpy as np
import pytest
from scipy.stats import norm

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose, logistic_curve, privacy_curve, range_beside
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon
from torchdpcate.privacy.events import BoundedRangeEvent, GaussianEvent, PureEvent

DELTA, GAUSSIAN = 1e-5, 0.3


def mu_of(epsilon: float, share: float = GAUSSIAN) -> float:
    return math.sqrt(share) / analytic_gaussian_sigma(epsilon, DELTA)


def supremum(eta: float, x: np.ndarray) -> np.ndarray:
    """The supremum over two-point laws, as the theory note has it."""
    t = np.linspace(0.0, eta, 4_001)[:, None]
    q = (math.exp(eta) - np.exp(t)) / (math.exp(eta) - 1)
    return np.asarray((q * np.maximum(1 - np.exp(x - t), 0) + (1 - q) * np.maximum(1 - np.exp(x - t + eta), 0)).max(0))


@pytest.mark.parametrize(("epsilon", "eta"), [(0.5, 0.31), (1.0, 0.61), (4.0, 2.33)])
def test_the_range_is_that_of_the_theory(epsilon, eta):
    assert round(range_beside(mu_of(epsilon), PrivacyBudget(epsilon, DELTA)), 2) == eta


@pytest.mark.parametrize(("epsilon", "pure"), [(0.5, 0.25), (1.0, 0.50), (4.0, 1.99)])
def test_a_pure_choice_has_the_theory_s_epsilon(epsilon, pure):
    assert round(range_beside(mu_of(epsilon), PrivacyBudget(epsilon, DELTA), PureEvent), 2) == pure


@pytest.mark.first(4)
@pytest.mark.parametrize("event", [BoundedRangeEvent, PureEvent])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
def test_at_the_least_delta_it_keeps_the_budget_and_no_less_than_basic_composition_gives(epsilon, event):
    delta = 1e-30
    mu = math.sqrt(GAUSSIAN) / analytic_gaussian_sigma(epsilon, delta)
    eta = range_beside(mu, PrivacyBudget(epsilon, delta), event)
    assert compose([(GaussianEvent(1 / mu), 1), (event(eta), 1)], delta) <= epsilon
    assert eta >= (epsilon - gaussian_epsilon(1 / mu, delta)) * (1 - 1e-8)


@pytest.mark.parametrize("eta", [0.05, 0.61, 3.0])
def test_the_closed_form_is_the_supremum_over_two_point_laws(eta):
    x = np.linspace(-1.5 * eta, 1.5 * eta, 101)
    np.testing.assert_allclose(logistic_curve(eta, x), supremum(eta, x), atol=3e-7)
    np.testing.assert_array_equal(privacy_curve([(BoundedRangeEvent(eta), 1)], x), logistic_curve(eta, x))


@pytest.mark.first(1)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_accountant_composes_it_as_the_theory_s_average_does(epsilon):
    mu, z = mu_of(epsilon), np.linspace(-10, 10, 2_001)
    eta = range_beside(mu, PrivacyBudget(epsilon, DELTA))
    dense = float(norm.pdf(z) @ supremum(eta, epsilon - mu * mu / 2 - mu * z) * (z[1] - z[0]))
    charges = [(GaussianEvent(1 / mu), 1), (BoundedRangeEvent(eta), 1)]
    assert dense <= DELTA * (1 + 1e-6)
    assert dense == pytest.approx(DELTA, rel=1e-2)
    assert compose(charges, DELTA) <= epsilon
    assert privacy_curve(charges, [epsilon])[0] == pytest.approx(dense, rel=1e-2)


def test_several_choices_cost_less_than_pure_ones_and_no_less_than_a_real_one():
    # the exponential mechanism on two equal candidates, one of which falls by the range: a law of its own
    eta, count, x = 0.4, 5, np.linspace(0.0, 1.5, 31)
    several = privacy_curve([(BoundedRangeEvent(eta), count)], x)
    assert (several <= privacy_curve([(PureEvent(eta), count)], x) + 1e-12).all()
    p, p2 = 0.5, 1 / (1 + math.exp(eta))
    losses = np.log([p / p2, (1 - p) / (1 - p2)])
    delta = np.zeros_like(x)
    for k in range(count + 1):
        loss = k * losses[0] + (count - k) * losses[1]
        delta += math.comb(count, k) * p**k * (1 - p) ** (count - k) * np.maximum(1 - np.exp(x - loss), 0)
    assert (several >= delta - 1e-12).all()


def test_it_stays_pure_where_nothing_else_is_charged():
    assert compose([(BoundedRangeEvent(0.5), 2)], 0.0) == 1.0


def test_nothing_left_is_one_line():
    with pytest.raises(InputError, match="nothing is left"):
        range_beside(1.0, PrivacyBudget(1.0, DELTA))
    with pytest.raises(InputError, match="nothing is left"):
        range_beside(0.1, PrivacyBudget(1.0, 0.0))
