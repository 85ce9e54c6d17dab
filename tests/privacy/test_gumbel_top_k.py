import math

import numpy as np
import pytest
import torch
from scipy.special import log_expit, ndtri_exp

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import privacy_curve
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import bounded_range, gumbel_top_k

MU = 0.2680511232
"""Of (1, 1e-5)."""


def probits(c: np.ndarray) -> np.ndarray:
    """Normal quantiles of the logistic law's values."""
    return np.where(c < 0, ndtri_exp(log_expit(c)), -ndtri_exp(log_expit(-c)))


@pytest.mark.parametrize("mu", [0.01, MU, 1.0, 4.0])
def test_the_logistic_pair_is_nowhere_easier_to_tell_than_the_gaussian_one(mu):
    eta, c = bounded_range(GaussianEvent(1 / mu)), np.linspace(-30, 30, 10_001)
    distance = probits(c) - probits(c - eta)
    assert distance.max() <= mu
    assert probits(np.array(eta / 2)) - probits(np.array(-eta / 2)) == pytest.approx(mu, rel=1e-11)


def test_its_range_in_numbers():
    assert bounded_range(GaussianEvent(1 / MU)) == pytest.approx(0.4280976080, rel=1e-9)
    assert 2e-6 / bounded_range(GaussianEvent(1e6)) == pytest.approx(1.2533141373, rel=1e-9)  # sqrt(pi / 2)


def choices(scores: np.ndarray, eta: float) -> np.ndarray:
    """Law of one choice among scores of sensitivity one."""
    weights = np.exp(eta / 2 * (scores - scores.max()))
    return weights / weights.sum()


def most_over(eta: float, mu: float) -> float:
    """How far delta(epsilon) of any of many neighbours lies above the curve of mu."""
    generator, epsilons = np.random.default_rng(0), np.linspace(-2, 2, 81)
    allowed = privacy_curve([(GaussianEvent(1 / mu), 1)], epsilons)
    over = []
    for _ in range(300):
        scores = generator.choice([0.1, 3.0, 30.0]) * generator.normal(size=generator.integers(2, 6))
        moved = scores + generator.choice([-1.0, 1.0, 0.0], size=len(scores), p=[0.45, 0.45, 0.1])
        p, q = choices(scores, eta), choices(moved, eta)
        over.append((np.maximum(p - np.exp(epsilons[:, None]) * q, 0).sum(1) - allowed).max())
    return max(over)


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_no_neighbours_are_found_that_tell_more_than_the_event(mu):
    eta = bounded_range(GaussianEvent(1 / mu))
    assert most_over(eta, mu) <= 1e-12
    assert most_over(1.1 * eta, mu) > 1e-3 * mu


@pytest.mark.slow
def test_it_chooses_the_best_few_as_the_exponential_mechanism_does():
    noise, event = NoiseSource.system(), GaussianEvent(1.0)
    scores, runs = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64), 1_500
    first = np.bincount([gumbel_top_k(scores, 2, event, noise, 0.5)[0] for _ in range(runs)], minlength=3) / runs
    law = choices(scores.numpy() / 0.5, bounded_range(event))
    assert np.abs(first - law).max() < 5.5 * math.sqrt(0.25 / runs)  # false alarm below 1e-6
    assert gumbel_top_k(1e6 * scores, 3, event, noise) == [1, 2, 0]


def test_more_than_there_are_cannot_be_chosen():
    with pytest.raises(InputError, match="there are 2 candidates"):
        gumbel_top_k(torch.zeros(2), 3, GaussianEvent(1.0), NoiseSource.system())
    assert analytic_gaussian_sigma(1.0, 1e-5) == pytest.approx(1 / MU)
