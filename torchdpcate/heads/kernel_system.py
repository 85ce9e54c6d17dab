"""The linear system of weighted kernel ridge regression, and its Newton steps: in memory, or by products alone."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from torchdpcate.errors import NumericalError
from torchdpcate.fit.descent import conjugate_gradients

_BLOCK_ELEMENTS = 2**20  # of the kernel at once: 8 MiB, so that all passes over a block find it in the cache
_TILE = 512  # records on a side of a tile of the kernel, of 1 to 2 MiB
_DEVICE_TILE = 8_192  # on an accelerator, which needs longer rows to be busy: 512 MiB
_GROUP_ELEMENTS = 2**24  # of the right-hand sides solved side by side, of which conjugate gradients keep eight
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

    def _rows(self, width: int) -> list[slice]:
        size = max(1, _BLOCK_ELEMENTS // width)
        return [slice(first, first + size) for first in range(0, len(self.z), size)]


class DenseSystem(DualSystem):
    """The matrix in memory, with one Cholesky factor: time n^3 / 3, memory of two matrices.

    Newton's method requests many sets of active records that differ by few. Those that came border the factored
    matrix, those that left get a multiplier that holds them at zero: an exact solve of the rank of the change.
    """

    def __init__(self, between: Between, z: Tensor, w: Tensor, shift: float) -> None:
        super().__init__(between, z, w, shift)
        self._matrix = torch.empty(len(z), len(z), dtype=z.dtype, device=z.device)
        for rows in self._rows(len(z)):
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
        """Return the factored records and their factor, made anew if too many others are requested."""
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
    """The matrix by its products alone, tile by tile: time n^2 a product, memory of 4 x 512 n bytes and some vectors.

    Solved by conjugate gradients in float32 with residuals in float64 (iterative refinement), preconditioned by the
    kernel's projection on the first records. Neither changes the solution, which is judged by its true residual.

    Args:
        between: The kernel, float64.
        z: See the base class.
        w: See the base class.
        shift: See the base class.
        rough: The kernel in float32, quick and less exact; None leaves all to float64.
    """

    def __init__(self, between: Between, z: Tensor, w: Tensor, shift: float, rough: Between | None = None) -> None:
        super().__init__(between, z, w, shift)
        self._rough, self._rough_z = rough, z.float()
        marks = z[:_LANDMARKS]
        inner = between(marks, marks)
        inner.diagonal().add_(_LANDMARK_JITTER)
        L = torch.linalg.cholesky(inner)
        self._projection = torch.empty(len(z), len(marks), dtype=torch.float32, device=z.device)
        for rows in self._rows(len(marks)):
            self._projection[rows] = torch.linalg.solve_triangular(L, between(marks, z[rows]), upper=False).T

    def product(self, V: Tensor) -> Tensor:
        """Return G V, [n, k]."""
        if not bool(V.any()):
            return torch.zeros_like(V)
        return self.w[:, None] * _kernel_product(self.between, self.z, self.w[:, None] * V)

    def solve(self, B: Tensor, active: Tensor) -> Tensor:
        """Solve on the active records; see the base class."""
        weight = self.w * active
        precondition = self._preconditioner(weight)

        def apply(V: Tensor, which: Tensor) -> Tensor:
            return self.shift * V + active[:, None] * self.product(active[:, None] * V)

        def rough(V: Tensor, which: Tensor) -> Tensor:
            assert self._rough is not None
            scale = weight.to(V)[:, None]
            return self.shift * V + scale * _kernel_product(self._rough, self._rough_z, scale * V)

        columns, solved = max(1, _GROUP_ELEMENTS // len(B)), []
        for group in B.split(columns, dim=1):
            X, left = conjugate_gradients(
                apply,
                group,
                _CG_TOLERANCE,
                _CG_STEPS,
                precondition=precondition,
                rough=None if self._rough is None else rough,
            )
            if not left <= _CG_TOLERANCE:
                raise NumericalError(
                    f"conjugate gradients left a relative residual of {left:.1e} (tolerance {_CG_TOLERANCE:.1e}): "
                    "raise second_stage.ridge"
                )
            solved.append(X)
        return torch.cat(solved, 1)

    def _preconditioner(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """Return V -> (shift I + P P')^{-1} V with P the weighted projection: exact in float64, quick in float32."""
        blocks = self._rows(self._projection.shape[1])
        small = self.shift * torch.eye(self._projection.shape[1], dtype=weight.dtype, device=weight.device)
        for rows in blocks:
            part = weight[rows, None] * self._projection[rows]
            small += part.T @ part
        L = self._cholesky(small)

        def precondition(V: Tensor) -> Tensor:
            scale = weight.to(V)[:, None]
            heavy = scale * V
            inner = sum((self._projection[rows].to(V).T @ heavy[rows] for rows in blocks), start=V.new_zeros(1, 1))
            inner = torch.cholesky_solve(inner.double(), L).to(V)
            outer = torch.cat([self._projection[rows].to(V) @ inner for rows in blocks])
            return (V - scale * outer) / self.shift

        return precondition


def _kernel_product(between: Between, z: Tensor, V: Tensor) -> Tensor:
    """Return K V, [n, k], from the tiles on and above the diagonal: each is used for its rows and for its columns."""
    size = _TILE if z.device.type == "cpu" else _DEVICE_TILE
    out, points, parts = torch.zeros_like(V), z.split(size), V.split(size)
    outs = out.split(size)
    for i, row in enumerate(points):
        outs[i].addmm_(between(row, row), parts[i])
        for j in range(i + 1, len(points)):
            tile = between(row, points[j])
            outs[i].addmm_(tile, parts[j])
            outs[j].addmm_(tile.T, parts[i])
    return out


_MOST_STEPS = 200  # Newton steps before giving up


@dataclass(frozen=True)
class ResidualLoss:
    """r^2 or the Huber loss.

    Attributes:
        threshold: tau; infinity means r^2.
    """

    threshold: float = math.inf

    def inside(self, residual: Tensor) -> Tensor:
        """Return which residuals are within tau."""
        return residual.abs() <= self.threshold

    def pull(self, residual: Tensor) -> Tensor:
        """Return half the derivative of the loss."""
        return residual.clamp(-self.threshold, self.threshold)


SQUARED = ResidualLoss()


@dataclass(frozen=True, eq=False)
class KernelFit:
    """The minimiser f = sum u_i w_i K(x_i, .) and how exactly it was found. The curator's, all of it.

    Attributes:
        u: Dual coefficients, float64 [n].
        residual: s - w f(x), [n].
        gradient_norm: Norm of the objective's gradient at f, in the Hilbert space.
    """

    u: Tensor
    residual: Tensor
    gradient_norm: float


def minimise(
    system: DualSystem, s: Tensor, loss: ResidualLoss, tolerance: float, start: Tensor | None = None
) -> KernelFit:
    r"""Minimise mean loss(s_i - w_i f(x_i)) + lambda ||f||^2 over the Hilbert space.

    With f = sum u_i w_i K(x_i, .), r = s - G u and psi half the derivative of the loss, the gradient is

    .. math:: -\tfrac2n \sum_i (\psi(r_i) - n\lambda u_i)\, w_i K(x_i, \cdot)

    A Newton step solves a ridge regression on the records within the threshold. The Huber objective is convex and
    piecewise quadratic, so with an exact line search the steps end after finitely many; one is enough for the
    squared loss.

    Args:
        system: Shift I + G.
        s: Targets, [n].
        loss: The loss.
        tolerance: Largest norm of the gradient in the Hilbert space.
        start: Coefficients u to start from, [n]; zero if left out.

    Raises:
        NumericalError: The tolerance was not reached; nothing may be released.
    """
    n, u, norm = len(s), torch.zeros_like(s) if start is None else start, math.inf
    for _ in range(_MOST_STEPS):
        residual = s - system.product(u[:, None])[:, 0]
        excess = loss.pull(residual) - system.shift * u
        norm = 2 / n * system.norm(excess)
        if norm <= tolerance:
            return KernelFit(u, residual, norm)
        step = _newton_step(system, excess, loss.inside(residual))
        u = u + _line_search(system, loss, u, residual, step) * step
    raise NumericalError(
        f"the kernel head stopped at a gradient norm above {tolerance:.1e}: nothing is released; "
        "raise second_stage.ridge"
    )


def _newton_step(system: DualSystem, excess: Tensor, inside: Tensor) -> Tensor:
    """Return the step to the minimiser of the piece in which the residuals lie."""
    outer = torch.where(inside, 0.0, excess / system.shift)[:, None]
    moved = 0.0 if bool(inside.all()) else torch.where(inside[:, None], system.product(outer), 0.0)
    return system.solve(excess[:, None] - moved, inside)[:, 0]


def _line_search(system: DualSystem, loss: ResidualLoss, u: Tensor, residual: Tensor, step: Tensor) -> float:
    """Return the share of the step, at most 1, at which the objective is least along it."""
    if math.isinf(loss.threshold):
        return 1.0
    moved = system.product(step[:, None])[:, 0]

    def slope(length: float) -> float:
        excess = loss.pull(residual - length * moved) - system.shift * (u + length * step)
        return -float(excess @ moved)

    return scipy.optimize.brentq(slope, 0.0, 1.0, xtol=1e-15) if slope(0.0) < 0 < slope(1.0) else 1.0
