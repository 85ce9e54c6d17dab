"""Solves with the curvature of a linear head."""

import math

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.heads import linear
from torchdpcate.heads.linear import LinearProblem, solve

DOMAIN = Domain([-1.0, 0.0], [1.0, 5.0], 0.0, 1.0)


def features(pairs: int = 4) -> torch.Tensor:
    return Fourier(pairs, bandwidth=0.7).setup(DOMAIN)(DOMAIN.grid(50))


def problem(psi, threshold: float = math.inf) -> LinearProblem:
    generator = torch.Generator().manual_seed(1)
    s = torch.randn(50, dtype=torch.float64, generator=generator).clamp(-1, 1)
    w = torch.rand(50, dtype=torch.float64, generator=generator) * 1.8 - 0.9
    return LinearProblem(psi, s, w, 0.02, 0.9, 1.0, threshold)


@pytest.mark.parametrize("pairs", [4, 40])  # fewer and more features than records
def test_solves_leave_no_residual(pairs):
    generator = torch.Generator().manual_seed(0)
    made = problem(features(pairs))
    rhs = torch.randn(3, 2 * pairs, dtype=torch.float64, generator=generator)
    weights = torch.rand(3, 50, dtype=torch.float64, generator=generator) * torch.tensor([[1.0], [0.0], [3.0]])
    weights[0, :20] = 0.0  # records beyond the Huber threshold
    x = made.solve(weights, rhs)
    torch.testing.assert_close(made.solve(weights[:1], rhs), made.solve(weights[:1].expand(3, -1), rhs))
    A = (made.psi.T * weights[:, None]) @ made.psi + made.ridge * torch.eye(2 * pairs, dtype=torch.float64)
    residual = (A @ x[:, :, None])[:, :, 0] - rhs
    assert (residual.norm(dim=1) / rhs.norm(dim=1)).max().item() < 1e-10


def test_the_curvature_is_solved_with():
    found, rhs = problem(features()), torch.eye(8, dtype=torch.float64)[:2]
    torch.testing.assert_close(found.solve_curvature(rhs), torch.linalg.inv(found.curvature)[:2], rtol=1e-9, atol=1e-9)


def test_a_factor_that_is_spoilt_does_not_spoil_the_fit(monkeypatch):
    """The factor is not checked where it is made; the gradient of what is returned is, and other steps are taken."""
    expected = solve(problem(features())).theta
    monkeypatch.setattr(linear, "_cholesky_solve", lambda matrix, ridge, rhs: torch.full_like(rhs, math.nan))
    torch.testing.assert_close(solve(problem(features())).theta, expected, rtol=0, atol=1e-8)
