"""Empirical Bayes: the note's numbers, and its limits."""

import pytest
import torch

from torchdpcate.composition.priors import EmpiricalBayes
from torchdpcate.errors import InputError


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("t", "mean"),
    [
        ((1.0, -0.5, 0.2), (0.50101118, -0.13995869, 0.04641532)),  # composed_estimator, section 2.8
        ((0.1, -0.05, 0.2), (0.00265359, -0.00131143, 0.00556593)),
    ],
)
def test_numbers_of_the_note(t, mean):
    found = EmpiricalBayes(0.5).mean(vector(*t), torch.full((3,), 0.1).double(), torch.ones(3).double())
    assert torch.allclose(found, vector(*mean), atol=1e-8)


def test_little_noise_leaves_estimates_and_much_noise_takes_them():
    t = vector(1.0, -0.5, 0.2)
    small, large = torch.full((3,), 1e-6).double(), torch.full((3,), 1e4).double()
    assert torch.allclose(EmpiricalBayes().mean(t, small, torch.ones(3).double()), t, atol=1e-3)
    assert EmpiricalBayes().mean(t, large, torch.ones(3).double()).abs().max() < 1e-3


def test_never_away_from_zero():
    generator = torch.Generator().manual_seed(0)
    t = torch.randn(50, generator=generator, dtype=torch.float64)
    v = torch.rand(50, generator=generator, dtype=torch.float64) + 0.01
    found = EmpiricalBayes().mean(t, v, torch.ones(50).double())
    assert bool((found.abs() <= t.abs()).all())
    assert bool((found * t >= 0).all())


def test_a_spike_outside_its_range_is_refused():
    with pytest.raises(InputError, match="spike = 1"):
        EmpiricalBayes(1.0)
