"""How one record moves a kernel head's effects at the queries, to first order: exact, and bounded from above."""

import itertools
import math

import torch
from torch import Tensor

from torchdpcate.heads.kernel import KernelStage

_BLOCK_ELEMENTS = 2**22  # of the kernel between records and points
_GRID_POINTS = 4_096  # of the refined bound


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

    Of the truncated square it describes one piece: which records count is held fixed.

    Args:
        stage: The fitted kernel stage, the curator's, as everything here is.
        queries: Covariates of the d queries, [d, q].

    Attributes:
        offset: o, [d].

    Example:
        >>> from torchdpcate.data import Domain
        >>> from torchdpcate.causal.score import ScoreBounds
        >>> from torchdpcate.heads import SecondStageBlock
        >>> from torchdpcate.fit.kernels import UnitKernel
        >>> x, one = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> domain, bounds = Domain([0.0], [1.0], 0.0, 1.0), ScoreBounds(1.0, 1.0, 1.0, 1.0)
        >>> block = SecondStageBlock(x, one, one, lambda x, a, y: (y, torch.ones_like(y)), domain, bounds)
        >>> F = KernelInfluenceFunction(KernelStage(block, UnitKernel("gaussian", 0.5, domain), 0.5), x[:1])
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
        """``||IF(x, s, w)||_2`` for s and w [B], or [k, B] for k records at each x; differentiable in x.

        For the truncated square: of the worst record whose residual is no larger, so that a search which looks at
        the ends of the outcome interval alone, where the loss may have cut the record off, still sees it.
        """
        h, f = self.direction(x)
        tau = self.stage.loss.threshold
        return self._of(h, w * (s - w * f).clamp(-tau, tau)).norm(dim=-1)

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

    def direction_bound(self, points: int = _GRID_POINTS) -> float:
        r"""Certified bound of sup_x ||h(x)||_2 over the domain, refined by a grid where there are few covariates.

        Every x lies within a covering radius r of a point of the grid, hence

        .. math:: \sup_x\|h(x)\| \le \min\bigl(N,\ \max_{grid}\|h\| + N \sqrt{2 - 2 K(r)}\bigr)

        with the kernel K as a function of the distance; the last factor is at most r / bandwidth for the Gaussian.

        Args:
            points: Most points of the grid.
        """
        norm, domain = self.operator_norm(), self.stage.block.domain
        width = domain.covariate_high - domain.covariate_low
        free = int((width > 0).sum())
        cells = int(points ** (1 / max(free, 1)) + 1e-9)
        radius = math.sqrt(free) / cells  # half the diagonal of a cell, whose sides are 2 / cells
        if self.stage.kernel.variation(radius) >= 1:
            return norm
        centres = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        axes = [centres if side > 0 else centres.new_zeros(1) for side in width.tolist()]
        grid = domain.from_unit(torch.tensor(list(itertools.product(*axes)), dtype=torch.float64))
        with torch.no_grad():
            h, _ = self.direction(grid.to(self.theta))
        return min(norm, h.norm(dim=1).max().item() + norm * self.stage.kernel.variation(radius))

    def upper_bound(self, points: int = _GRID_POINTS) -> float:
        r"""Certified bound of the gross-error sensitivity sup_z ||IF(z)||_2 over all records within the public bounds.

        .. math:: \gamma \le B \min(\tau, S + B \|f\|_H)\, \sup_x \|h(x)\| + \|o\|

        since |f(x)| <= ||f||_H. Its value depends on the records and is the curator's.

        Args:
            points: As of ``direction_bound``.
        """
        stage = self.stage
        pull = min(stage.loss.threshold, stage.target_bound + stage.weight_bound * stage.norm)
        return stage.weight_bound * pull * self.direction_bound(points) + self.offset.norm().item()

    def _direction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kernel, z = self.stage.kernel, self.stage.kernel.units(x)
        of_records = kernel.between(z, self.stage.system.z)
        h = (kernel.between(z, self._z) - of_records @ self._rows.T) / self.stage.ridge
        return h, of_records @ self.theta

    def _of(self, h: Tensor, pull: Tensor) -> Tensor:
        return pull[..., None] * h + self.offset
