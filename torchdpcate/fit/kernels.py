"""Public kernels with K(x, x) = 1 on covariates scaled to [-1, 1]."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain

SMOOTHNESS: dict[str, float | None] = {"gaussian": None, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Names of the kernels; the smoothness nu of the Matern ones."""

_STEEPEST = {"gaussian": (1 / 2, 2), "matern12": (1.0, 1), "matern32": (3 / 2, 2), "matern52": (5 / 6, 2)}
"""Factor and power of the first term of 1 - K in the distance, which is never less than 1 - K."""
_ROUNDING = 1e-15  # of K near one
_LONGEST = 4.0  # bandwidths from the middle of the box to its corner up to which products give distances exactly


@dataclass(frozen=True)
class UnitKernel:
    """GPyTorch's Gaussian or Matern kernel on covariates scaled to [-1, 1]: K(x, x) = 1, K falls with the distance.

    Attributes:
        name: One of ``SMOOTHNESS``.
        bandwidth: Public length scale, in units of the scaled covariates.
        domain: Public bounds, by which covariates are scaled.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> kernel = UnitKernel("gaussian", 0.6, Domain([0.0], [1.0], 0.0, 1.0))  # 0.3 in the covariate's own units
        >>> round(kernel(torch.tensor([[0.2]]), torch.tensor([[0.5]])).item(), 6), round(math.exp(-0.5), 6)
        (0.606531, 0.606531)
    """

    name: str
    bandwidth: float
    domain: "Domain"

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return K(x, y), float64 [m, k], for covariates x [m, q] and y [k, q]; differentiable in both."""
        z = self.units(x)
        return self.between(z, z if x is y else self.units(y))

    def units(self, x: Tensor) -> Tensor:
        """Return the covariates in bandwidths, float64 [B, q]."""
        return self.domain.scale(x.double()) / self.bandwidth

    def between(self, z: Tensor, other: Tensor) -> Tensor:
        """Return the kernel of covariates in bandwidths, [m, k]."""
        return self._module.to(z.device).forward(z, other)

    def between_by_products(self, z: Tensor, other: Tensor) -> Tensor:
        """Return ``between`` with distances by a matrix product: some 5 times faster, of z's type, and less exact.

        In float64 the Gaussian kernel of covariates of length R bandwidths is off by some 1e-16 R^2, a Matern one by
        some 1e-8 R between close points, where it has a root.
        """
        return self._fast_module.to(z).forward(z, other)

    @property
    def exact_by_products(self) -> bool:
        """Whether ``between_by_products`` is as exact as rounding in float64 is: a Gaussian that is not too narrow."""
        return self.name == "gaussian" and self.domain.dimension <= (_LONGEST * self.bandwidth) ** 2

    def variation(self, distance: float) -> float:
        """Return sup ||K_x - K_y||_H over pairs at most this far apart (scaled covariates): sqrt(2 - 2 K).

        No less than that: where 1 - K is lost in rounding, the first term of its series bounds it.
        """
        t = distance / self.bandwidth
        ends = torch.tensor([[0.0], [t]], dtype=torch.float64)
        rest = 1 - self.between(ends[:1], ends[1:]).item() + _ROUNDING
        factor, power = _STEEPEST[self.name]
        return math.sqrt(2 * min(rest, factor * t**power))

    @cached_property
    def _module(self) -> Any:
        from gpytorch.kernels import MaternKernel, RBFKernel

        class ByDifferences:
            """Distances by differences; products leave 1e-8 between equal points, amplified by root kernels."""

            def covar_dist(self, x1: Tensor, x2: Tensor, square_dist: bool = False, **_: Any) -> Tensor:
                distance = torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist")
                return distance.square() if square_dist else distance

        class ExactRBFKernel(ByDifferences, RBFKernel):
            """The Gaussian kernel, by differences."""

        class ExactMaternKernel(ByDifferences, MaternKernel):
            """The Matern kernel, by differences."""

        return _ready(ExactRBFKernel, ExactMaternKernel, SMOOTHNESS[self.name])

    @cached_property
    def _fast_module(self) -> Any:
        from gpytorch.kernels import MaternKernel, RBFKernel

        return _ready(RBFKernel, MaternKernel, SMOOTHNESS[self.name])


def _ready(gaussian: Any, matern: Any, nu: float | None) -> Any:
    """Return the kernel of this smoothness with length scale one."""
    from gpytorch.constraints import Positive

    as_given = Positive(transform=None, inv_transform=None)
    kernel = gaussian(lengthscale_constraint=as_given) if nu is None else matern(nu, lengthscale_constraint=as_given)
    kernel.double().lengthscale = torch.ones(1, dtype=torch.float64)
    return kernel.requires_grad_(False)
