"""The games of this package: their evidence is the exact likelihood ratio, and the claim is nearly attained."""

import math

import pytest
import torch

from tests.fit.cases import calibrate_objective
from torchdpcate.audit.attack import audit
from torchdpcate.fit import worst_pairs
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import WORST_CASES

BUDGET = PrivacyBudget(1.0, 1e-5)


@pytest.mark.first(1)
@pytest.mark.parametrize(("kind", "size"), [("gamma", 1), ("gaussian", 1), ("gamma", 2), ("box", 2)])
def test_the_densities_are_densities(kind, size):
    """They integrate to the constant of their law: over the line, or over the plane."""
    direction = worst_pairs._LINE if size == 1 else worst_pairs._DIAGONAL
    bounds, gamma = WeightBounds.per_record(2.0), 30.0
    objective = calibrate_objective(
        BUDGET, kind=kind, slope=1.0, bounds=bounds, curvature=1.0, gamma=gamma, size=size, largest_entry=1.0
    )
    s = objective.scale
    constant = {
        ("gamma", 1): 2 * s,
        ("gaussian", 1): s * math.sqrt(2 * math.pi),
        ("gamma", 2): 2 * math.pi * s**2,
        ("box", 2): 8 * s**2,  # the square's edge 8 r, times r-Gamma
    }[kind, size]
    half, points = 25 * s / gamma, 4_001 if size == 1 else 601
    axis = torch.linspace(-half, half, points, dtype=torch.float64)
    theta = torch.cartesian_prod(*[axis] * size).reshape(-1, size)
    for data in worst_pairs._sums(direction):
        density = worst_pairs.log_density(theta, objective, worst_pairs._LOSS, data).exp()
        total = density.sum().item() * (axis[1] - axis[0]).item() ** size
        assert total == pytest.approx(constant, rel=0.02)


@pytest.mark.slow
def test_half_of_the_noise_is_refuted(monkeypatch):
    """Counting the replaced record's weight once, as W1 of the first stage's papers does, halves the noise."""
    half = WeightBounds(2.0, 4.0, 2.0, own=True)
    object.__setattr__(half, "first", 2.0)
    monkeypatch.setattr(worst_pairs, "_BOUNDS", half)
    assert audit(WORST_CASES["objective_gamma"], BUDGET, trials=60_000).refuted
    assert audit(WORST_CASES["output_gamma"], BUDGET, trials=60_000).refuted


def test_the_gaussian_game_tells_the_records_apart():
    game = WORST_CASES["objective_gaussian"].make(BUDGET)
    noise = NoiseSource.fixed(0)
    here, there = (game.evidence(game.draw(dataset, 2_000, noise)).mean().item() for dataset in (0, 1))
    assert there > here
    assert HuberHinge(0.5) == worst_pairs._LOSS
