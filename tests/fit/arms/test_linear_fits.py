"""Ridge and logistic fits against scikit-learn, and neighbours' fits against fits from the beginning."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from torchdpcate.errors import NumericalError
from torchdpcate.fit.arms.linear_fits import (
    ArmCoefficients,
    CoefficientBlock,
    LogisticFits,
    RidgeFits,
    gradient_norms,
)


def block(m: int, arms: int, seed: int = 0, p: int = 4) -> CoefficientBlock:
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(m, p, generator=generator, dtype=torch.float64)
    psi /= psi.norm(dim=1, keepdim=True)
    z = torch.rand(m, generator=generator, dtype=torch.float64) - 0.5
    return CoefficientBlock(psi, z, torch.randint(arms, (m,), generator=generator), arms)


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_fits_are_those_of_another_library(arms):
    records, ridge = block(300, arms), 0.01
    found = RidgeFits(records, ridge).fit()
    for arm in range(arms):
        own = records.arm == arm
        other = Ridge(alpha=300 * ridge, fit_intercept=False).fit(records.psi[own].numpy(), records.z[own].numpy())
        np.testing.assert_allclose(found[arm].numpy(), other.coef_, rtol=1e-9)
    logits = LogisticFits(records, ridge, 1e-13).fit()
    other = LogisticRegression(C=1 / (300 * ridge), fit_intercept=False, tol=1e-12, max_iter=10_000)
    np.testing.assert_allclose(logits.numpy(), other.fit(records.psi.numpy(), records.arm.numpy()).coef_, atol=1e-6)


@pytest.mark.parametrize("arms", [2, 3])
def test_gradient_norms_are_the_derivatives_of_the_objectives(arms):
    records, ridges = block(50, arms), (0.1, 0.2)
    means = torch.randn(arms, 4, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(1 if arms == 2 else arms, 4, dtype=torch.float64, requires_grad=True)
    u = records.psi @ logits.T
    full = torch.cat([torch.zeros_like(u), u], 1) if arms == 2 else u
    own = (records.psi @ means.T).gather(1, records.arm[:, None])[:, 0]
    outcome = ((records.z - own) ** 2).mean() / 2 + ridges[0] / 2 * means.square().sum()
    propensity = torch.nn.functional.cross_entropy(full, records.arm) + ridges[1] / 2 * logits.square().sum()
    (outcome + propensity).backward()
    expected = [means.grad.norm(dim=1).max().item(), logits.grad.norm().item()]
    found = gradient_norms(records, ArmCoefficients(means.detach(), logits.detach()), *ridges)
    assert found.tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("arms", [2, 4])
def test_refits_are_fits_of_the_neighbours(arms):
    records, new = block(120, arms), block(30, arms, seed=1)
    index = torch.randint(120, (30,), generator=torch.Generator().manual_seed(2))
    means = RidgeFits(records, 0.05).refit(index, new)
    logits = LogisticFits(records, 0.05, 1e-12).refit(index, new)
    for run in (0, 7, 29):
        psi, z, arm = records.psi.clone(), records.z.clone(), records.arm.clone()
        psi[index[run]], z[index[run]], arm[index[run]] = new.psi[run], new.z[run], new.arm[run]
        neighbour = CoefficientBlock(psi, z, arm, arms)
        torch.testing.assert_close(means[run], RidgeFits(neighbour, 0.05).fit(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(logits[run], LogisticFits(neighbour, 0.05, 1e-12).fit(), rtol=0, atol=1e-10)


def test_refits_in_batches_are_the_same(monkeypatch):
    records, new, index = block(120, 3), block(30, 3, seed=1), torch.arange(30)
    whole = LogisticFits(records, 0.05, 1e-12).refit(index, new)
    monkeypatch.setattr("torchdpcate.fit.arms.linear_fits._NUMBERS", 120 * 3 * 7)
    torch.testing.assert_close(LogisticFits(records, 0.05, 1e-12).refit(index, new), whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize("arms", [2, 4])
def test_a_fit_ends_where_newton_steps_do_not(arms, monkeypatch):
    """A refusal would tell something of the records: gradient steps finish, as many as public facts bound."""
    records, new = block(60, arms), block(2, arms, seed=1)
    fits = LogisticFits(records, 0.01, 1e-12)
    index = torch.arange(2)
    found = fits.fit(), fits.refit(index, new)
    monkeypatch.setattr("torchdpcate.fit.descent._MOST_STEPS", 0)
    fits = LogisticFits(records, 0.01, 1e-12)
    for one, other in zip(found, (fits.fit(), fits.refit(index, new)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_a_tolerance_finer_than_numbers_can_tell_releases_nothing(monkeypatch):
    monkeypatch.setattr("torchdpcate.fit.descent._MOST_STEPS", 8)
    with pytest.raises(NumericalError, match=r"nothing is released; raise propensity_ridge"):
        LogisticFits(block(50, 2), 0.1, 1e-30).fit()
