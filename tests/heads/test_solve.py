import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.heads.cases import draws, relative
from torchdpcate.errors import NumericalError
from torchdpcate.heads.influence import HessianVectorProduct, solve_by_products, solve_densely

SOLVERS = [solve_densely, solve_by_products]


def quadratic(eigenvalues: torch.Tensor, seed: int = 0) -> tuple[HessianVectorProduct, torch.Tensor]:
    """Products with a matrix of these eigenvalues, and the matrix."""
    p = len(eigenvalues)
    Q, _ = torch.linalg.qr(draws(p, p, seed=seed))
    H = (Q * eigenvalues) @ Q.T
    return HessianVectorProduct(lambda t: t @ (H @ t) / 2, draws(p)), (H + H.T) / 2


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    decades=st.floats(0, 4),
    columns=st.integers(1, 5),
)
def test_solves_as_dense_linear_algebra_does(solver, seed, decades, columns):
    product, H = quadratic(torch.logspace(-decades, 0, 12, dtype=torch.float64), seed)
    B = draws(12, columns, seed=seed + 1)
    X = solver(product, B)
    assert relative(H @ X, B) < 1e-9
    assert relative(X, torch.linalg.solve(H, B)) < 1e-5


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("smallest", [-1.0, -1e-3])
def test_negative_curvature_stops_and_names_the_ridge(solver, smallest):
    product, _ = quadratic(torch.tensor([smallest, 0.5, 1.0, 2.0], dtype=torch.float64))
    with pytest.raises(NumericalError, match="ridge"):
        solver(product, draws(4, 2))


def test_too_few_iterations_miss_the_tolerance():
    product, _ = quadratic(torch.logspace(-4, 0, 30, dtype=torch.float64))
    with pytest.raises(NumericalError, match=r"relative residual .*ridge"):
        solve_by_products(product, draws(30, 1), max_iterations=3)


def test_a_wrong_dense_hessian_is_not_believed_when_it_is_not_finite():
    class Broken(HessianVectorProduct):
        def dense(self):
            return super().dense() * float("nan")

    with pytest.raises(NumericalError):
        solve_densely(Broken(lambda t: t @ t, draws(3)), draws(3, 1))
