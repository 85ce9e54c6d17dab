"""The exact loss of one choice: closed forms, and never above epsilon within the calibrated spread."""

import math

import pytest
import torch

from experiments.spillover.likelihood import MECHANISMS, log_likelihood_ratio

pytestmark = pytest.mark.studies


def test_the_exponential_mechanism_in_closed_form():
    before, after = torch.tensor([0.0, 3.0, 1.0]), torch.tensor([2.0, 0.0, 1.0])
    laws = [torch.softmax(u.double() * 0.5 / 4.0, 0).log() for u in (before, after)]
    expected = float((laws[0] - laws[1]).abs().max())
    assert log_likelihood_ratio("exponential", 0.5, 4.0, before, after) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_within_the_spread_the_loss_is_at_most_epsilon(mechanism, epsilon):
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(300):
        before = 30 * torch.rand(6, generator=generator, dtype=torch.float64)
        delta = torch.randint(2, (6,), generator=generator).double() * 20 - 7
        largest = max(largest, log_likelihood_ratio(mechanism, epsilon, 20.0, before, before + delta))
    assert 0.5 * epsilon < largest <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_shift_of_all_utilities_loses_nothing(mechanism):
    before = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    assert log_likelihood_ratio(mechanism, 1.0, 20.0, before, before + 1000) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_huge_movements_give_large_finite_losses(mechanism):
    before, after = torch.zeros(2, dtype=torch.float64), torch.tensor([0.0, 1500.0], dtype=torch.float64)
    loss = log_likelihood_ratio(mechanism, 1.0, 20.0, before, after)
    assert loss == pytest.approx(75, abs=1)
    assert math.isfinite(log_likelihood_ratio(mechanism, 1.0, 20.0, before, 100 * after))
