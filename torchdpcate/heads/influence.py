"""Influence functions of heads that minimise weighted least squares with a ridge term."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from torchdpcate.heads.hessian import (
    DENSE_PARAMETERS,
    HessianSolver,
    HessianVectorProduct,
    StreamedHessian,
    solver_for,
)

_CHUNK_ELEMENTS = 2**24  # of the largest per-record array: 128 MiB in float64


Model = Callable[[Tensor, Tensor], Tensor]


class InfluenceFunction:
    r"""Influence function of a head trained by weighted least squares with a ridge term.

    For the minimiser theta of ``F(theta) = mean_i (s_i - w_i f_theta(x_i))^2 + ridge ||theta||^2`` and
    queries with Jacobian ``J = d f(queries) / d theta``,

    ``IF(x, s, w) = J H^{-1} [2 w (s - w f(x)) grad f(x) - 2 ridge theta] = w (s - w f(x)) h(x) + o``,

    with the full Hessian H of F, ``h(x) = 2 J H^{-1} grad f(x)`` and ``o = -2 ridge J H^{-1} theta``: the
    derivative, at weight 0, of the effects at the queries in the weight of a record added to the sample by
    mixing. Over the sample it averages to zero. For f linear in theta, ``2 H^{-1} = A^{-1}``. Source:
    Schroeder, Melnychuk & Feuerriegel (2025), Corollary 1, with the signs and the scale of the ridge term
    corrected; ``w^2 = rho`` and ``w s = rho phi``.

    It speaks of a minimiser: theta must be polished to a stationary point. It is the curator's, not the
    reader's.

    Args:
        model: ``f(theta, x)``, [p] and [B, q] -> [B], built of torch operations.
        theta: Parameters of the minimiser, [p]; their dtype (float64 for releases) and device are used
            throughout.
        x: Covariates of the second-stage block, [n, q].
        s: Targets, [n].
        w: Weights, [n].
        ridge: Weight of ``||theta||^2`` in the objective (no one half), at least 0.
        queries: Covariates of the d queries, [d, q].
        solver: How H is inverted; by default ``solver_for`` chooses by p.
        damping: Of the default solver; not 0 makes every use heuristic, see ``HessianSolver``.

    Attributes:
        rows: ``J H^{-1}``, [d, p].
        offset: ``o``, [d].
        heuristic: Whether damping was used.

    Raises:
        NumericalError: if H is not positive definite or the solve misses its tolerance.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> theta = torch.tensor([0.5], dtype=torch.float64)  # mean(x s) / (mean(x^2) + ridge)
        >>> F = InfluenceFunction(lambda theta, x: x @ theta, theta, x, one, one, 0.5, x[:1])
        >>> F.at(x, one, one)[:, 0]  # averages to zero over the sample
        tensor([ 0.0833, -0.0833], dtype=torch.float64)
    """

    def __init__(
        self,
        model: Model,
        theta: Tensor,
        x: Tensor,
        s: Tensor,
        w: Tensor,
        ridge: float,
        queries: Tensor,
        solver: HessianSolver | None = None,
        damping: float = 0.0,
    ):
        self.model, self.theta = model, theta.detach()
        x, s, w, queries = (t.to(self.theta) for t in (x, s, w, queries))
        solver = solver or solver_for(theta.numel(), damping)
        self.heuristic = solver.damping > 0
        hessian = _hessian(model, self.theta, x, s, w, ridge)
        self.rows = solver.solve(hessian, self._gradients(queries).detach().T).T
        self.offset = -2 * ridge * self.rows @ self.theta
        self._short = self._shortened()

    @property
    def queries(self) -> int:
        """Number of queries d."""
        return len(self.rows)

    def direction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``h(x) = 2 J H^{-1} grad f(x)`` and ``f(x)``: [B, q] -> [B, d], [B]; differentiable in x."""
        return 2 * self._project(self.rows, x), self.model(self.theta, x)

    def at(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """Influence on the queries of records with covariates x [B, q], targets s [B], weights w [B]: [B, d]."""
        h, f = self.direction(x)
        return (w * (s - w * f))[:, None] * h + self.offset

    def norm(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """``||IF(x, s, w)||_2``; differentiable in x.

        Args:
            x: Covariates, [B, q].
            s: Targets, [B] or, for several records at the same covariates, [k, B].
            w: Weights, shaped as s.

        Returns:
            The norms, shaped as s; the k records at one x share the costly part.
        """
        rows, offset = self._short
        h = 2 * self._project(rows, x)
        c = w * (s - w * self.model(self.theta, x))
        return (c[..., None] * h + offset).norm(dim=-1)

    def _shortened(self) -> tuple[Tensor, Tensor]:
        """Rows and offset with the same norms; only p rows where there are more queries than parameters."""
        if self.rows.shape[0] <= self.rows.shape[1]:
            return self.rows, self.offset
        Q, R = torch.linalg.qr(self.rows)
        return R, Q.T @ self.offset

    def _gradients(self, x: Tensor) -> Tensor:
        """``grad_theta f(x)`` of each record, [B, p]."""
        return vmap(grad(lambda theta, x: self.model(theta, x[None])[0]), (None, 0))(self.theta, x)

    def _project(self, rows: Tensor, x: Tensor) -> Tensor:
        """``rows @ grad_theta f(x)``: [k, p], [B, q] -> [B, k]."""
        if rows.shape[1] > DENSE_PARAMETERS:
            return _slopes_along(self.model, self.theta, rows, x)
        chunks = x.split(max(1, _CHUNK_ELEMENTS // rows.shape[1]))
        return torch.cat([self._gradients(chunk) @ rows.T for chunk in chunks])


def _slopes_along(model: Model, theta: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """``rows @ grad_theta f(x)`` with no gradient of a record stored: forward mode along each row."""

    def along(row: Tensor) -> Tensor:
        return jvp(lambda theta: model(theta, x), (theta,), (row,))[1]

    return vmap(along, chunk_size=8)(rows).T


def _hessian(model: Model, theta: Tensor, x: Tensor, s: Tensor, w: Tensor, ridge: float) -> HessianVectorProduct:
    def objective(theta: Tensor) -> Tensor:
        return ((s - w * model(theta, x)) ** 2).mean() + ridge * (theta @ theta)

    if theta.numel() > DENSE_PARAMETERS:
        return StreamedHessian(model, theta, x, s, w, ridge, in_float32=getattr(model, "in_float32", False))
    return HessianVectorProduct(objective, theta)
