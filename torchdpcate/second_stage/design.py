"""The features of a block's records as a matrix that need not lie in memory."""

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.erm.conjugate_gradients import conjugate_gradients
from torchdpcate.errors import NumericalError
from torchdpcate.features.maps import FeatureMap, batches

_DENSE_NUMBERS = 2**27  # of a matrix of features that is kept: 1 GiB
_FACTORED = 8_192  # the largest matrix that is factored: 512 MiB
_MOST_ITERATIONS = 10_000  # of conjugate gradients
_RESOLVED = 1e-8  # a true relative residual that float64 resolves whatever the ridge


class Design(ABC):
    r"""Features Psi [n, p] of n records: products with Psi, with its transpose, and solves with its curvature.

    Memory is that of the smaller of a p by p and an n by n matrix, or of a few vectors where both are large.

    Attributes:
        shape: (n, p).
    """

    shape: tuple[int, int]

    @cached_property
    def kernel(self) -> Tensor:
        """Psi Psi', [n, n]; cached, because every step of a fit needs it."""
        return self._inner_products()

    @abstractmethod
    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the features of these records, [k, p]."""

    @abstractmethod
    def apply(self, theta: Tensor) -> Tensor:
        """Return Psi theta, [runs, n], for each row of theta [runs, p]."""

    @abstractmethod
    def adjoint(self, r: Tensor) -> Tensor:
        """Return Psi' r, [runs, p], for each row of r [runs, n]."""

    @abstractmethod
    def gram(self, weights: Tensor) -> Tensor:
        """Return Psi' diag(weights) Psi, [runs, p, p], for each row of weights [runs, n]."""

    @abstractmethod
    def _inner_products(self) -> Tensor:
        """Return Psi Psi', [n, n]."""

    def solve(self, weights: Tensor, ridge: float, rhs: Tensor, tolerance: float = 1e-6) -> Tensor:
        r"""Return (ridge I + Psi' diag(weights) Psi)^{-1} rhs, [runs, p].

        By a Cholesky factor of this matrix, or where p > n of the n by n one of Woodbury's identity; by conjugate
        gradients where both are too large to be factored. A factor that failed shows in the residual, which is
        the caller's to check.

        Args:
            weights: Of the records, not negative, [runs, n], or [1, n] for all runs.
            ridge: Positive.
            rhs: Right-hand sides, [runs, p].
            tolerance: Largest relative residual of conjugate gradients, where float64 resolves it.

        Raises:
            NumericalError: Conjugate gradients missed their tolerance.
        """
        n, p = self.shape
        if min(n, p) > _FACTORED:
            return self._conjugate_gradients(weights, ridge, rhs, tolerance)
        if p <= n:
            return _cholesky_solve(self.gram(weights), ridge, rhs)
        root = weights.sqrt()
        inner = _cholesky_solve(root[:, :, None] * self.kernel * root[:, None, :], ridge, root * self.apply(rhs))
        return (rhs - self.adjoint(root * inner)) / ridge

    def _conjugate_gradients(self, weights: Tensor, ridge: float, rhs: Tensor, tolerance: float) -> Tensor:
        def apply(V: Tensor, which: Tensor) -> Tensor:
            own = weights if len(weights) == 1 else weights[which]
            rows = V.T.contiguous()
            return (ridge * rows + self.adjoint(own * self.apply(rows))).T.contiguous()

        x, left = conjugate_gradients(apply, rhs.T, tolerance, _MOST_ITERATIONS)
        if not left <= max(tolerance, _RESOLVED):
            raise NumericalError(
                f"conjugate gradients left a relative residual of {left:.1e}, within {_MOST_ITERATIONS:,} steps: "
                "nothing is released; raise second_stage.ridge"
            )
        return x.T


class DenseDesign(Design):
    """Features in memory.

    Args:
        psi: Features, [n, p].

    Example:
        >>> design = DenseDesign(torch.tensor([[1.0, 2.0]]))
        >>> design.apply(torch.ones(1, 2)), design.adjoint(torch.ones(1, 1))
        (tensor([[3.]]), tensor([[1., 2.]]))
    """

    def __init__(self, psi: Tensor) -> None:
        self.psi, self.shape = psi, (psi.shape[0], psi.shape[1])

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the features of these records, [k, p]."""
        return self.psi[rows]

    def apply(self, theta: Tensor) -> Tensor:
        """Return Psi theta, [runs, n]."""
        return theta @ self.psi.T

    def adjoint(self, r: Tensor) -> Tensor:
        """Return Psi' r, [runs, p]."""
        return r @ self.psi

    def gram(self, weights: Tensor) -> Tensor:
        """Return Psi' diag(weights) Psi, [runs, p, p]."""
        return (self.psi.T * weights[:, None]) @ self.psi

    def _inner_products(self) -> Tensor:
        return self.psi @ self.psi.T


class LazyDesign(Design):
    """Features of a map, worked out anew in batches each time they are needed; never all at once.

    A map that knows a shorter way to a product takes it: with ``Tangent`` features no batch of them is ever formed.

    Args:
        features: The map, set up.
        x: Covariates of the records, [n, q].
    """

    def __init__(self, features: FeatureMap, x: Tensor) -> None:
        self.features, self.x, self.shape = features, x, (x.shape[0], features.dimension)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the features of these records, [k, p]."""
        return self.features(self.x[rows])

    def apply(self, theta: Tensor) -> Tensor:
        """Return Psi theta, [runs, n]."""
        return self.features.product(theta, self.x)

    def adjoint(self, r: Tensor) -> Tensor:
        """Return Psi' r, [runs, p]."""
        return self.features.adjoint(r, self.x)

    def gram(self, weights: Tensor) -> Tensor:
        """Return Psi' diag(weights) Psi, [runs, p, p]."""
        p = self.shape[1]
        total = weights.new_zeros(weights.shape[0], p, p)
        for part, some in zip(batches(self.x, p), batches(weights, p, 1), strict=True):
            psi = self.features(part)
            total += (psi.T * some[:, None]) @ psi
        return total

    def _inner_products(self) -> Tensor:
        return self.features.covariance(self.x, self.x)


def features_of(features: FeatureMap, x: Tensor) -> Tensor | Design:
    """Return the features of records x [n, q]: the matrix [n, p] if it is small enough to keep, else a design."""
    return features(x) if x.shape[0] * features.dimension <= _DENSE_NUMBERS else LazyDesign(features, x)


def _cholesky_solve(matrix: Tensor, ridge: float, rhs: Tensor) -> Tensor:
    """``(matrix + ridge I)^{-1} rhs`` for matrices [runs or 1, m, m], which are overwritten, and rhs [runs, m]."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(ridge)
    factor = torch.linalg.cholesky_ex(matrix).L
    if len(factor) == 1:
        return torch.cholesky_solve(rhs.T, factor[0]).T
    return torch.cholesky_solve(rhs[:, :, None], factor)[:, :, 0]
