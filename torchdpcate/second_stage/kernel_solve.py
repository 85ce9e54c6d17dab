"""Newton's method on the dual of weighted kernel ridge regression: squared, Huber and truncated loss."""

import math
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from torchdpcate.errors import NumericalError
from torchdpcate.second_stage.kernel_system import DualSystem

_MOST_STEPS = 200  # Newton steps before giving up


@dataclass(frozen=True)
class ResidualLoss:
    r"""r^2, the Huber loss, or the truncated square min(r^2, tau^2), which is not convex.

    Attributes:
        threshold: tau; infinity means r^2.
        truncated: Whether residuals beyond tau have gradient zero in place of 2 tau.
    """

    threshold: float = math.inf
    truncated: bool = False

    def inside(self, residual: Tensor) -> Tensor:
        """Return which residuals are within tau."""
        return residual.abs() <= self.threshold

    def pull(self, residual: Tensor) -> Tensor:
        """Return half the derivative of the loss."""
        if self.truncated:
            return torch.where(self.inside(residual), residual, 0.0)
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
    squared loss. For the truncated square the full step minimises a majorant of the objective, which never rises.

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
        u = u + (step if loss.truncated else _line_search(system, loss, u, residual, step) * step)
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
