"""Solving ``(H + damping I) X = B``: a dense factor for small p, conjugate gradients for large p."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchdpcate.erm.conjugate_gradients import conjugate_gradients
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.influence.hessian import HessianVectorProduct

DENSE_PARAMETERS = 8_192
"""The largest p that ``solver_for`` gives to the dense solver (a Hessian of 512 MiB in float64)."""

_GROUP_ELEMENTS = 2**23  # of a block of right-hand sides, of which conjugate gradients keep six: 64 MiB each
_NO_MINIMUM = (
    "theta is no strict minimum, so it has no influence function; polish the head to a minimum or raise its `ridge`"
)


class Solver(ABC):
    """A way to solve ``(H + damping I) X = B`` that checks what it returns.

    Args:
        damping: Added to the diagonal of H (Schroeder, Melnychuk & Feuerriegel, 2025, Remark 1). It is
            anti-conservative: it shrinks the influence function, hence the noise, so that a release
            calibrated with it is heuristic.
        tolerance: Largest relative residual ``||b - (H + damping I) x|| / ||b||`` of a column.

    Raises:
        InputError: if damping is negative or the tolerance is not positive.
    """

    def __init__(self, damping: float = 0.0, tolerance: float = 1e-10):
        if not 0 <= damping < float("inf"):
            raise InputError(f"damping={damping} must be a finite number >= 0")
        if not tolerance > 0:
            raise InputError(f"tolerance={tolerance} must be positive")
        self.damping, self.tolerance = float(damping), float(tolerance)

    @abstractmethod
    def solve(self, hessian: HessianVectorProduct, B: Tensor) -> Tensor:
        """``(H + damping I)^{-1} B``, [p, k] -> [p, k].

        Raises:
            NumericalError: if H + damping I is not positive definite, or the tolerance is missed.
        """

    def _check(self, worst: float) -> None:
        if not worst <= self.tolerance:
            raise NumericalError(
                f"the solve with the Hessian left a relative residual of {worst:.1e} (tolerance "
                f"{self.tolerance:.1e}): raise the head's `ridge`, or the solver's `tolerance`"
            )


class CholeskySolver(Solver):
    """A dense Hessian and its Cholesky factor: ``O(p^3)`` once, ``O(p^2)`` a column.

    Positive definiteness is decided by the factor, so no direction of negative curvature goes unseen.

    Example:
        >>> H = HessianVectorProduct(lambda t: (t**2).sum(), torch.ones(2, dtype=torch.float64))
        >>> CholeskySolver().solve(H, torch.eye(2, dtype=torch.float64))
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]], dtype=torch.float64)
    """

    def __init__(self, damping: float = 0.0, tolerance: float = 1e-8):
        super().__init__(damping, tolerance)

    def solve(self, hessian: HessianVectorProduct, B: Tensor) -> Tensor:
        """``(H + damping I)^{-1} B``, [p, k] -> [p, k]."""
        H = hessian.dense()
        H.diagonal().add_(self.damping)
        L, failed_at = torch.linalg.cholesky_ex(H)
        if int(failed_at) != 0 or not bool(torch.isfinite(L.diagonal()).all()):
            raise NumericalError(
                f"the Hessian plus damping={self.damping} is not positive definite (leading minor "
                f"{int(failed_at)} of {hessian.size}): {_NO_MINIMUM}"
            )
        X = torch.cholesky_solve(B, L)
        self._check(_relative(B - H @ X, B))
        return X


class ConjugateGradientSolver(Solver):
    """Conjugate gradients (Hestenes & Stiefel, 1952) on Hessian-vector products, in a few vectors of memory.

    Products in float32, where the Hessian has them, do most of the work, and residuals in float64 correct them
    (iterative refinement): the true residual is that of float64.

    Negative curvature stops the solve when a search direction meets it; unlike a Cholesky factor, this cannot prove
    that there is none.

    Args:
        damping: Added to the diagonal of H; see ``Solver``.
        tolerance: Largest relative true residual of a column.
        max_iterations: Products per column before the solver gives up.
    """

    def __init__(self, damping: float = 0.0, tolerance: float = 1e-10, max_iterations: int = 5_000):
        super().__init__(damping, tolerance)
        if max_iterations < 1:
            raise InputError(f"max_iterations={max_iterations} must be at least 1")
        self.max_iterations = max_iterations

    def solve(self, hessian: HessianVectorProduct, B: Tensor) -> Tensor:
        """``(H + damping I)^{-1} B``, [p, k] -> [p, k]."""
        columns = max(1, _GROUP_ELEMENTS // hessian.size)
        return torch.cat([self._solve(hessian, group) for group in B.split(columns, dim=1)], 1)

    def _solve(self, hessian: HessianVectorProduct, B: Tensor) -> Tensor:
        def apply(V: Tensor, which: Tensor) -> Tensor:
            return self._apply(hessian, V)

        X, worst = conjugate_gradients(
            apply,
            B,
            self.tolerance,
            self.max_iterations,
            look=self._refuse_negative,
            rough=apply if hessian.in_float32 else None,
        )
        self._check(worst)
        return X

    def _apply(self, hessian: HessianVectorProduct, V: Tensor) -> Tensor:
        return hessian.matmat(V) + self.damping * V

    def _refuse_negative(self, curvature: Tensor) -> None:
        if not bool((curvature > 0).all()):
            raise NumericalError(
                f"the Hessian plus damping={self.damping} has curvature {float(curvature.min()):.1e} along a "
                f"search direction: {_NO_MINIMUM}"
            )


def solver_for(parameters: int, damping: float = 0.0) -> Solver:
    """The solver for a head of that many parameters: dense up to ``DENSE_PARAMETERS``, else by products."""
    return CholeskySolver(damping) if parameters <= DENSE_PARAMETERS else ConjugateGradientSolver(damping)


def _relative(residual: Tensor, B: Tensor) -> float:
    """Largest ``||r|| / ||b||`` over columns; a zero column counts as solved by zero."""
    norms = B.norm(dim=0)
    return float((residual.norm(dim=0) / torch.where(norms > 0, norms, torch.ones_like(norms))).amax())
