"""Weighted kernel ridge regression in the Hilbert space of a public unit kernel, and its influence function."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate._progress import bar
from torchdpcate.errors import InputError
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.kernel_system import (
    SQUARED,
    DenseSystem,
    DualSystem,
    KernelFit,
    ProductSystem,
    ResidualLoss,
    minimise,
)
from torchdpcate.heads.linear import check_ridge, exact_sensitivity
from torchdpcate.heads.recipes import RidgeSecondStage
from torchdpcate.heads.stage import RKHSStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
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
        largest_dense: Records up to which the kernel matrix is held in memory (two matrices of n^2 numbers, three
            while a Huber threshold is at work: 5 GiB at 15,000); beyond, conjugate gradients, which keep
            4 x 512 n bytes and some vectors: below 1 GiB at 100,000.
    """

    block: SecondStageBlock
    kernel: UnitKernel
    ridge: float
    loss: ResidualLoss = SQUARED
    largest_dense: int = 15_000

    def __post_init__(self) -> None:
        """Refuse a ridge or a threshold under which the head has no bounded sensitivity."""
        check_ridge(self.ridge, self.loss.threshold)

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
        """
        exact = exact_sensitivity(self.weight_bound, self.target_bound, self.ridge, self.n, self.loss.threshold)
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
    r"""Weighted kernel ridge regression on one block of n records, in the Hilbert space H of the kernel.

    .. math:: \min_{f \in H} \frac1n \sum_i \ell(s_i - w_i f(x_i)) + \lambda \lVert f \rVert_H^2

    Guarantee:
        Its mechanism's: certified by ``gaussian_process`` (docs/guarantees/two_blocks.md). Source: Schroeder et al.
        (2025), with noise of Hall, Rinaldo & Wasserman (2013).

    Attributes:
        bandwidth: Public length scale in units of covariates scaled to [-1, 1]; None takes sqrt(q), ``median`` the
            median distance of points uniform on the public domain. Records have no part in it.

    Raises:
        InputError: A setting out of its range.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> KernelSecondStage().bandwidth_for(Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0))
        2.0
    """

    choice = "kernel_ridge"

    bandwidth: float | str | None = None

    def __post_init__(self) -> None:
        """Check the settings before anything is trained or spent."""
        super().__post_init__()
        given = self.bandwidth is not None and self.bandwidth != "median"
        if given and not (isinstance(self.bandwidth, int | float) and 0 < self.bandwidth < math.inf):
            raise InputError(
                f"second_stage.bandwidth = {self.bandwidth}: give a positive length, median, or null for sqrt(q)"
            )

    def bandwidth_for(self, domain: "Domain") -> float:
        """Return the bandwidth on a domain, from public facts alone.

        Example:
            >>> from torchdpcate.data.domain import Domain
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
        **_: Any,
    ) -> KernelStage:
        """Return the kernel stage; its coefficients are solved for when first requested."""
        kernel = UnitKernel(self.bandwidth_for(block.domain), block.domain)
        ridge = self.ridge_for(block.bounds.weight, block.s.shape[0], budget)
        return KernelStage(block, kernel, ridge, ResidualLoss(self.threshold or threshold))


