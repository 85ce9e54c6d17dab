import math

import mpmath
import pytest
from dp_accounting import get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from torchdpcate.errors import InputError
from torchdpcate.privacy.calibration import (
    analytic_gaussian_sigma,
    classical_gaussian_sigma,
    gaussian_epsilon,
    laplace_scale,
    smooth_sensitivity_multiplier,
    smoothness,
    theorem1_multiplier,
)

THEORY = [
    (0.1, 1e-5, 30.749566132),
    (0.5, 1e-5, 7.031826676),
    (1, 1e-5, 3.730631635),
    (3, 1e-5, 1.390593457),
    (10, 1e-5, 0.499888620),
    (1, 1e-6, 4.224678889),
    (0.5, 5e-6, 7.351148938),
]


@pytest.mark.parametrize(("epsilon", "delta", "sigma"), THEORY)
def test_analytic_gaussian_matches_the_theory(epsilon, delta, sigma):
    assert analytic_gaussian_sigma(epsilon, delta) == pytest.approx(sigma, rel=1e-9, abs=5e-10)
    assert analytic_gaussian_sigma(epsilon, delta, 2.5) == pytest.approx(2.5 * sigma, rel=1.5e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (5.0, 1e-8), (10.0, 1e-3)])
def test_analytic_gaussian_matches_dp_accounting(epsilon, delta):
    assert analytic_gaussian_sigma(epsilon, delta) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-6)


@pytest.mark.parametrize("epsilon", [10.0, 1000.0, 1e5])
@pytest.mark.parametrize("delta", [1e-5, 1e-100, 1e-300])
def test_analytic_gaussian_is_stable_at_large_epsilon_and_tiny_delta(epsilon, delta):
    sigma = analytic_gaussian_sigma(epsilon, delta)
    # the hockey-stick divergence as an integral of its tail, scaled so that nothing underflows
    mean, sd = 0.5 / sigma**2, 1 / sigma
    shift = norm.logsf((epsilon - mean) / sd)
    area, _ = quad(lambda t: math.exp(norm.logsf((epsilon + t - mean) / sd) - shift - t), 0, 60, epsabs=0)
    assert shift + math.log(area) == pytest.approx(math.log(delta), abs=1e-6)


@pytest.mark.parametrize("delta", [1e-30, 1e-20, 1e-10, 1e-5, 0.3])
def test_tiny_epsilons_keep_delta_in_eighty_digits(delta):
    with mpmath.workdps(80):
        for epsilon in (1e-12, 1e-11, 1e-10, 3e-10, 1e-9, 1e-8, 1e-7, 0.99e-6, 1e-6, 1e-4):
            sigma = analytic_gaussian_sigma(epsilon, delta)
            assert gaussian_epsilon(sigma, delta) <= epsilon
            s, e = mpmath.mpf(sigma), mpmath.mpf(epsilon)
            above, below = (mpmath.erfc((e * s + sign / (2 * s)) / mpmath.sqrt(2)) / 2 for sign in (-1, 1))
            assert above - mpmath.exp(e) * below <= delta


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(-700, -0.5))
def test_calibration_and_its_inverse_agree_on_the_safe_side(epsilon, log_delta):
    delta = math.exp(log_delta)
    back = gaussian_epsilon(analytic_gaussian_sigma(epsilon, delta), delta)
    assert epsilon * (1 - 1e-4) <= back <= epsilon


def test_epsilon_of_the_gaussian_at_its_ends():
    assert gaussian_epsilon(6.0, 1e-5) == pytest.approx(0.594498, abs=5e-7)
    assert gaussian_epsilon(6.0, 0.0) == math.inf
    assert gaussian_epsilon(1e6, 1e-2) == 0.0


def test_papers_constants():
    assert theorem1_multiplier(1, 1e-5, 1350) == pytest.approx(0.0491295036, abs=5e-11)
    assert smoothness(1, 1e-5, 300) == pytest.approx(7.706246626e-4, abs=5e-14)
    assert smooth_sensitivity_multiplier(1, 1e-5) == pytest.approx(24.704, abs=5e-4)
    assert laplace_scale(0.5, 3.0) == 6.0


def test_classical_gaussian_is_the_textbook_one_and_looser():
    sigma = classical_gaussian_sigma(0.5, 1e-5, 2.0)
    assert sigma == pytest.approx(2 * math.sqrt(2 * math.log(1.25e5)) / 0.5)
    assert sigma > analytic_gaussian_sigma(0.5, 1e-5, 2.0)
    with pytest.raises(InputError, match="below 1 only"):
        classical_gaussian_sigma(1.0, 1e-5)


def test_smooth_sensitivity_beyond_its_proof_is_refused():
    most = 3 * math.log(2 / 1e-5)
    assert smooth_sensitivity_multiplier(most, 1e-5) == pytest.approx(5 * math.sqrt(2 * math.log(2e5)) / most)
    for calibrate in (smooth_sensitivity_multiplier, lambda e, d: theorem1_multiplier(e, d, 1000)):
        with pytest.raises(InputError, match=r"epsilon = 37: .* up to 3 ln\(2/delta\) = 36.62"):
            calibrate(37.0, 1e-5)
