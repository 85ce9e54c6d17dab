import numpy as np
import pytest
from scipy.stats import norm

from torchdpcate.privacy.accounting import event_mu, gaussian_curve, privacy_curve
from torchdpcate.privacy.calibration import gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent


def test_full_batch_steps_are_gaussian_with_twice_the_clip_norm():
    assert event_mu(GaussianEvent(4.0)) == pytest.approx(0.25, rel=1e-14)
    assert event_mu(DPSGDEvent(6.0, 1.0)) == pytest.approx(1 / 3, rel=1e-14)


def test_the_gaussian_curve_is_that_of_the_calibration():
    for mu, delta in ((0.05, 1e-6), (0.5, 1e-5), (3.0, 1e-3)):
        epsilon = gaussian_epsilon(1 / mu, delta)
        assert gaussian_curve(mu, np.array([epsilon]))[0] == pytest.approx(delta, rel=1e-7)
    assert gaussian_curve(1.0, np.array([0.0]))[0] == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 5.0])
def test_a_pure_event_is_covered_and_by_no_smaller_mu(epsilon):
    mu = event_mu(PureEvent(epsilon))
    epsilons = np.linspace(0, epsilon, 500)
    curve = privacy_curve([(PureEvent(epsilon), 1)], epsilons)
    assert (gaussian_curve(mu, epsilons) >= curve * (1 - 1e-9)).all()
    assert (gaussian_curve(mu * 0.999, epsilons) < curve).any()
    assert event_mu(ApproximateEvent(epsilon, 0.0)) == mu
