import itertools
import math

import numpy as np
import pytest
import scipy.special
from scipy.special import expit
from scipy.stats import norm

from torchdpcate.privacy import accounting
from torchdpcate.privacy.accounting import compose, dp_sgd_epsilon, dp_sgd_noise_multiplier, naive_sum, privacy_curve
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent

DELTA = 1e-5
RATE = 128 / 1350


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "epsilon"),
    [
        (1, 0.1, 1, 1.789155),
        (2, 0.1, 200, 6.536209),
        (1, 128 / 13000, 2032, 4.156775),
        (8, RATE, 422, 1.933788),
    ],
)
def test_dp_sgd_matches_the_theory(sigma, rate, steps, epsilon):
    assert dp_sgd_epsilon(sigma, DELTA, rate, steps) == pytest.approx(epsilon, abs=6e-7)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("steps", "epsilon", "delta"),
    [(1, 0.2, 1.761373e-2), (1, 1.0, 3.272844e-4), (2, 0.2, 3.932183e-2), (2, 1.0, 1.006534e-3)],
)
def test_dp_sgd_deltas_match_the_theory(steps, epsilon, delta):
    assert dp_sgd_epsilon(1.0, delta, 0.1, steps) == pytest.approx(epsilon, abs=2e-6)


@pytest.mark.slow
def test_one_step_matches_quadrature_of_the_dominating_pair():
    sigma, rate, epsilon = 0.7, 0.3, 1.3
    z = np.linspace(-12, 12, 400_001)
    upper = (1 - rate) * norm.pdf(z, 0, sigma) + rate * norm.pdf(z, 1, sigma)
    lower = (1 - rate) * norm.pdf(z, 0, sigma) + rate * norm.pdf(z, -1, sigma)
    delta = np.trapezoid(np.maximum(upper - math.exp(epsilon) * lower, 0), z)
    assert dp_sgd_epsilon(sigma, delta, rate, 1) == pytest.approx(epsilon, abs=1e-6)


def test_composition_of_unlike_events_matches_the_theory():
    charges = [(DPSGDEvent(8.0, RATE), 422), (GaussianEvent(6.0), 1)]
    assert compose(charges[::-1], DELTA) == compose(charges, DELTA)
    assert compose(charges[1:], DELTA) == pytest.approx(0.594498, abs=5e-7)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "also"),
    [
        (1.0, 1e-5, RATE, 211, ()),
        (2.0, 1e-5, 128 / 13000, 2032, ()),
        (0.05, 1e-6, 0.01, 1000, ()),
        (3.0, 1e-5, 1.0, 10, ()),
        (1.0, 1e-5, RATE, 211, ((PureEvent(0.1), 1), (GaussianEvent(6.0), 1))),
        (1.0, 1e-5, RATE, 211, ((PureEvent(0.95), 1),)),
        (1.0, 1e-5, RATE, 50, ((ApproximateEvent(0.5, 5e-6), 1),)),
    ],
)
def test_noise_multiplier_is_safe_and_tight(epsilon, delta, rate, steps, also):
    sigma = dp_sgd_noise_multiplier(epsilon, delta, rate, steps, also=also)
    assert compose([*also, (DPSGDEvent(sigma, rate), steps)], delta) <= epsilon
    assert compose([*also, (DPSGDEvent(sigma / 1.001, rate), steps)], delta) > epsilon


@pytest.mark.parametrize("event", [PureEvent(0.3), ApproximateEvent(0.3, 1e-6), PureEvent(1000.0)])
def test_a_lone_bounded_event_comes_out_exactly(event):
    assert compose([(event, 1)], DELTA) == event.epsilon


def test_gaussians_compose_exactly():
    charges = [(GaussianEvent(3.0), 2), (GaussianEvent(5.0), 3), (DPSGDEvent(14.0, 1.0), 1)]
    merged = (2 / 3.0**2 + 3 / 5.0**2 + (2 / 14.0) ** 2) ** -0.5
    epsilon = compose(charges, DELTA)
    assert analytic_gaussian_sigma(epsilon, DELTA) == pytest.approx(merged, rel=1e-9)


