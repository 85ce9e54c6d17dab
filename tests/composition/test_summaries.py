"""Private quantiles, moments, correlations and curvatures: what one record moves, and what comes out."""

import math
from dataclasses import replace

import torch

from tests.composition.cases import Given, rows
from torchdpcate import PrivacyBudget
from torchdpcate.composition.steps import NoisySteps, Shares
from torchdpcate.composition.summaries import Moments, private_curvatures, private_standardisation, quantile_of, sizes
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession


def noisy_steps(epsilon, n, *names):
    shares = Shares(200.0 if epsilon is None else epsilon, dict.fromkeys(names, 1 / len(names)))
    session = FitSession.open({"records": n}, PrivacyBudget(1e6, 0.5), NoiseSource.fixed(3))
    return NoisySteps(session.charging(["records"], Charge(Purpose.RELEASE, "composed")), shares)


def test_standardisation_is_that_of_the_records_without_noise():
    u = 0.3 * torch.randn(5_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.2
    u = u.clamp(-1, 1)
    found = private_standardisation(rows(u), Moments(), noisy_steps(None, 5_000, "moments"))
    assert torch.allclose(found.mean, u.mean(0), atol=1e-3)
    assert torch.allclose(found.sd, u.std(0), atol=1e-3)


def test_a_quantile_is_within_its_rank_error():
    values = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    counted = rows(values[:, None]).then(lambda batch: replace(batch, y=values))
    found = quantile_of(counted, sizes, 0.3, 0.0, 1.0, 10, "centre", noisy_steps(1.0, 10_001, "centre"))
    # ten counts with noise sqrt(10) each: six standard deviations of a rank, and the last half-interval
    assert abs(found - 0.3) < 6 * math.sqrt(10) / 10_001 + 2**-10


def test_curvatures_are_means_and_stay_near_the_plan():
    psi = torch.randn(4_000, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    psi[:, 2] = 0.8 * psi[:, 1] + 0.6 * psi[:, 2]
    weight, planned = 1 / psi.norm(dim=1), torch.full((3,), 0.5, dtype=torch.float64)
    found = private_curvatures(rows(psi, weight), Given(norm=10.0), planned, "c", noisy_steps(None, 4_000, "c"))
    assert torch.allclose(found, psi.T @ (weight[:, None] * psi) / 4_000, rtol=0.05, atol=0.02)
    found = private_curvatures(rows(psi, weight), Given(), planned, "c", noisy_steps(1e-3, 4_000, "c"))
    assert torch.equal(found, found.diagonal().diag())  # correlations are lost in the noise
    assert bool((found.diagonal() >= planned / 2).all())
    assert bool((found.diagonal() <= 2.5 * planned).all())


def test_strong_correlations_of_many_features_stand_out_of_the_noise():
    generator = torch.Generator().manual_seed(4)
    psi = torch.randn(50_000, 20, generator=generator, dtype=torch.float64)
    psi[:, 1:6] = 0.9 * psi[:, :1] + math.sqrt(0.19) * psi[:, 1:6]
    psi = psi / math.sqrt(20)
    truth = psi.T @ psi / 50_000
    ones, planned = torch.ones(50_000).double(), torch.full((20,), 0.05).double()
    found = private_curvatures(rows(psi, ones), Given(norm=5.0), planned, "c", noisy_steps(0.1, 50_000, "c"))
    assert (found - truth).norm() < 0.3 * (truth - truth.diagonal().diag()).norm()
