"""A sum and a sum of squares as one event: what one record costs, and the bound of how much values vary."""

import math

import pytest
import torch

from torchdpcate.estimators.average.ratio_of_sums import most_deviations, sum_and_squares, sums_mechanism
from torchdpcate.privacy.noise import NoiseSource

RUNS = 40_000


def sums_of(values: torch.Tensor) -> torch.Tensor:
    """The exact sums of values and of half their squares."""
    return sum_and_squares(values.shape[-1]).exact(values)


def test_no_replaced_value_costs_more_than_the_mechanism_answers_for():
    """All pairs of values on a grid: |t - t'| (1 + |t + t'| / 2) is 2 at the ends, and nowhere more."""
    values = torch.linspace(-1, 1, 401, dtype=torch.float64)
    others = torch.tensor([0.3, -0.9, 1.0], dtype=torch.float64)
    sums = sums_of(torch.cat([values[:, None], others.expand(401, -1)], 1))
    moved = (sums[:, None] - sums[None]).abs().sum(-1)
    closed = (values[:, None] - values).abs() * (1 + (values[:, None] + values).abs() / 2)
    assert (moved - closed).abs().max() < 1e-12
    assert moved.max().item() == pytest.approx(2, abs=1e-12)
    assert moved.max() <= sums_mechanism(4, 1.0).sensitivity


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("mean", [0.0, 0.3, -0.9, 1.0])
def test_nine_in_ten_bounds_are_not_below_the_truth(epsilon, mean):
    values = torch.linspace(-1, 1, 240, dtype=torch.float64)[None] * 0.8 + 0.7 * mean
    values = values.clamp(-1, 1)
    exact, scale = sums_of(values), sums_mechanism(240, epsilon).released_scale(2)
    noisy = exact + NoiseSource.fixed(0).laplace(2 * RUNS, scale).reshape(RUNS, 2)
    bound = most_deviations(noisy[:, 0], 2 * noisy[:, 1], 240, scale)
    truth = (values - values.mean()).square().sum().item()
    above = (bound >= truth).double().mean().item()
    assert above > 0.9 - 6 * math.sqrt(0.09 / RUNS)
    if bound.amin() > 0 and bound.amax() < 240:  # neither end is where the bound is cut
        assert above < 0.93


def test_quantiles_are_those_of_closed_forms():
    """Of many values the last term goes: one Laplace law where the mean is 0, the sum of two where it is 1."""
    one, n = torch.ones(1, dtype=torch.float64), 10**9
    for mean, tail in ((0.0, lambda q: math.exp(-q) / 2), (1.0, lambda q: (1 + q / 2) * math.exp(-q) / 2)):
        total, squares = mean * n * one, (mean**2 * n + n / 4) * one
        quantile = (most_deviations(total, squares, n, 2.0).item() - n / 4) / 4
        # one run in 200, and a step of the mean, beside what is requested
        assert tail(quantile) == pytest.approx(0.095, abs=0.001 if mean else 0.003)


def test_without_noise_it_is_the_sum_of_squared_deviations():
    values = torch.rand(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total, half = sums_of(values).T
    truth = (values - values.mean(1, keepdim=True)).square().sum(1)
    assert most_deviations(total, 2 * half, 50, 0.0).tolist() == pytest.approx(truth.tolist())
