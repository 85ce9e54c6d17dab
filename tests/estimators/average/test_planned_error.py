"""Planned errors of average effects against closed forms and against what simulated releases are off by."""

import math

import pytest

from tests.estimators.average.confounded import DOMAIN, EFFECT, data_sets
from tests.registered import CovariateBalancingEffect, KnownPropensityEffect
from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.estimators.average.effect_plan import ErrorPrior

BINARY = ErrorPrior(deviation=0.45)
COIN = Domain([-1.0] * 4, [1.0] * 4, 0.0, 1.0, propensity=0.5)
FACTOR = 1.5


def test_a_fair_coin_in_closed_form():
    """Sensitivity 2 at a centre of 1/2, for 0.87/0.95 of epsilon; sampling of two arms of n/2."""
    planned = KnownPropensityEffect(COIN, PrivacyBudget(0.5, 0.0)).planned_error(5000)
    assert planned.noise == pytest.approx(math.sqrt(2) * 2 / (0.5 * 0.87 / 0.95 * 5000), rel=1e-5)
    assert planned.sampling == pytest.approx(0.2 * 2 / math.sqrt(5000), rel=1e-9)
    assert planned.nuisances == 0


def simulated(n: int, epsilon: float, runs: int) -> float:
    """Root mean squared error over data sets of the confounded design."""
    learner = CovariateBalancingEffect(DOMAIN, PrivacyBudget(epsilon, 1e-5))
    error = learner.plan(n).run(data_sets(runs, n, 7), NoiseSource.system()).estimate - EFFECT
    return error.square().mean().sqrt().item()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_planned_errors_are_within_a_factor_of_what_releases_are_off_by(epsilon):
    learner = CovariateBalancingEffect(DOMAIN, PrivacyBudget(epsilon, 1e-5))
    planned = learner.planned_error(5000, BINARY).total
    assert planned / FACTOR < simulated(5000, epsilon, 200) < planned * FACTOR
