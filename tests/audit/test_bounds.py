"""Bounds from counts, against exact binomials, closed forms and the theory note."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from torchdpcate.audit.attack import (
    Rates,
    best_factors,
    clopper_pearson,
    curve_bound,
    epsilon_bound,
    gaussian_bound,
    pure_bound,
)
from torchdpcate.privacy.accounting import dp_sgd_epsilon, gaussian_curve, privacy_curve
from torchdpcate.privacy.calibration import gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent


@pytest.mark.parametrize("trials", [1, 60])
@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_clopper_pearson_covers_every_probability_exactly(trials, p):
    """The chance that a bound is wrong, summed over all counts: no sampling, so no error rate."""
    counts = np.arange(trials + 1)
    low, high = clopper_pearson(counts, trials, 0.9)
    weight = binom.pmf(counts, trials, p)
    assert weight[low > p].sum() <= 0.1 + 1e-12
    assert weight[high < p].sum() <= 0.1 + 1e-12
    assert np.all(low <= counts / trials)
    assert np.all(counts / trials <= high)


def test_clopper_pearson_is_no_wider_than_it_must_be():
    """At the bound itself the tail of the count seen is the error allowed."""
    low, high = clopper_pearson(20, 100, 0.95)
    assert binom.sf(19, 100, low) == pytest.approx(0.05, rel=1e-9)
    assert binom.cdf(20, 100, high) == pytest.approx(0.05, rel=1e-9)


def power(event, count=1, false=0.2):
    """True positive rate of the best test: the lower envelope of the lines e^epsilon alpha + delta(epsilon)."""
    epsilons = np.linspace(-30, 30, 60_001)
    return np.min(np.exp(epsilons) * false + privacy_curve([(event, count)], epsilons))


def exact(event, count=1, delta=1e-5, false=0.2):
    """The bound from the exact rates of the best test at a false positive rate: on the trade-off curve."""
    return epsilon_bound(event, count, delta, Rates(false, power(event, count, false)))


@pytest.mark.parametrize("false", [0.01, 0.6])
@pytest.mark.parametrize("multiplier", [0.5, 3.730631635])
def test_rates_on_the_claimed_gaussian_curve_give_the_claim(multiplier, false):
    assert exact(GaussianEvent(multiplier), false=false) == pytest.approx(gaussian_epsilon(multiplier, 1e-5), rel=1e-4)


def test_gaussian_rates_give_mu():
    for mu in (0.1, 1.0, 3.0):
        rates = Rates(norm.sf(0.7), norm.sf(0.7 - mu))
        assert gaussian_bound(rates) == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize("event", [PureEvent(0.7), ApproximateEvent(0.7, 1e-3)])
@pytest.mark.parametrize("swap", [False, True])
def test_rates_on_the_claimed_line_give_epsilon(event, swap):
    delta = getattr(event, "delta", 0.0)
    false, true = 0.1, math.exp(0.7) * 0.1 + delta
    rates = Rates(1 - true, 1 - false) if swap else Rates(false, true)
    assert epsilon_bound(event, 1, delta, rates) == pytest.approx(0.7, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "steps"), [(2.0, 0.2, 10), (1.0, 0.05, 20)])
def test_dp_sgd_rates_on_the_claimed_curve_give_the_claim_and_no_more(noise, rate, steps):
    event = DPSGDEvent(noise, rate)
    claim = dp_sgd_epsilon(noise, 1e-5, rate, steps)
    bound = exact(event, steps)
    # the search is coarse and stops on the safe side; claims are never exceeded by rates that they allow
    assert 0.97 * claim <= bound <= claim


@pytest.mark.slow
def test_dp_sgd_rates_beyond_the_curve_exceed_the_claim():
    claimed, true = DPSGDEvent(2.0, 0.2), power(DPSGDEvent(1.6, 0.2), 10)
    bound = epsilon_bound(claimed, 10, 1e-5, Rates(0.2, true))
    assert bound > dp_sgd_epsilon(2.0, 1e-5, 0.2, 10)
    assert bound == pytest.approx(dp_sgd_epsilon(1.6, 1e-5, 0.2, 10), rel=0.02)


@pytest.mark.parametrize(
    "event", [PureEvent(1.0), ApproximateEvent(1.0, 1e-5), GaussianEvent(2.0), DPSGDEvent(2.0, 0.2)]
)
def test_useless_rates_refute_nothing(event):
    assert epsilon_bound(event, 1, 1e-5, Rates(0.5, 0.4)) == 0.0


def test_rates_are_bounded_together():
    """Each side takes half of the error: the bound is what two one-sided bounds of 97.5 % give."""
    rates = Rates.of(100, 200, 1_000, 0.95)
    assert rates.false_high == pytest.approx(float(clopper_pearson(100, 1_000, 0.975)[1]))
    assert rates.true_low == pytest.approx(float(clopper_pearson(200, 1_000, 0.975)[0]))
    assert pure_bound(rates) == pytest.approx(math.log(rates.true_low / rates.false_high))


def test_a_proved_curve_is_refuted_at_any_of_its_points_and_its_family_measures_by_how_much():
    """Of the curve of a Gaussian mechanism the bound is that of `gaussian_bound`, but for the grid of epsilons."""
    rates = Rates(0.3, 0.45)
    mu = float(gaussian_bound(rates))

    def family(mine):
        return lambda factor, epsilons: gaussian_curve(factor * mine, epsilons)

    expected = gaussian_epsilon(1 / mu, 1e-5)
    for mine in (0.5 * mu, mu, 2 * mu):
        assert curve_bound(family(mine), 1e-5, rates) == pytest.approx(expected, rel=3e-3)
        assert curve_bound(family(mine), 1e-5, rates) <= expected
    assert curve_bound(family(mu), 1e-5, Rates(0.4, 0.4)) == 0.0
    many = Rates(np.array([0.3, 0.4, 0.3]), np.array([0.45, 0.4, 0.6]))
    factors = best_factors(family(mu), many)
    assert factors[1] == 0 < 0.96 < factors[0] <= 1 < factors[2]
