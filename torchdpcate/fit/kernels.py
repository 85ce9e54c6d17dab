"""GPyTorch's Gaussian kernel, with K(x, x) = 1, on covariates scaled to [-1, 1]."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain

_LONGEST = 4.0  # bandwidths from the middle of the box to its corner up to which products give distances exactly


@dataclass(frozen=True)
class UnitKernel:
    """GPyTorch's Gaussian kernel on covariates scaled to [-1, 1]: K(x, x) = 1, K falls with the distance.

    Attributes:
        bandwidth: Public length scale, in units of the scaled covariates.
        domain: Public bounds, by which covariates are scaled.

    Example:
        >>> import math
        >>> from torchdpcate.data.domain import Domain
        >>> kernel = UnitKernel(0.6, Domain([0.0], [1.0], 0.0, 1.0))  # 0.3 in the covariate's own units
        >>> round(kernel(torch.tensor([[0.2]]), torch.tensor([[0.5]])).item(), 6), round(math.exp(-0.5), 6)
        (0.606531, 0.606531)
    """

    name: ClassVar[str] = "gaussian"

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
        """Return the kernel of covariates in bandwidths, [m, k]; with distances by differences.

        Products leave 1e-8 between equal points.
        """
        kernel = _gaussian().to(z.device)
        kernel.covar_dist = _by_differences
        return kernel.forward(z, other)  # type: ignore[no-any-return]

    def between_by_products(self, z: Tensor, other: Tensor) -> Tensor:
        """Return ``between`` with distances by a matrix product: some 5 times faster, of z's type, and less exact.

        In float64 the kernel of covariates of length R bandwidths is off by some 1e-16 R^2.
        """
        return _gaussian().to(z).forward(z, other)  # type: ignore[no-any-return]

    @property
    def exact_by_products(self) -> bool:
        """Whether ``between_by_products`` is as exact as rounding in float64 is: the kernel is not too narrow."""
        return self.domain.dimension <= (_LONGEST * self.bandwidth) ** 2


def _by_differences(z: Tensor, other: Tensor, **_: Any) -> Tensor:
    return torch.cdist(z, other, compute_mode="donot_use_mm_for_euclid_dist").square()


def _gaussian() -> Any:
    """Return the kernel with length scale one."""
    from gpytorch.constraints import Positive
    from gpytorch.kernels import RBFKernel

    kernel = RBFKernel(lengthscale_constraint=Positive(transform=None, inv_transform=None)).double()
    kernel.lengthscale = 1.0
    return kernel.requires_grad_(False)
