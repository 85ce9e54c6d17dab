"""Public kernels with K(x, x) = 1 on covariates scaled to [-1, 1], and their Nystrom features on a public grid."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, batches

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceModel

SMOOTHNESS: dict[str, float | None] = {"gaussian": None, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Names of the kernels; the smoothness nu of the Matern ones."""

_STEEPEST = {"gaussian": (1 / 2, 2), "matern12": (1.0, 1), "matern32": (3 / 2, 2), "matern52": (5 / 6, 2)}
"""Factor and power of the first term of 1 - K in the distance, which is never less than 1 - K."""
_ROUNDING = 1e-15  # of K near one
_LONGEST = 4.0  # bandwidths from the middle of the box to its corner up to which products give distances exactly
# With c = (K_uu + j I)^{-1} k_u the squared norm is at most 1 - j ||c||^2, and rounding moves it by about 1e-16 m^2
# ||c||^2: below one in floating point too, up to m = 100,000.
_JITTER = 1e-6
_LEAST_PER_AXIS = 4  # below this a regular grid is all corners


@dataclass(frozen=True)
class UnitKernel:
    """GPyTorch's Gaussian or Matern kernel on covariates scaled to [-1, 1]: K(x, x) = 1, K falls with the distance.

    Attributes:
        name: One of ``SMOOTHNESS``.
        bandwidth: Public length scale, in units of the scaled covariates.
        domain: Public bounds, by which covariates are scaled.

    Example:
        >>> from torchdpcate.data import Domain
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


class Nystrom(FeatureMap):
    r"""Nystrom features of the unit Gaussian kernel K on public points u of the domain's box.

    .. math:: \psi(x) = L^{-1} k_u(x), \quad L L^\top = K_{uu} + 10^{-6} I, \quad k_u(x)_j = K(u_j, x)

    with x scaled to [-1, 1] and K(x, x') = exp(-||x - x'||^2 / (2 bandwidth^2)); up to a rotation this is
    (K_uu + 10^{-6} I)^{-1/2} k_u(x). As the kernel matrix of (u, x) is positive semi-definite,
    k_u' K_uu^{-1} k_u <= K(x, x) = 1, and the jitter only shrinks it: ||psi|| < 1, rounding included, for distances are
    worked out by differences. Source: Williams & Seeger (2001).

    The points are a regular grid where the covariates are few enough for four or more values of each, else Sobol
    points scrambled by a public seed.

    Args:
        points: Most points; a regular grid has the largest k^q that does not exceed it.
        bandwidth: Public length scale in units of the scaled covariates; None takes sqrt(q).
        seed: Public seed of the Sobol points.

    Raises:
        InputError: No point, or a bandwidth that is not positive.

    Example:
        >>> from torchdpcate.data import Domain
        >>> psi = Nystrom(points=5, bandwidth=0.5).setup(Domain([0.0], [2.0], 0.0, 1.0))
        >>> x = torch.tensor([[0.5], [1.2]], dtype=torch.float64)
        >>> [round(v, 2) for v in psi.norm(x).tolist()]
        [1.0, 1.0]
        >>> round(psi.covariance(x[:1], x[1:]).item(), 2), round(math.exp(-(0.7**2) / (2 * 0.5**2)), 2)
        (0.38, 0.38)
    """

    landmarks: Tensor
    whitening: Tensor

    def __init__(self, points: int = 256, bandwidth: float | None = None, seed: int = 0) -> None:
        super().__init__()
        if points < 1:
            raise InputError(f"features.points = {points}: give at least one point")
        if bandwidth is not None and not (bandwidth > 0 and math.isfinite(bandwidth)):
            raise InputError(f"features.bandwidth = {bandwidth}: give a positive length or null for sqrt(q)")
        self.points, self.bandwidth, self.seed = points, bandwidth, seed

    def _setup(self, width: int, nuisances: "NuisanceModel | None") -> None:
        self._length = self.bandwidth or math.sqrt(width)
        self.register_buffer("landmarks", self._public_points(width))
        kernel = self._kernel(self.landmarks)
        kernel.diagonal().add_(_JITTER)
        factor = torch.linalg.cholesky(kernel)
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=torch.float64), upper=False)
        self.register_buffer("whitening", inverse.T.contiguous())

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return those of points and whitening matrix; see the base class."""
        per_axis = self._per_axis(width)
        count = per_axis**width if per_axis else self.points
        return {"landmarks": (count, width), "whitening": (count, count)}

    def _per_axis(self, width: int) -> int:
        """Values of each covariate on a regular grid; 0 where there is none."""
        per_axis = math.floor(self.points ** (1 / width) + 1e-9)  # a root may fall short by its last bit
        return per_axis if width == 1 or per_axis >= _LEAST_PER_AXIS else 0

    def _public_points(self, width: int) -> Tensor:
        """Points of the scaled box, [m, q]."""
        per_axis = self._per_axis(width)
        if per_axis:
            axis = torch.linspace(-1, 1, per_axis, dtype=torch.float64) if per_axis > 1 else torch.zeros(1).double()
            return torch.cartesian_prod(*[axis] * width).reshape(-1, width)
        engine = torch.quasirandom.SobolEngine(width, scramble=True, seed=self.seed)
        return 2 * engine.draw(self.points, dtype=torch.float64) - 1

    def _kernel(self, z: Tensor) -> Tensor:
        """K(z, u) for scaled covariates z, [B, m]."""
        # by differences: z^2 + u^2 - 2 z'u leaves 1e-16 of nothing, which a tiny bandwidth makes large
        if torch.compiler.is_compiling():  # ONNX knows no cdist
            return ((z[:, None] - self.landmarks).square().sum(2) * (-0.5 / self._length**2)).exp()
        distance = torch.cdist(z, self.landmarks, compute_mode="donot_use_mm_for_euclid_dist")
        return ((distance / self._length).square() * -0.5).exp()

    @property
    def dimension(self) -> int:
        """Return the number of points."""
        return self.landmarks.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return L^{-1} k_u(x)."""
        return self._kernel(self.scaled(x)) @ self.whitening

    def product(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return psi(x)'theta as k_u(x)' (L^{-T} theta): m numbers a point and not m^2; see the base class."""
        weights = theta @ self.whitening.T
        kernels = (self._kernel(self.scaled(part)) for part in batches(x, self.dimension))
        return torch.cat([weights @ kernel.mT for kernel in kernels], -1)
