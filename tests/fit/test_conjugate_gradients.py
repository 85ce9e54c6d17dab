"""Conjugate gradients: columns with matrices of their own, and what is left where there is no solution."""

import math

import pytest
import torch

from torchdpcate.fit.descent import conjugate_gradients

EIGENVALUES = torch.logspace(-3, 3, 40, dtype=torch.float64)


def matrix(seed: int, eigenvalues: torch.Tensor = EIGENVALUES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64, generator=generator)).Q
    return (Q * eigenvalues) @ Q.T


def sides(columns: int) -> torch.Tensor:
    return torch.randn(40, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def test_each_column_has_its_own_matrix_and_a_zero_column_none():
    matrices, B = torch.stack([matrix(k) for k in range(3)]), sides(3)
    B[:, 1] = 0.0
    requested = []

    def apply(V: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        requested.append(which.tolist())
        return (matrices[which] @ V.T[:, :, None])[:, :, 0].T

    X, left = conjugate_gradients(apply, B, 1e-9, 5_000)
    assert left <= 1e-9
    assert X[:, 1].tolist() == [0.0] * 40
    assert requested[0] == [0, 2]
    for k in (0, 2):
        assert float((matrices[k] @ X[:, k] - B[:, k]).norm() / B[:, k].norm()) <= 1e-9


def exact(A: torch.Tensor, count: list[int]):
    def apply(V: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        assert V.dtype == torch.float64
        count[0] += 1
        return A @ V

    return apply


def in_float32(A: torch.Tensor, count: list[int]):
    def rough(V: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        assert V.dtype == torch.float32
        count[0] += 1
        return A.float() @ V

    return rough


def test_float32_products_with_float64_residuals_reach_the_true_residual_of_float64():
    """Columns as small as float32 does not hold, and one of zeros, among them."""
    A, count, quick = matrix(0, torch.logspace(-3, 0, 40, dtype=torch.float64)), [0], [0]
    B = sides(4) * torch.tensor([1.0, 1e-60, 0.0, 1e60], dtype=torch.float64)
    X, left = conjugate_gradients(exact(A, count), B, 1e-10, 5_000, rough=in_float32(A, quick))
    assert left <= 1e-10
    norms = B.norm(dim=0).clamp(min=1e-300)
    assert float(((B - A @ X).norm(dim=0) / norms).amax()) <= 1.01e-10
    assert X[:, 2].tolist() == [0.0] * 40
    assert quick[0] > 10 * count[0]


def test_what_float32_cannot_solve_is_left_to_float64():
    """Eigenvalues of 1e-9 are lost in float32 products."""
    A, count, quick = matrix(0, torch.logspace(-9, 0, 40, dtype=torch.float64)), [0], [0]
    _, left = conjugate_gradients(exact(A, count), sides(2), 1e-5, 5_000, rough=in_float32(A, quick))
    assert left <= 1e-5
    assert quick[0] > 0


@pytest.mark.parametrize("broken", ["indefinite", "not a number"])
@pytest.mark.parametrize("rough", [False, True])
def test_a_matrix_that_is_not_positive_definite_never_looks_solved(broken, rough):
    A = torch.diag(torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64))
    A = torch.full_like(A, math.nan) if broken == "not a number" else A
    B = torch.ones(3, 1, dtype=torch.float64)
    products = in_float32(A, [0]) if rough else None
    assert not conjugate_gradients(exact(A, [0]), B, 1e-9, 100, rough=products)[1] <= 1e-9


def test_direction_without_curvature_is_shown_by_exact_products_alone():
    A, seen = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)), []
    B = torch.tensor([[0.1], [1.0]], dtype=torch.float64)
    look = lambda curvature: seen.append(curvature)  # noqa: E731
    conjugate_gradients(exact(A, [0]), B, 1e-9, 100, rough=in_float32(A, [0]), look=look)
    assert min(c.min().item() for c in seen) < 0
    assert all(c.dtype == torch.float64 for c in seen)
