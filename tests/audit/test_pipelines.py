"""Attacks on learners: how far apart the two datasets of their game are."""

import math

import pytest

from torchdpcate.audit.report import find
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.noise import NoiseSource


@pytest.mark.slow
@pytest.mark.parametrize("name", ["r_learner", "dr_learner"])
def test_the_pair_is_one_gaussian_mechanism_at_its_proved_sensitivity(name):
    """The datasets lie as far apart as the four points allow: 1 / sigma_AG at half of delta, less the determinants."""
    game, noise, runs = find(name).make(PrivacyBudget(1.0, 1e-5)), NoiseSource.fixed(3), 20_000
    first, second = (game.evidence(game.draw(dataset, runs, noise)) for dataset in (0, 1))
    apart = ((second.mean() - first.mean()) / first.std()).item()
    assert apart == pytest.approx(1 / analytic_gaussian_sigma(0.982, 0.495e-5), abs=6 * math.sqrt(2 / runs))