class KernelInfluenceFunction:
    r"""Influence function of weighted kernel ridge regression at d queries.

    With W = diag(w) on the records within the threshold (all of them for the squared loss), zero at the others,
    M = W (n lambda I + W K W)^{-1} W, psi half the derivative of the loss and f the fit,

    .. math:: h(x) = \frac{K(q, x) - K_{qX} M K_{Xx}}{\lambda},\qquad
        IF(x, s, w) = w\,\psi(s - w f(x))\, h(x) + o,\qquad o = K_{qX} M f(X) - f(q)

    (o holds for every loss: M f(X) counts the records within the threshold alone). It is the derivative, at weight 0,
    of f(q) in the weight of a record added to the sample by mixing, and averages to zero over the sample. The pseudo-
    outcome is never formed. Source: Schroeder, Melnychuk & Feuerriegel (2025), Corollary 2, with the terms that its
    equations 51 to 54 drop (theory note ``dp_cate``, section 4).

    Args:
        stage: The fitted kernel stage, the curator's, as everything here is.
        queries: Covariates of the d queries, [d, q].

    Attributes:
        offset: o, [d].

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.causal.score import ScoreBounds
        >>> from torchdpcate.heads.stage import SecondStageBlock
        >>> from torchdpcate.fit.kernels import UnitKernel
        >>> x, one = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> domain, bounds = Domain([0.0], [1.0], 0.0, 1.0), ScoreBounds(1.0, 1.0, 1.0, 1.0)
        >>> block = SecondStageBlock(x, one, one, lambda x, a, y: (y, torch.ones_like(y)), domain, bounds)
        >>> F = KernelInfluenceFunction(KernelStage(block, UnitKernel(0.5, domain), 0.5), x[:1])
        >>> F.at(x, one, one)[:, 0].mean().abs().item() < 1e-15
        True
    """

    def __init__(self, stage: KernelStage, queries: Tensor) -> None:
        self.stage, fit, block = stage, stage.fit, stage.block
        self._z = stage.kernel.units(queries.to(block.x))
        self._cross = stage.kernel.between(self._z, stage.system.z)
        inside = stage.loss.inside(fit.residual)
        # T = K_qX W (n lambda I + W K W)^{-1}, so that K_qX M = T W and T is zero at records beyond the threshold
        self._solved = stage.system.solve((self._cross * (block.w * inside)).T, inside).T
        self._rows = self._solved * block.w
        self.offset = self._solved @ (block.s - fit.residual) - self._cross @ stage.coefficients

    @property
    def theta(self) -> Tensor:
        """The fit's coefficients, [n]: their type and device are those of all results."""
        return self.stage.coefficients

    @property
    def queries(self) -> int:
        """Number of queries d."""
        return len(self._rows)

    def direction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``h(x)`` and ``f(x)``: [B, q] -> [B, d], [B]; differentiable in x."""
        chunks = x.split(max(1, _BLOCK_ELEMENTS // self.stage.n))
        h, f = zip(*(self._direction(chunk) for chunk in chunks), strict=True)
        return torch.cat(h), torch.cat(f)

    def at(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """Influence on the queries of records with covariates x [B, q], targets s [B], weights w [B]: [B, d]."""
        h, f = self.direction(x)
        return self._of(h, w * self.stage.loss.pull(s - w * f))

    def norm(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """``||IF(x, s, w)||_2`` for s and w [B], or [k, B] for k records at each x; differentiable in x."""
        return self.at(x, s, w).norm(dim=-1)

    def operator_norm(self) -> float:
        r"""Certified bound N >= sup_x ||h(x)||_2, the norm of h as a map from H to R^d.

        .. math:: N^2 = \lambda_{\max}\bigl(K_{qq} - 2 K_{qX} M K_{Xq} + K_{qX} M K M K_{Xq}\bigr) / \lambda^2

        Source: theory note ``dp_cate``, section 3.5, with kappa = 1.
        """
        # K_qX M K M K_Xq = K_qX M K_Xq - n lambda T T' saves the product with K
        inner = self.stage.kernel.between(self._z, self._z) - self._cross @ self._rows.T
        inner -= self.stage.system.shift * self._solved @ self._solved.T
        largest = torch.linalg.eigvalsh((inner + inner.T) / 2)[-1].item()
        return math.sqrt(max(largest, 0.0)) / self.stage.ridge

    def _direction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kernel, z = self.stage.kernel, self.stage.kernel.units(x)
        of_records = kernel.between(z, self.stage.system.z)
        h = (kernel.between(z, self._z) - of_records @ self._rows.T) / self.stage.ridge
        return h, of_records @ self.theta

    def _of(self, h: Tensor, pull: Tensor) -> Tensor:
        return pull[..., None] * h + self.offset
