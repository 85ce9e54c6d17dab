"""Heads with known answers: the worked examples of the theory note, and small networks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.neural import NeuralHead, _trust_region


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def box(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


@dataclass
class Head:
    """A model with its records, ridge, queries and parameters."""

    model: object
    x: Tensor
    s: Tensor
    w: Tensor
    ridge: float
    queries: Tensor
    theta: Tensor

    def objective(self, theta: Tensor) -> Tensor:
        return ((self.s - self.w * self.model(theta, self.x)) ** 2).mean() + self.ridge * (theta @ theta)

    def influence(self, **options) -> InfluenceFunction:
        return InfluenceFunction(self.model, self.theta, self.x, self.s, self.w, self.ridge, self.queries, **options)


class LinearHead(Head):
    """f = psi(x)' theta at its minimiser; `A` is half the Hessian."""

    def __init__(self, psi, x: Tensor, s: Tensor, w: Tensor, ridge: float, queries: Tensor):
        V = w[:, None] * psi(x)
        self.psi = psi
        self.A = V.T @ V / len(x) + ridge * torch.eye(V.shape[1], dtype=torch.float64)
        theta = torch.linalg.solve(self.A, V.T @ s / len(x))
        super().__init__(lambda theta, x: psi(x) @ theta, x, s, w, ridge, queries, theta)

    def closed_form(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """``J A^{-1} [w (s - w f) psi - ridge theta]``, [B, d]."""
        psi = self.psi(x)
        moved = (w * (s - w * (psi @ self.theta)))[:, None] * psi - self.ridge * self.theta
        return torch.linalg.solve(self.A, moved.T).T @ self.psi(self.queries).T


def random_linear_head(n: int = 60, p: int = 7, d: int = 4, ridge: float = 0.05, seed: int = 0) -> LinearHead:
    return LinearHead(
        lambda x: x,
        draws(n, p, seed=seed),
        draws(n, seed=seed + 1),
        box(n, seed=seed + 2),
        ridge,
        draws(d, p, seed=seed + 3),
    )


def circle_head() -> LinearHead:
    """Test value 5 of the theory note."""
    t = real(0, 0.7, 1.9, 2.6)
    s, w = real(0.5, -0.8, 0.9, 0.3), real(0.6, -0.4, 0.9, -0.7)
    return LinearHead(lambda x: torch.cat([x.cos(), x.sin()], 1), t[:, None], s, w, 0.05, real(0.3, 1.1)[:, None])


def kernel_head() -> LinearHead:
    """Test value 8: kernel ridge regression written with finite features.

    The features span the kernel at records and queries, where all that follows is exact.
    """
    x, queries = real(0.1, 0.35, 0.5, 0.8, 0.95)[:, None], real(0.2, 0.6)[:, None]
    rho, phi = real(0.25, 0.16, 0.36, 0.09, 0.49), real(1, -0.5, 0.75, 2, -1)
    landmarks = torch.cat([x, queries])

    def kernel(left: Tensor, right: Tensor) -> Tensor:
        return torch.exp(-((left - right.T) ** 2) / (2 * 0.3**2))

    L = torch.linalg.cholesky(kernel(landmarks, landmarks))

    def psi(x: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(L, kernel(landmarks, x), upper=False).T

    w = rho.sqrt()
    return LinearHead(psi, x, w * phi, w, 0.05, queries)


def neural_head(n: int = 50, q: int = 3, width: int = 4, depth: int = 2, ridge: float = 0.05) -> Head:
    """A small polished tanh network."""
    start = torch.Generator().manual_seed(3)
    net = NeuralHead(Domain([-1.0] * q, [1.0] * q, 0, 1), width, depth, ridge, generator=start)
    x, w = box(n, q, seed=4), box(n, seed=5)
    s = w * (torch.sin(3 * x[:, 0]) + 2 * x[:, -1]) + 0.1 * draws(n, seed=6)
    head = Head(net.functional, x, s, w, ridge, box(5, q, seed=7), net.theta.detach())
    head.theta, _ = _trust_region(head.objective, head.theta, 1e-12, 200)
    return head


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