def test_many_pure_events_match_the_closed_form_of_randomised_response():
    epsilon, count = 0.1, 50
    epsilons = epsilon * (2 * np.arange(count + 1) - count)
    weights = np.array([math.comb(count, k) for k in range(count + 1)], dtype=float)
    likely = weights * np.exp(epsilon * np.arange(count + 1)) / (1 + math.exp(epsilon)) ** count
    composed = compose([(PureEvent(epsilon), count)], DELTA)
    delta = float((np.maximum(0, 1 - np.exp(composed - epsilons)) * likely).sum())
    assert composed < epsilon * count
    assert delta == pytest.approx(DELTA, rel=1e-4)
    assert delta <= DELTA


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("pure", "delta"), [([(0.4, 1)], 1e-5), ([(0.3, 3), (0.05, 2)], 1e-6), ([(3.0, 2)], 1e-5), ([(0.1, 1)], 0.01)]
)
@pytest.mark.parametrize("sigma", [0.7, 3.7, 40.0])
def test_pure_events_beside_a_gaussian_one_cost_what_their_losses_say(pure, delta, sigma):
    """Against the convolution, which rounds upwards, and the curve at that epsilon by quadrature over the losses."""
    charges = accounting._merge([(GaussianEvent(sigma), 1), *((PureEvent(e), count) for e, count in pure)])
    found = compose(charges, delta)
    convolved = accounting._convolved(charges, delta, 1.0)
    assert convolved * (1 - 1e-4) - 1e-6 < found <= convolved
    coins = [sign * e for e, count in pure for sign in [np.array([1.0, -1.0])] * count]
    losses = np.array([sum(each) for each in itertools.product(*coins)])
    chances = np.array([math.prod(expit(c) for c in each) for each in itertools.product(*coins)])
    assert chances.sum() == pytest.approx(1)
    z = np.linspace(-12, 12, 20_001)
    loss = losses[:, None] + 0.5 / sigma**2 + z / sigma
    each = (np.maximum(-np.expm1(found - loss), 0) * norm.pdf(z)).sum(1) * (z[1] - z[0])
    exact = float(chances @ each)
    assert (exact == pytest.approx(delta, rel=1e-4)) if found else (exact <= delta)


def test_pure_budgets_add_up_and_admit_nothing_else():
    pure = [(PureEvent(0.25), 2), (PureEvent(0.5), 1)]
    assert compose(pure, 0.0) == 1.0
    assert compose([*pure, (GaussianEvent(100.0), 1)], 0.0) == math.inf
    assert compose([(ApproximateEvent(0.5, 1e-6), 1)], 0.0) == math.inf
    assert compose([], 0.0) == compose([(PureEvent(1.0), 0)], 0.0) == 0.0


def test_approximate_events_use_up_delta():
    event = ApproximateEvent(0.5, 5e-6)
    assert compose([(event, 2)], DELTA) == pytest.approx(1.0)
    assert compose([(event, 3)], DELTA) == math.inf
    thirds = ApproximateEvent(0.1, DELTA / 3)
    assert compose([(thirds, 3)], DELTA) == pytest.approx(0.3)


def test_bounds_hold_where_the_transforms_lose_digits():
    assert compose([(DPSGDEvent(4.0, 0.1), 10)], 1e-13) == math.inf
    assert compose([(PureEvent(0.5), 1), (GaussianEvent(5.0), 1)], 1e-13) < math.inf  # by basic composition
    assert compose([(PureEvent(500.0), 1), (GaussianEvent(5.0), 1)], 1e-5) > 500.0


