"""The private difference in means."""

import pytest

from tests.estimators.average.confounded import DOMAIN, EFFECT, NAIVE_BIAS, arrays, data_sets
from torchdpcate import NoiseSource, PrivacyBudget
from torchdpcate.estimators.average.outcome_table import DifferenceInMeansEffect, plain_difference
from torchdpcate.release.estimate import half_width


def test_without_noise_it_is_the_difference_in_means():
    x, a, y = arrays(2_000, 1)
    learner = DifferenceInMeansEffect(DOMAIN, None).fit(x, a, y)
    plain = (y[a == 1].mean() - y[a == 0].mean()).item()
    assert learner.nonprivate_estimate().value == pytest.approx(plain, rel=1e-12)
    law = learner.nonprivate_estimate().law
    variance = sum(y[a == k].var(correction=0) / (a == k).sum() for k in (0.0, 1.0))
    assert law.gaussian == pytest.approx(variance.sqrt().item(), rel=1e-9)


def test_its_interval_covers_what_it_estimates_and_its_bias_is_the_designs():
    """400 data sets at epsilon = 0.5. A coverage of .95 gives 358 or fewer of 400 less often than once in 10^6 runs."""
    records = data_sets(400, 2_000, 2)
    found = DifferenceInMeansEffect(DOMAIN, PrivacyBudget(0.5, 0.0)).plan(2_000).run(records, NoiseSource.system())
    inside = (found.estimate - EFFECT - NAIVE_BIAS).abs() <= half_width(
        0.95, found.gaussian, found.laplace, found.polytope
    )
    assert inside.sum().item() > 358
    exact = plain_difference(records).estimate
    assert abs(exact.mean().item() - EFFECT - NAIVE_BIAS) < 0.007  # six standard errors
    assert (found.estimate - exact).square().mean().sqrt().item() < 0.03
