import math

import numpy as np
import pytest
from scipy.stats import chi2

from tests.privacy.scaled_gaussians import exact_delta
from torchdpcate.privacy.calibration import (
    analytic_gaussian_sigma,
    largest_smoothness,
    smooth_gaussian_delta,
    smooth_gaussian_multiplier,
    smooth_sensitivity_multiplier,
    smoothness,
)

# where the tails of scipy's noncentral chi-square hold: scales that differ much
CELLS = [(1.0, 1), (1.0, 3), (1.0, 10), (5.0, 10), (5.0, 100), (10.0, 300)]


@pytest.mark.parametrize(("epsilon", "d"), CELLS)
def test_delta_is_that_of_noncentral_chi_squares(epsilon, d):
    xi = largest_smoothness(epsilon, d)
    for kappa in (1.0, 2.0, 4.0):
        exact = exact_delta(epsilon, d, xi, 1 / kappa)
        assert smooth_gaussian_delta(epsilon, kappa, d, xi) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("d", [1, 2, 10, 300])
def test_equal_scales_are_the_analytic_gaussian(d):
    sigma = analytic_gaussian_sigma(1.0, 1e-5)
    assert smooth_gaussian_delta(1.0, sigma, d, 1e-9) == pytest.approx(1e-5, rel=1e-5)
    assert smooth_gaussian_multiplier(1.0, 1e-5, d, 1e-9) == pytest.approx(sigma, rel=2e-6)


@pytest.mark.parametrize("d", [1, 2, 20])
def test_equal_means_are_the_central_chi_square(d):
    epsilon, xi = 1.0, largest_smoothness(1.0, d)
    far = (epsilon + d * xi) / (-math.expm1(-2 * xi) / 2)
    exact = chi2.sf(far / math.exp(2 * xi), d) - math.exp(epsilon) * chi2.sf(far, d)
    assert smooth_gaussian_delta(epsilon, 1e7, d, xi) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("epsilon", "d"), [*CELLS, (0.1, 1), (0.1, 30), (30.0, 1), (30.0, 40)])
def test_no_neighbour_is_worse_than_the_pair_of_the_proof(epsilon, d):
    """All ratios of scales within the smoothness, both ways, and all differences up to the sensitivity."""
    most, delta = largest_smoothness(epsilon, d), 1e-5
    for xi in (most, most / 3):
        kappa = smooth_gaussian_multiplier(epsilon, delta, d, xi)
        if math.isinf(kappa):
            continue
        ratios, lengths = np.linspace(-1, 1, 21) * xi, np.linspace(0.05, 1, 11) / kappa
        found = max(exact_delta(epsilon, d, t, h) for t in ratios for h in lengths)
        assert found <= delta * (1 + 1e-6)


@pytest.mark.parametrize(("epsilon", "kappa"), [(0.1, 31.026841), (1.0, 3.779130), (5.0, 0.907286), (10.0, 0.510072)])
def test_three_hundred_answers_need_a_fifth_of_the_earlier_noise(epsilon, kappa):
    least = smooth_gaussian_multiplier(epsilon, 1e-5, 300, smoothness(epsilon, 1e-5, 300))
    assert least == pytest.approx(kappa, rel=1e-6)
    assert smooth_sensitivity_multiplier(epsilon, 1e-5) / least > 4.8


def test_scales_that_alone_tell_neighbours_apart_have_no_multiplier():
    assert math.isinf(smooth_gaussian_multiplier(1.0, 1e-5, 1, largest_smoothness(1.0, 1)))
