"""GPyTorch's Gaussian kernel, with K(x, x) = 1, on covariates scaled to [-1, 1]."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain


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
        from gpytorch.constraints import Positive
        from gpytorch.kernels import RBFKernel

        kernel = RBFKernel(lengthscale_constraint=Positive(transform=None, inv_transform=None)).to(z)
        kernel.lengthscale = 1.0
        kernel.covar_dist = _by_differences
        return kernel.requires_grad_(False).forward(z, other)  # type: ignore[no-any-return]


def _by_differences(z: Tensor, other: Tensor, **_: Any) -> Tensor:
    return torch.cdist(z, other, compute_mode="donot_use_mm_for_euclid_dist").square()
