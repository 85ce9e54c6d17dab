"""Designs that lie in memory and designs that do not: the same products, solves and fits."""

import math

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.heads import linear
from torchdpcate.heads.linear import DenseDesign, LazyDesign, LinearProblem, features_of, solve, solve_perturbed

DOMAIN = Domain([-1.0, 0.0], [1.0, 5.0], 0.0, 1.0)


def pair(n: int = 50, pairs: int = 4) -> tuple[DenseDesign, LazyDesign]:
    psi, x = Fourier(pairs, bandwidth=0.7).setup(DOMAIN), DOMAIN.grid(n)
    return DenseDesign(psi(x)), LazyDesign(psi, x)


def problem(psi, threshold: float = math.inf) -> LinearProblem:
    generator = torch.Generator().manual_seed(1)
    s = torch.randn(50, dtype=torch.float64, generator=generator).clamp(-1, 1)
    w = torch.rand(50, dtype=torch.float64, generator=generator) * 1.8 - 0.9
    return LinearProblem(psi, s, w, 0.02, 0.9, 1.0, threshold)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("torchdpcate.fit.feature_maps._CHUNK_ELEMENTS", 160)  # 20 records of 8 features, 2 of 80


@pytest.mark.usefixtures("small_batches")
def test_products_in_batches_are_those_of_the_matrix():
    dense, lazy = pair()
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 8, dtype=torch.float64, generator=generator)
    r = torch.rand(3, 50, dtype=torch.float64, generator=generator)
    assert dense.shape == lazy.shape == (50, 8)
    for name, argument in (("apply", theta), ("adjoint", r), ("gram", r)):
        torch.testing.assert_close(getattr(lazy, name)(argument), getattr(dense, name)(argument), msg=name)
    torch.testing.assert_close(lazy.kernel, dense.kernel)
    torch.testing.assert_close(lazy[2:5], dense[2:5])
    torch.testing.assert_close(dense.gram(r)[1], dense.psi.T @ torch.diag(r[1]) @ dense.psi)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("pairs", [4, 40])  # fewer and more features than records
def test_solves_leave_no_residual(lazy, pairs):
    generator = torch.Generator().manual_seed(0)
    made = pair(pairs=pairs)[lazy]
    rhs = torch.randn(3, 2 * pairs, dtype=torch.float64, generator=generator)
    weights = torch.rand(3, 50, dtype=torch.float64, generator=generator) * torch.tensor([[1.0], [0.0], [3.0]])
    weights[0, :20] = 0.0  # records beyond the Huber threshold
    x = made.solve(weights, 0.03, rhs)
    shared = made.solve(weights[:1], 0.03, rhs)
    torch.testing.assert_close(shared, made.solve(weights[:1].expand(3, -1), 0.03, rhs))
    psi = made[:]
    A = (psi.T * weights[:, None]) @ psi + 0.03 * torch.eye(2 * pairs, dtype=torch.float64)
    residual = (A @ x[:, :, None])[:, :, 0] - rhs
    assert (residual.norm(dim=1) / rhs.norm(dim=1)).max().item() < 1e-10


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("threshold", [0.1, math.inf])
def test_fits_do_not_depend_on_where_the_features_lie(threshold):
    dense, lazy = pair()
    expected = solve(problem(dense.psi, threshold))
    linear_terms = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.1
    perturbed = solve_perturbed(problem(dense.psi, threshold), linear_terms)
    found = problem(lazy, threshold)
    torch.testing.assert_close(solve(found).theta, expected.theta, rtol=1e-8, atol=1e-9)
    assert solve(found).gradient_norm <= found.tolerance
    torch.testing.assert_close(solve_perturbed(found, linear_terms), perturbed, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.v, problem(dense.psi).v)
    torch.testing.assert_close(found.curvature, problem(dense.psi).curvature)
    rhs = torch.eye(8, dtype=torch.float64)[:2]
    torch.testing.assert_close(found.solve_curvature(rhs), torch.linalg.inv(found.curvature)[:2], rtol=1e-9, atol=1e-9)


def test_a_factor_that_is_spoilt_does_not_spoil_the_fit(monkeypatch):
    """The factor is not checked where it is made; the gradient of what is returned is, and other steps are taken."""
    expected = solve(problem(pair()[0].psi)).theta
    monkeypatch.setattr(linear, "_cholesky_solve", lambda matrix, ridge, rhs: torch.full_like(rhs, math.nan))
    torch.testing.assert_close(solve(problem(pair()[0].psi)).theta, expected, rtol=0, atol=1e-8)


def test_small_matrices_are_kept_and_large_ones_are_not(monkeypatch):
    _, lazy = pair()
    assert isinstance(features_of(lazy.features, lazy.x), torch.Tensor)
    monkeypatch.setattr(linear, "_DENSE_NUMBERS", 50 * 8 - 1)
    assert isinstance(features_of(lazy.features, lazy.x), LazyDesign)
