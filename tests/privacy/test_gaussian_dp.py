"""Mu against closed forms, against the curve it must cover, and against the limits it must state."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose, privacy_curve
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.gaussian_dp import Validity, gaussian_curve, gaussian_dp

STEPS = [(DPSGDEvent(8.0, 128 / 1350), 422)]


def test_gaussian_events_compose_exactly():
    mu, validity, down_to = gaussian_dp([(GaussianEvent(3.0), 1), (GaussianEvent(4.0), 2), (PureEvent(9.0), 0)], 1e-5)
    assert mu == pytest.approx(math.sqrt(1 / 9 + 2 / 16), rel=1e-14)
    assert (validity, down_to) == (Validity.EXACT, 0.0)


def test_full_batch_steps_are_gaussian_with_twice_the_clip_norm():
    assert gaussian_dp([(DPSGDEvent(6.0, 1.0), 9)], 1e-5)[:2] == (pytest.approx(1.0, rel=1e-14), Validity.EXACT)


def test_the_gaussian_curve_is_that_of_the_calibration():
    for mu, delta in ((0.05, 1e-6), (0.5, 1e-5), (3.0, 1e-3)):
        epsilon = gaussian_epsilon(1 / mu, delta)
        assert gaussian_curve(mu, np.array([epsilon]))[0] == pytest.approx(delta, rel=1e-7)
    assert gaussian_curve(1.0, np.array([0.0]))[0] == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 5.0])
def test_a_pure_event_is_covered_and_by_no_smaller_mu(epsilon):
    mu, validity, _ = gaussian_dp([(PureEvent(epsilon), 1)], 0.0)
    assert validity is Validity.WHOLE
    epsilons = np.linspace(0, epsilon, 500)
    curve = privacy_curve([(PureEvent(epsilon), 1)], epsilons)
    assert (gaussian_curve(mu, epsilons) >= curve * (1 - 1e-9)).all()
    assert (gaussian_curve(mu * 0.999, epsilons) < curve).any()
    assert gaussian_dp([(ApproximateEvent(epsilon, 0.0), 1)], 0.0).mu == mu


@pytest.mark.slow
@pytest.mark.parametrize(
    "charges",
    [STEPS, [*STEPS, (PureEvent(0.05), 1)], [(DPSGDEvent(1.0, 0.01), 1000)], [*STEPS, (GaussianEvent(6.0), 1)]],
    ids=["steps", "and a quantile", "small noise", "and a Gaussian"],
)
def test_subsampled_steps_are_covered_down_to_delta_and_tightly(charges):
    delta = 1e-5
    mu, validity, down_to = gaussian_dp(charges, delta)
    assert (validity, down_to) == (Validity.CURVE, delta)
    end = compose(charges, delta)
    epsilons = np.linspace(0, end, 777)  # not the points it was fitted at
    assert (gaussian_curve(mu, epsilons) >= privacy_curve(charges, epsilons)).all()
    at_the_end = 1 / analytic_gaussian_sigma(end, delta)  # no mu below this covers the claimed point
    assert at_the_end <= mu < 1.01 * at_the_end + 0.02


@pytest.mark.slow
def test_below_its_delta_a_subsampled_curve_escapes():
    """The tail of subsampled steps is heavier than the mu's: stating it for the whole curve would be wrong."""
    charges = [(DPSGDEvent(1.0, 0.01), 1000)]
    mu = gaussian_dp(charges, 1e-3).mu
    far = np.array([compose(charges, 1e-9)])
    assert (privacy_curve(charges, far) > 1.5 * gaussian_curve(mu, far)).all()
    assert gaussian_dp(charges, 1e-9).mu > 1.02 * mu


@pytest.mark.parametrize("others", [[], STEPS, [(GaussianEvent(2.0), 1)]])
def test_an_approximate_event_has_no_mu(others):
    assert gaussian_dp([(ApproximateEvent(1.0, 1e-6), 1), *others], 1e-5) == (None, Validity.NONE, 0.0)


def test_the_ends():
    assert gaussian_dp([], 1e-5) == (0.0, Validity.EXACT, 0.0)
    assert gaussian_dp([(DPSGDEvent(2.0, 1e-9), 1)], 1e-5).mu == 0.0
    assert gaussian_dp(STEPS, 0.0) == (None, Validity.VOID, 0.0)
    assert gaussian_dp([*STEPS, (PureEvent(1e5), 1)], 1e-5) == (None, Validity.VOID, 0.0)
    with pytest.raises(InputError, match="delta = 2"):
        gaussian_dp(STEPS, 2)
