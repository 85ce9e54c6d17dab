"""The linear system of weighted kernel ridge regression: in memory with a factor, or by products alone."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from torchdpcate.erm.conjugate_gradients import conjugate_gradients
from torchdpcate.errors import NumericalError

_BLOCK_ELEMENTS = 2**20  # of the kernel at once: 8 MiB, so that all passes over a block find it in the cache
_CHANGED_SHARE = 0.05  # of the factored records: beyond it a new factor takes less time than an update
_LANDMARKS = 512  # rank of the preconditioner
_LANDMARK_JITTER = 1e-8  # of a preconditioner alone: it changes how long a solve takes and nothing else
_CG_STEPS = 5_000
_CG_TOLERANCE = 1e-10  # relative, of the true residual

Between = Callable[[Tensor, Tensor], Tensor]
"""(z [m, q], z' [k, q]) -> the kernel, [m, k]."""


class DualSystem(ABC):
    """The matrix shift I + G with G = W K W, W = diag(w), and its restrictions to some records.

    Args:
        between: The kernel.
        z: Covariates in the kernel's units, [n, q].
        w: Weights, [n]; zeros and both signs are welcome.
        shift: n lambda, positive.
    """

    def __init__(self, between: Between, z: Tensor, w: Tensor, shift: float) -> None:
        self.between, self.z, self.w, self.shift = between, z, w, shift

    @abstractmethod
    def product(self, V: Tensor) -> Tensor:
        """Return G V, [n, k]."""

    @abstractmethod
    def solve(self, B: Tensor, active: Tensor) -> Tensor:
        """Return X [n, k] with (shift I + G) X = B on the active records alone, and X = B / shift at the others.

        Raises:
            NumericalError: The matrix is not positive definite in float64, or a tolerance was missed.
        """

    def norm(self, v: Tensor) -> float:
        """Return the norm of sum v_i w_i K(x_i, .) in the Hilbert space."""
        return math.sqrt(max(float(v @ self.product(v[:, None])[:, 0]), 0.0))

    def _cholesky(self, matrix: Tensor) -> Tensor:
        L, failed_at = torch.linalg.cholesky_ex(matrix)
        if int(failed_at) != 0:
            raise NumericalError(
                f"the kernel matrix is not positive definite in float64, even with n ridge = {self.shift:.1e} on its "
                f"diagonal (leading minor {int(failed_at)} of {len(matrix)}): raise second_stage.ridge"
            )
        return L

    def _rows(self) -> list[slice]:
        size = max(1, _BLOCK_ELEMENTS // len(self.z))
        return [slice(first, first + size) for first in range(0, len(self.z), size)]


class DenseSystem(DualSystem):
    """The matrix in memory, with one Cholesky factor: time n^3 / 3, memory of two matrices.

    Newton's method asks for many sets of active records that differ by few. Those that came border the factored
    matrix, those that left get a multiplier that holds them at zero: an exact solve of the rank of the change.
    """

    def __init__(self, between: Between, z: Tensor, w: Tensor, shift: float) -> None:
        super().__init__(between, z, w, shift)
        self._matrix = torch.empty(len(z), len(z), dtype=z.dtype, device=z.device)
        for rows in self._rows():
            torch.mul(between(z[rows], z).mul_(w), w[rows, None], out=self._matrix[rows])
        self._matrix.diagonal().add_(shift)
        self._factored: tuple[Tensor, Tensor] | None = None

    def product(self, V: Tensor) -> Tensor:
        """Return G V, [n, k]."""
        return self._matrix @ V - self.shift * V

    def solve(self, B: Tensor, active: Tensor) -> Tensor:
        """Solve on the active records; see the base class."""
        index, L = self._factor(active)
        gone = (~active[index]).nonzero()[:, 0]
        came = active.clone()
        came[index] = False
        came = came.nonzero()[:, 0]
        # [[A, U], [U', C]]: bordered by the records that came, and by a multiplier for each that is gone
        U = torch.zeros(len(index), len(came) + len(gone), dtype=B.dtype, device=B.device)
        U[:, : len(came)] = self._matrix[index[:, None], came]
        U[gone, len(came) + torch.arange(len(gone), device=gone.device)] = 1.0
        C = torch.zeros(U.shape[1], U.shape[1], dtype=B.dtype, device=B.device)
        C[: len(came), : len(came)] = self._matrix[came[:, None], came]
        below = torch.cat([B[came], B.new_zeros(len(gone), B.shape[1])])
        solved = torch.cholesky_solve(torch.cat([U, B[index]], 1), L)
        Z, z = solved[:, : U.shape[1]], solved[:, U.shape[1] :]
        y = torch.linalg.solve(C - U.T @ Z, below - U.T @ z)
        X = torch.empty_like(B)
        X[index], X[came] = z - Z @ y, y[: len(came)]
        return torch.where(active[:, None], X, B / self.shift)

    def _factor(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factored records and their factor, made anew if too many others are asked for."""
        if self._factored is not None:
            index, _ = self._factored
            known = torch.zeros_like(active)
            known[index] = True
            if int((known != active).sum()) <= _CHANGED_SHARE * len(index):
                return self._factored
            self._factored = None  # before the next is made: two do not fit where one does
        index = active.nonzero()[:, 0]
        every = len(index) == len(active)
        self._factored = index, self._cholesky(self._matrix if every else self._matrix[index[:, None], index])
        return self._factored


class ProductSystem(DualSystem):
    """The matrix by its products alone, block by block: memory of n, time n^2 a product.

    Solved by conjugate gradients, preconditioned by the kernel's projection on the first records.
    """

    def __init__(self, between: Between, z: Tensor, w: Tensor, shift: float) -> None:
        super().__init__(between, z, w, shift)
        marks = z[:_LANDMARKS]
        inner = between(marks, marks)
        inner.diagonal().add_(_LANDMARK_JITTER)
        L = torch.linalg.cholesky(inner)
        self._projection = torch.linalg.solve_triangular(L, between(marks, z), upper=False).T

    def product(self, V: Tensor) -> Tensor:
        """Return G V, [n, k]."""
        right, out = self.w[:, None] * V, torch.empty_like(V)
        for rows in self._rows():
            torch.mm(self.between(self.z[rows], self.z), right, out=out[rows])
        return out.mul_(self.w[:, None])

    def solve(self, B: Tensor, active: Tensor) -> Tensor:
        """Solve on the active records; see the base class."""
        mask = active[:, None].to(B)
        half = (self.w * active)[:, None] * self._projection
        small = half.T @ half
        small.diagonal().add_(self.shift)
        L = self._cholesky(small)

        def apply(V: Tensor, which: Tensor) -> Tensor:
            return self.shift * V + mask * self.product(mask * V)

        def precondition(V: Tensor) -> Tensor:
            return (V - half @ torch.cholesky_solve(half.T @ V, L)) / self.shift

        X, left = conjugate_gradients(apply, B, _CG_TOLERANCE, _CG_STEPS, precondition=precondition)
        if not left <= _CG_TOLERANCE:
            raise NumericalError(
                f"conjugate gradients left a relative residual of {left:.1e} (tolerance {_CG_TOLERANCE:.1e}): raise "
                "second_stage.ridge, or second_stage.largest_dense for a factor"
            )
        return X
