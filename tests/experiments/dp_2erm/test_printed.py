"""The printed formulas give the numbers that the theory note attributes to them, and fail by as much as it says."""

import math

import pytest

from experiments.dp_2erm import printed


@pytest.mark.parametrize(("epsilon", "true"), [(1.0, 1.302733), (0.1, 0.134745)])
def test_the_printed_gamma_noise_loses_more_than_its_epsilon(epsilon, true):
    movement = printed.best_case(400)
    ridge = printed.ridge(epsilon, 0.5**0.5, movement)  # lambda = 2 M^2 = 1
    scale = printed.gamma_scale(epsilon, 1.0, movement)
    if epsilon == 1:
        assert (ridge, 1 / scale) == pytest.approx((2 * math.sqrt(2), 0.5))
    # one record's gradient of length 1 goes from one side to the other, and its curvature comes or goes
    assert math.log1p(1 / ridge) + 2 / scale == pytest.approx(true, abs=1e-6)


def test_slope_and_gaussian_scale_are_those_of_the_note():
    assert printed.slope(math.sqrt(10), 15.0, 28.0) == pytest.approx(749.736660, abs=1e-6)
    huge = 10**9
    assert printed.gaussian_scale(1.0, 1e-5, 1.0, printed.best_case(huge), huge, 10) == pytest.approx(14.763, abs=1e-3)


def test_movements():
    assert printed.universal(400) == pytest.approx((1200.0, math.sqrt(6) * 401**1.5))
    assert printed.entropy(400) == (21.0, 20.0)
    assert printed.mmd(80)[0] == pytest.approx(math.sqrt(80) * 0.7 + 4)
