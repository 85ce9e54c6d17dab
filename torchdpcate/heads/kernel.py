"""Weighted kernel ridge regression: a second stage in the Hilbert space of a public unit kernel."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from torchdpcate._progress import bar
from torchdpcate.errors import InputError
from torchdpcate.fit.kernels import SMOOTHNESS, UnitKernel
from torchdpcate.heads.kernel_system import (
    SQUARED,
    DenseSystem,
    DualSystem,
    KernelFit,
    ProductSystem,
    ResidualLoss,
    minimise,
)
from torchdpcate.heads.linear import huber_sensitivity, squared_sensitivity
from torchdpcate.heads.recipes import RidgeSecondStage
from torchdpcate.heads.stage import RKHSStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceModel

_MEDIAN_POINTS = 1_024
_COARSE_RECORDS = 2_000  # beyond which a fit with a threshold starts from one to fewer records
_BLOCK_ELEMENTS = 2**22  # of the kernel between records and queries


@dataclass(frozen=True, eq=False)
class KernelStage(RKHSStage):
    r"""A kernel head: the f in the Hilbert space H of a unit kernel that minimises a ridge objective.

    .. math:: F(f) = \tfrac1n \sum_i \ell(s_i - w_i f(x_i)) + \lambda\|f\|_H^2

    Attributes:
        block: The second-stage block.
        kernel: The unit kernel.
        ridge: lambda, public.
        loss: The loss; its threshold is public or private.
        largest_dense: Records up to which the kernel matrix is held in memory.
    """

    block: SecondStageBlock
    kernel: UnitKernel
    ridge: float
    loss: ResidualLoss = SQUARED
    largest_dense: int = 15_000

    def __post_init__(self) -> None:
        """Refuse a ridge or a threshold under which the head has no bounded sensitivity."""
        if not (self.ridge > 0 and math.isfinite(self.ridge)):
            raise InputError(f"second_stage.ridge = {self.ridge}: the certificate needs a positive ridge")
        if not self.loss.threshold > 0:
            raise InputError(f"second_stage.threshold = {self.loss.threshold}: give a positive threshold")

    @property
    def n(self) -> int:
        """Number of records of the second-stage block (public)."""
        return self.block.s.shape[0]

    @property
    def weight_bound(self) -> float:
        """Public bound B of |w| ||K_x||."""
        return self.block.bounds.weight

    @property
    def target_bound(self) -> float:
        """Public bound S of |s|."""
        return self.block.bounds.target

    @property
    def condition(self) -> float:
        """Eta = B^2 / (n ridge), the most one record can multiply the curvature by, less one."""
        return self.weight_bound**2 / (self.n * self.ridge)

    @property
    def tolerance(self) -> float:
        """Public bound that every fit's gradient norm keeps: 1e-10 B min(tau, S)."""
        return 1e-10 * self.weight_bound * min(self.loss.threshold, self.target_bound)

    @cached_property
    def system(self) -> DualSystem:
        """The dual system n lambda I + W K W."""
        kernel, w, shift = self.kernel, self.block.w, self.n * self.ridge
        z = kernel.units(self.block.x)
        if self.n <= self.largest_dense:
            return DenseSystem(kernel.between, z, w, shift)
        between = kernel.between_by_products if kernel.exact_by_products else kernel.between
        return ProductSystem(between, z, w, shift, rough=kernel.between_by_products)

    @cached_property
    def fit(self) -> KernelFit:
        """The minimiser without noise."""
        with bar("Kernel ridge"):
            return minimise(self.system, self.block.s, self.loss, self.tolerance, self._start())

    def _start(self) -> Tensor:
        """Coefficients to start from: the fit to every fourth record nearly knows which lie beyond the threshold."""
        start = torch.zeros_like(self.block.s)
        if self.n > _COARSE_RECORDS and math.isfinite(self.loss.threshold):
            fourth = {name: getattr(self.block, name)[::4] for name in ("x", "s", "w")}
            coarse = dataclasses.replace(self, block=dataclasses.replace(self.block, **fourth))
            start[::4] = coarse.fit.u
        return start

    @property
    def gradient_norm(self) -> float:
        """Norm of the objective's gradient at the fit, in H."""
        return self.fit.gradient_norm

    @property
    def coefficients(self) -> Tensor:
        """The c of f = sum c_i K(x_i, .), [n]. Never to be released."""
        return self.block.w * self.fit.u

    @property
    def norm(self) -> float:
        """||f||_H. It depends on the records."""
        return self.system.norm(self.fit.u)

    def correction(self, x: Tensor) -> Tensor:
        """Return the non-private unit f(x), [B]."""
        z, coefficients = self.kernel.units(x.to(self.block.x)), self.coefficients
        chunks = z.split(max(1, _BLOCK_ELEMENTS // self.n))
        return self.unit * torch.cat([self.kernel.between(chunk, self.system.z) @ coefficients for chunk in chunks])

    @property
    def sensitivity(self) -> float:
        r"""Replace-one bound of ||f_D - f_D'||_H in outcome units, the gradient-norm stop included.

        .. math:: \tfrac{2 B \tau}{\lambda n} \text{ (Huber)},\qquad
            \tfrac{2 B S}{\lambda n}\max_t\,\sin t\,\Bigl(1 + \tfrac{B\cos t}{2\sqrt\lambda}\Bigr) \text{ (squared)}

        A fit whose gradient norm is at most tol lies within tol / (2 ridge) of the minimiser, on either data set.
        Source: theory note ``dp_cate``, section 3.3, with kappa = 1.

        Raises:
            InputError: The truncated square is not convex, and one record may move its fit anywhere.
        """
        if self.loss.truncated:
            raise InputError(
                "second_stage.loss = truncated_squared: it is not convex, so no bound holds of what one record moves; "
                "use second_stage.loss=huber, or release=queries mechanism=influence at heuristic level"
            )
        n, bound, tau = self.n, self.weight_bound, self.loss.threshold
        exact = (
            squared_sensitivity(bound, self.target_bound, self.ridge, n)
            if math.isinf(tau)
            else huber_sensitivity(bound, tau, self.ridge, n)
        )
        return self.unit * (exact + self.tolerance / self.ridge)

    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the kernel K(x, y), [m, k], on the block's device."""
        x, same = x.to(self.block.x), x is y
        return self.kernel(x, x if same else y.to(self.block.x))

    def squared(self) -> "KernelStage":
        """Return the same stage with the squared loss."""
        return self if self.loss == SQUARED else dataclasses.replace(self, loss=SQUARED)


@dataclass(frozen=True)
class KernelSecondStage(RidgeSecondStage):
    """Weighted kernel ridge regression; further settings are those of ``RidgeSecondStage``.

    The losses ``huber`` and ``squared`` are certified. ``truncated_squared``, min(r^2, tau^2), is the paper's; it is
    not convex, has no certificate, and is there for comparison at heuristic level.

    Attributes:
        kernel: ``gaussian``, ``matern12``, ``matern32`` or ``matern52``.
        bandwidth: Public length scale in units of covariates scaled to [-1, 1]; None takes sqrt(q), ``median`` the
            median distance of points uniform on the public domain. Records have no part in it.
        largest_dense: Records up to which the kernel matrix is held in memory (two matrices of n^2 numbers, three
            while a Huber threshold is at work: 5 GiB at 15,000); beyond, conjugate gradients, which keep
            4 x 512 n bytes and some vectors: below 1 GiB at 100,000.
    """

    choice = "kernel_ridge"
    losses: ClassVar[tuple[str, ...]] = ("huber", "squared", "truncated_squared")

    kernel: str = "gaussian"
    bandwidth: float | str | None = None
    largest_dense: int = 15_000

    def __post_init__(self) -> None:
        """Check the settings before anything is trained or spent."""
        super().__post_init__()
        if self.kernel not in SMOOTHNESS:
            raise InputError(f"second_stage.kernel = {self.kernel}: choose from {', '.join(SMOOTHNESS)}")
        given = self.bandwidth is not None and self.bandwidth != "median"
        if given and not (isinstance(self.bandwidth, int | float) and 0 < self.bandwidth < math.inf):
            raise InputError(
                f"second_stage.bandwidth = {self.bandwidth}: give a positive length, median, or null for sqrt(q)"
            )
        if self.largest_dense < 1:
            raise InputError(f"second_stage.largest_dense = {self.largest_dense}: give at least one record")

    def bandwidth_for(self, domain: "Domain") -> float:
        """Return the bandwidth on a domain, from public facts alone.

        Example:
            >>> from torchdpcate.data import Domain
            >>> KernelSecondStage().bandwidth_for(Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0))
            2.0
        """
        if self.bandwidth == "median":
            return torch.nn.functional.pdist(domain.scale(domain.grid(_MEDIAN_POINTS))).median().item()
        return math.sqrt(domain.dimension) if self.bandwidth is None else float(self.bandwidth)

    def fit(
        self,
        block: SecondStageBlock,
        nuisances: "NuisanceModel | None" = None,
        *,
        threshold: float = math.inf,
        budget: PrivacyBudget | None = None,
        trainer: "Callable[..., Trainer] | None" = None,
        seed: int = 0,
    ) -> KernelStage:
        """Return the kernel stage; its coefficients are solved for when first requested."""
        kernel = UnitKernel(self.kernel, self.bandwidth_for(block.domain), block.domain)
        ridge = self.ridge_for(block.bounds.weight, block.s.shape[0], budget)
        loss = ResidualLoss(self.threshold or threshold, truncated=self.loss == "truncated_squared")
        return KernelStage(block, kernel, ridge, loss, self.largest_dense)
