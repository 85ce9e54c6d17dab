"""Regressions of more than two arms: against those of two, their sensitivities, and their plan."""

import math

import pytest
import torch

from torchdpcate.composition.regressions import arms_fit, centred_arms, effect_fit
from torchdpcate.fit.weighted_basis import simplex


def drawn(n: int, arms: int) -> tuple[torch.Tensor, ...]:
    """Features, residuals, arms and probabilities."""
    random = torch.Generator().manual_seed(arms)
    psi = torch.randn(n, 4, generator=random, dtype=torch.float64)
    residual = 3 * torch.randn(n, generator=random, dtype=torch.float64)
    pi = torch.rand(n, arms, generator=random, dtype=torch.float64) + 0.05
    a = torch.randint(arms, (n,), generator=random)
    return psi, residual, a, pi / pi.sum(1, keepdim=True)


def test_two_arms_are_the_effect():
    psi, residual, a, pi = drawn(50, 2)
    found = arms_fit(psi, residual, centred_arms(simplex(2), pi), a, 1.5)
    expected = effect_fit(psi, residual, a - pi[:, 1], pi[:, 1], 1.5)
    for name in ("predictors", "weights", "targets"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-14)


@pytest.mark.parametrize("arms", [3, 5])
def test_no_gradient_is_larger_than_the_clip(arms):
    psi, residual, a, pi = drawn(2_000, arms)
    fit = arms_fit(psi, residual, centred_arms(simplex(arms), pi), a, 1.5)
    scores = fit.predictors @ torch.ones(fit.predictors.shape[1], dtype=torch.float64)
    norms = (fit.predictors * (fit.weights * fit.pulls(scores))[:, None]).norm(dim=1)
    assert 1.4 < float(norms.max()) <= 1.5 * (1 + 1e-12)


@pytest.mark.parametrize("arms", [3, 6])
def test_no_replaced_record_moves_the_gradient_further_than_two_clips(arms):
    """The worst of many pairs attains what two arms cost: K - 1 blocks cost no more."""
    random = torch.Generator().manual_seed(arms)
    n, clip = 4_000, 1.5
    psi = torch.randn(n, 2, generator=random, dtype=torch.float64)
    psi[: n // 2, 1] = 0  # alike but for arm and residual
    residual = 1e6 * torch.sign(torch.randn(n, generator=random, dtype=torch.float64))
    pi = torch.softmax(3 * torch.randn(n, arms, generator=random, dtype=torch.float64), 1)
    a = torch.randint(arms, (n,), generator=random)
    fit = arms_fit(psi, residual, centred_arms(simplex(arms), pi), a, clip)
    pulls = fit.pulls(torch.zeros(n, dtype=torch.float64))
    gradients = fit.predictors * (fit.weights * pulls)[:, None]
    assert 1.99 * clip < float(torch.cdist(gradients, gradients).max()) <= 2 * clip * (1 + 1e-12)
    own = torch.nn.functional.one_hot(a, arms) - pi
    d = centred_arms(simplex(arms), pi)[torch.arange(n), a]
    assert torch.allclose(d.norm(dim=1), own.norm(dim=1) / math.sqrt(2))
    assert float(own.norm(dim=1).max()) <= math.sqrt(2)
