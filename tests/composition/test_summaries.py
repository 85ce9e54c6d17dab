"""Private quantiles, moments, correlations and curvatures: what one record moves, and what comes out."""

import math

import torch

from torchdpcate import PrivacyBudget
from torchdpcate.composition.shares import Shares
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import (
    private_curvatures,
    private_quantile,
    private_rotation,
    private_standardisation,
)
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession


def noisy_steps(epsilon, n, *names):
    shares = Shares(200.0 if epsilon is None else epsilon, dict.fromkeys(names, 1 / len(names)))
    session = FitSession.open({"records": n}, PrivacyBudget(1e6, 0.5), NoiseSource.fixed(3))
    return NoisySteps(session.scope(["records"], Charge(Purpose.RELEASE, "composed")), shares)


def test_moments_move_by_at_most_one():
    a, b = torch.meshgrid(*[torch.linspace(-1, 1, 401, dtype=torch.float64)] * 2, indexing="ij")
    moved = (a - b).square() / 4 + 0.65 * (a.square() - b.square()).square()
    assert moved.max() <= 1 + 1e-12
    assert math.isclose(moved.max().item(), 1.0)  # at -1 against 1: nothing is wasted


def test_standardisation_is_that_of_the_records_without_noise():
    u = 0.3 * torch.randn(5_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.2
    u = u.clamp(-1, 1)
    found = private_standardisation(u, noisy_steps(None, 5_000, "moments"))
    assert torch.allclose(found.mean, u.mean(0), atol=1e-3)
    assert torch.allclose(found.sd, u.std(0), atol=1e-3)


def test_a_quantile_is_within_its_rank_error():
    values = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    found = private_quantile(values, 0.3, 0.0, 1.0, 10, "centre", noisy_steps(1.0, 10_001, "centre"))
    # ten counts with noise sqrt(10) each: six standard deviations of a rank, and the last half-interval
    assert abs(found - 0.3) < 6 * math.sqrt(10) / 10_001 + 2**-10


def test_rotation_takes_correlations_away():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    z[:, 1] = 0.8 * z[:, 0] + 0.6 * z[:, 1]
    rotation = private_rotation(z, noisy_steps(None, 20_000, "correlations"))
    assert rotation is not None
    assert (torch.corrcoef((z @ rotation).T) - torch.eye(4)).abs().max() < 0.2  # from .8; clipped rows


def test_no_rotation_where_correlations_are_noise():
    z = torch.randn(300, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert private_rotation(z, noisy_steps(0.05, 300, "correlations")) is None


def test_curvatures_move_by_at_most_the_root_of_two():
    generator = torch.Generator().manual_seed(2)
    rows = torch.rand(100_000, 3, generator=generator, dtype=torch.float64) ** 4
    rows = rows / rows.norm(dim=1, keepdim=True)
    assert (rows[:50_000] - rows[50_000:]).norm(dim=1).max() <= math.sqrt(2) + 1e-12


def test_curvatures_are_means_and_stay_near_the_plan():
    psi = torch.randn(4_000, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weight, planned = 1 / psi.norm(dim=1), torch.full((3,), 0.5, dtype=torch.float64)
    found = private_curvatures(psi, weight, planned, 10.0, "c", noisy_steps(None, 4_000, "c"))
    assert torch.allclose(found, (psi.square() * weight[:, None]).mean(0), rtol=0.02)
    found = private_curvatures(psi, weight, planned, 1.0, "c", noisy_steps(1e-3, 4_000, "c"))
    assert bool((found >= planned / 2).all())
    assert bool((found <= 2.5 * planned).all())