def test_naive_sum_adds_epsilons():
    charges = [(PureEvent(0.25), 2), (ApproximateEvent(0.5, 4e-6), 1), (GaussianEvent(5.0), 1)]
    gaussian = compose([(GaussianEvent(5.0), 1)], 6e-6)
    assert naive_sum(charges, DELTA) == (pytest.approx(1.0 + gaussian), DELTA)
    assert naive_sum([(ApproximateEvent(0.5, 1e-4), 1)], DELTA).epsilon == math.inf
    assert naive_sum([], DELTA) == (0.0, DELTA)


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "charges",
    [
        [(GaussianEvent(2.0), 3)],
        [(PureEvent(0.4), 1)],
        [(ApproximateEvent(0.4, 1e-3), 1)],
        [(PureEvent(0.4), 3), (GaussianEvent(3.0), 1)],
        [(DPSGDEvent(2.0, 0.05), 10), (PureEvent(0.05), 1)],
    ],
    ids=str,
)
def test_the_curve_goes_through_the_composed_epsilon(charges):
    delta = 5e-3
    (found,) = privacy_curve(charges, [compose(charges, delta)])
    assert found <= delta * (1 + 1e-6)
    (below,) = privacy_curve(charges, [compose(charges, delta) - 0.02])
    assert below > delta or isinstance(charges[0][0], ApproximateEvent)


@pytest.mark.parametrize("bound", [0.3, 40.0, 900.0])
def test_the_curve_of_a_pure_event_is_that_of_randomised_response(bound):
    epsilons = np.array([-0.5, 0.0, bound / 2, bound, bound + 1])
    right = scipy.special.expit(bound)
    # P(told right) - e^epsilon P(told wrong), and its mirror image for a negative epsilon
    mirrored = 1 - np.exp(np.minimum(epsilons, 0))
    exact = np.maximum.reduce([right - np.exp(epsilons - bound) * right, mirrored, 0 * epsilons])
    np.testing.assert_allclose(privacy_curve([(PureEvent(bound), 1)], epsilons), exact, rtol=1e-12, atol=1e-15)


def test_losses_too_wide_to_discretise_have_a_closed_form_that_is_never_smaller(monkeypatch):
    charges = [(DPSGDEvent(0.6, 0.2), 100), (GaussianEvent(2.0), 1)]
    exact = compose(charges, DELTA)
    monkeypatch.setattr(accounting, "_WIDEST", 0.0)
    accounting._compose.cache_clear()
    closed = compose(charges, DELTA)
    accounting._compose.cache_clear()
    # a sampled step is at most one without sampling, whose two means are two clip norms apart
    assert closed == pytest.approx(gaussian_epsilon(1 / math.sqrt(100 * (2 / 0.6) ** 2 + 1 / 4), DELTA), rel=1e-12)
    assert closed > exact


@pytest.mark.parametrize(
    "charges",
    [
        [(DPSGDEvent(1e-3, 0.5), 10**7)],
        [(DPSGDEvent(0.01, 1.0), 10**5), (PureEvent(1.0), 1)],
        [(GaussianEvent(1e-4), 3), (PureEvent(0.1), 3)],
        [(PureEvent(1.0), 9_000_000), (GaussianEvent(1.0), 5)],
    ],
)
def test_events_that_protect_nothing_still_have_a_finite_cost(charges):
    assert 1e6 < compose(charges, DELTA) < math.inf
    assert privacy_curve(charges, [1.0]).tolist() == [1.0]


@pytest.mark.slow
def test_opacus_counts_records_added_or_removed_where_replacing_costs_more():
    """The numbers of docs/architecture.md."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(1.0, 0.01, 10_000)]
    assert round(accountant.get_epsilon(1e-5), 2) == 6.2
    assert round(dp_sgd_epsilon(1.0, 1e-5, 0.01, 10_000), 2) == 10.88


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "sigma"),
    [(1.0, DELTA, 211, 10.27), (1.0, DELTA, 422, 14.53), (0.5, DELTA / 2, 211, 20.25)],
)
def test_noise_multiplier_matches_the_theory(epsilon, delta, steps, sigma):
    found = dp_sgd_noise_multiplier(epsilon, delta, RATE, steps)
    assert found == pytest.approx(sigma, abs=6e-3)
