"""Tangent features against autograd, their products against the matrix, and the fits and releases made of them."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.func import functional_call, grad, vmap

from tests.release.helpers import Charges
from tests.sessions import noted
from torchdpcate.causal.score import RScore
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.perturbation import ObjectivePerturbation, OutputPerturbation
from torchdpcate.fit.nuisance_kinds import AveragedNuisances, Nuisances
from torchdpcate.fit.tangent_features import Tangent
from torchdpcate.heads.stage import LinearStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([-1.0, 10.0, 0.0], [3.0, 20.0, 1.0], -1.0, 3.0, overlap=0.1)
BUDGET = PrivacyBudget(1.0, 1e-5)


def nuisances(width: int = 7, seed: int = 0, domain: Domain = DOMAIN) -> Nuisances:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Nuisances(domain, width=width).double().requires_grad_(False)


def features(width: int = 7, domain: Domain = DOMAIN) -> Tangent:
    return Tangent().setup(domain, nuisances(width, domain=domain))


def autograd(eta: Nuisances, x: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Gradients [B, p] of the effect before its outputs are clipped to the outcome's bounds, by torch.func."""
    parameters = dict(eta.outcome.named_parameters())

    def effect(parameters, x):
        means = functional_call(eta.outcome, parameters, (eta.scaled(x[None]),))[0]
        return share * (means[1] - means[0])

    gradients = vmap(partial(grad(effect), parameters))(x)
    return torch.cat([gradients[name].flatten(1) for name in parameters], 1)


def stage(width: int = 7, n: int = 60, threshold: float = 0.2, domain: Domain = DOMAIN, ridge: float = 0.01):
    eta, score = nuisances(width, domain=domain), RScore()
    generator = torch.Generator().manual_seed(2)
    low, high = domain.covariate_low, domain.covariate_high
    x = low + torch.rand(n, len(low), generator=generator, dtype=torch.float64) * (high - low)
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = domain.clip_outcome(a * x[:, 0] + torch.rand(n, generator=generator, dtype=torch.float64) - 0.5)

    def regression(x, a, y):
        values = eta.predict(x)
        return score.regression(a, y, values, values.mu1 - values.mu0)

    s, w = regression(x, a, y)
    block = SecondStageBlock(x, s, w, regression, domain, score.bounds(domain))
    return LinearStage(block, Tangent().setup(domain, eta), ridge, threshold)


@pytest.mark.parametrize("width", [0, 1, 7])
def test_features_are_autograds_gradient_clipped(width):
    eta, x = nuisances(width), DOMAIN.grid(40)
    gradient = autograd(eta, x)
    expected = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1)
    psi = Tangent().setup(DOMAIN, eta)
    torch.testing.assert_close(psi(x), expected, rtol=1e-12, atol=1e-14)
    assert psi.dimension == expected.shape[1] == sum(p.numel() for p in eta.outcome.parameters())


def test_a_mean_that_leaves_the_outcomes_bounds_still_has_a_gradient():
    eta = nuisances()
    with torch.no_grad():
        eta.outcome.net[-1].bias.fill_(9.0)
    values = eta.predict(DOMAIN.grid(10))
    assert bool((values.mu1 == DOMAIN.outcome_high).all())
    psi = Tangent().setup(DOMAIN, eta)(DOMAIN.grid(10))
    torch.testing.assert_close(psi.norm(dim=1), torch.ones(10, dtype=torch.float64))
    assert psi[:, : 7 * 3].abs().max().item() > 0.01


def test_of_averaged_nuisances_the_gradient_is_that_of_the_mean_effect():
    pair, x = [nuisances(5, seed) for seed in (0, 1)], DOMAIN.grid(20)
    gradient = torch.cat([autograd(eta, x, 0.5) for eta in pair], 1)
    psi = Tangent().setup(DOMAIN, AveragedNuisances(pair))
    expected = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(psi(x), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(psi.covariance(x, x[:3]), expected @ expected[:3].T, rtol=1e-12, atol=1e-14)
    assert psi.twin(AveragedNuisances(pair)).dimension == psi.dimension


@pytest.mark.parametrize("width", [0, 7])
def test_products_without_the_matrix_are_those_with_it(width, monkeypatch):
    monkeypatch.setattr("torchdpcate.fit.tangent_features._LEAST_ROWS", 3)
    monkeypatch.setattr("torchdpcate.fit.tangent_features._KERNEL_ROWS", 4)
    monkeypatch.setattr("torchdpcate.fit.feature_maps._CHUNK_ELEMENTS", 3)
    psi, x, y, generator = features(width), DOMAIN.grid(10), DOMAIN.grid(14)[10:], torch.Generator().manual_seed(0)
    matrix = psi(x)
    theta = torch.randn(2, psi.dimension, dtype=torch.float64, generator=generator)
    r = torch.randn(2, 10, dtype=torch.float64, generator=generator)
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-13)
    close(psi.product(theta, x), theta @ matrix.T)
    close(psi.product(theta[0], x), matrix @ theta[0])
    close(psi.adjoint(r, x), r @ matrix)
    close(psi.norm(x), matrix.norm(dim=1))
    close(psi.covariance(x, y), matrix @ psi(y).T)


def test_a_linear_network_gives_ridge_regression_on_intercept_and_covariates():
    """Squared loss; the features are (1, x) of norm one, but for a rotation."""
    fitted = stage(width=0, threshold=math.inf)
    z = torch.cat([torch.ones(60, 1, dtype=torch.float64), DOMAIN.scale(fitted.block.x)], 1)
    v = fitted.block.w[:, None] * z / z.norm(dim=1, keepdim=True)
    model = Ridge(alpha=60 * fitted.ridge, fit_intercept=False, tol=1e-14).fit(v.numpy(), fitted.block.s.numpy())
    queries = DOMAIN.grid(9)
    q = torch.cat([torch.ones(9, 1, dtype=torch.float64), DOMAIN.scale(queries)], 1)
    expected = (q / q.norm(dim=1, keepdim=True)).numpy() @ model.coef_
    np.testing.assert_allclose(fitted.correction(queries).numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("mechanism", [OutputPerturbation(), ObjectivePerturbation()])
def test_function_mechanisms_release_the_tangent_head(mechanism):
    """p = 1,058, more than the records: the default network on 30 covariates."""
    domain = Domain([-1.0] * 30, [1.0] * 30, -1.0, 1.0, overlap=0.1)
    fitted = stage(width=32, n=200, domain=domain, ridge=0.1)
    assert fitted.features.dimension == 1_058
    head = mechanism.privatize(fitted, BUDGET, noted(NoiseSource.fixed(0), Charges()))
    queries = domain.grid(200)
    noise = fitted.features.product(head.output - fitted.theta, queries)
    assert 0 < noise.square().mean().sqrt().item() < 2 * head.noise_scale


def test_nuisances_without_a_network_are_refused():
    for missing in (None, torch.nn.Linear(1, 1)):
        with pytest.raises(InputError, match="needs the learner's trained outcome network"):
            Tangent().setup(DOMAIN, missing)
    deep = nuisances()
    deep.outcome.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    with pytest.raises(InputError, match="one hidden layer or none"):
        Tangent().setup(DOMAIN, deep)
