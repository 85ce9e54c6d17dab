"""Influence functions of heads that minimise weighted least squares with a ridge term."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from torchdpcate.errors import NumericalError
from torchdpcate.fit.descent import conjugate_gradients

STREAMED_RECORDS = 1_024
"""Records whose graph is held at a time: 8 MiB a layer of 1,000 units, several times over."""


class HessianVectorProduct:
    r"""The linear map ``v -> H v`` with ``H = d^2 F / d theta^2`` at a fixed theta, exact.

    Source: Pearlmutter (1994). The graph of the gradient is built once and kept, so that a product costs one
    backward pass: as fast as ``torch.func.linearize``, for every operation that autograd differentiates twice.

    Args:
        objective: ``F``, a twice differentiable function of a vector of p parameters, with a scalar result.
            It must not use ``torch.nn.functional.huber_loss``, which has no second backward pass.
        theta: Where the Hessian is taken, [p]; its dtype and device are those of every result.

    Example:
        >>> H = HessianVectorProduct(lambda t: (t**4).sum(), torch.tensor([1.0, 2.0], dtype=torch.float64))
        >>> H.dense()
        tensor([[12.,  0.],
                [ 0., 48.]], dtype=torch.float64)
    """

    def __init__(self, objective: Callable[[Tensor], Tensor], theta: Tensor):
        self._theta = theta.detach().clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(objective(self._theta), self._theta, create_graph=True)
        self._gradient = gradient

    in_float32 = False
    """Whether ``matmat`` also takes float32, for products that are quick and less exact."""

    @property
    def size(self) -> int:
        """Number of parameters p."""
        return self._theta.numel()

    def matmat(self, V: Tensor) -> Tensor:
        """``H V``, column by column, [p, k] -> [p, k]; some columns share a backward pass."""
        chunk = 8 if self._theta.device.type == "cpu" else 128
        rows = [
            torch.autograd.grad(self._gradient, self._theta, block, retain_graph=True, is_grads_batched=True)[0]
            for block in V.T.split(chunk)
        ]
        return torch.cat(rows).T

    def dense(self) -> Tensor:
        """The Hessian, [p, p], symmetric; p products, so for small p only."""
        H = self.matmat(torch.eye(self.size, dtype=self._theta.dtype, device=self._theta.device))
        return (H + H.T) / 2


class StreamedHessian(HessianVectorProduct):
    r"""Products with the Hessian of ``F(theta) = mean_i (s_i - w_i f_theta(x_i))^2 + ridge ||theta||^2``, in batches.

    The graph of a batch's gradient is built, used for all columns, and let go: memory beyond the records and a few
    vectors does not grow with n. A product costs the gradients once more than with a graph that is kept.

    Args:
        model: ``f(theta, x)``, [p] and [B, q] -> [B].
        theta: Parameters, [p].
        x: Covariates, [n, q].
        s: Targets, [n].
        w: Weights, [n].
        ridge: Weight of ``||theta||^2`` (no one half).
        in_float32: Whether the model also takes float32 parameters and covariates.
        batch: Records at a time.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> StreamedHessian(lambda theta, x: x @ theta, one[:1], x, one, one, 0.5, batch=1).matmat(one[:1, None])
        tensor([[6.]], dtype=torch.float64)
    """

    def __init__(
        self,
        model: Callable[[Tensor, Tensor], Tensor],
        theta: Tensor,
        x: Tensor,
        s: Tensor,
        w: Tensor,
        ridge: float,
        in_float32: bool = False,
        batch: int = STREAMED_RECORDS,
    ):
        self._theta, self._model, self._ridge = theta.detach(), model, ridge
        self._records, self._batch, self.in_float32 = (x, s, w), batch, in_float32

    def matmat(self, V: Tensor) -> Tensor:
        """``H V``, [p, k] -> [p, k], in V's type."""
        columns = V.T.contiguous()
        out = 2 * self._ridge * columns
        for theta, gradient in self._gradients(self._theta.to(V)):
            for k, v in enumerate(columns):
                out[k] += torch.autograd.grad(gradient, theta, v, retain_graph=k + 1 < len(columns))[0]
        return out.T

    def _gradients(self, theta: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Parameters and the gradient of each batch's part of the mean, with its graph."""
        n = len(self._records[0])
        for batch in zip(*(t.split(self._batch) for t in self._records), strict=True):
            with torch.enable_grad():
                here = theta.clone().requires_grad_()
                x, s, w = (t.to(here) for t in batch)
                value = ((s - w * self._model(here, x)) ** 2).sum() / n
                (gradient,) = torch.autograd.grad(value, here, create_graph=True)
            yield here, gradient


DENSE_PARAMETERS = 8_192
"""The largest p that is solved densely (a Hessian of 512 MiB in float64)."""

_GROUP_ELEMENTS = 2**23  # of a block of right-hand sides, of which conjugate gradients keep six: 64 MiB each
_NO_MINIMUM = (
    "theta is no strict minimum, so it has no influence function; polish the head to a minimum or raise its `ridge`"
)


def solve_hessian(hessian: HessianVectorProduct, B: Tensor) -> Tensor:
    """Return ``H^{-1} B``, [p, k] -> [p, k], densely up to ``DENSE_PARAMETERS``.

    Args:
        hessian: H.
        B: Right-hand sides.

    Raises:
        NumericalError: H is not positive definite, or the tolerance is missed.

    Example:
        >>> H = HessianVectorProduct(lambda t: (t**2).sum(), torch.ones(2, dtype=torch.float64))
        >>> solve_hessian(H, torch.eye(2, dtype=torch.float64))
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]], dtype=torch.float64)
    """
    return (solve_densely if hessian.size <= DENSE_PARAMETERS else solve_by_products)(hessian, B)


def solve_densely(hessian: HessianVectorProduct, B: Tensor) -> Tensor:
    """Return ``H^{-1} B`` by a dense Hessian's Cholesky factor: ``O(p^3)`` once, ``O(p^2)`` a column.

    Positive definiteness is decided by the factor, so no direction of negative curvature goes unseen.
    """
    H = hessian.dense()
    L, failed_at = torch.linalg.cholesky_ex(H)
    if int(failed_at) != 0 or not bool(torch.isfinite(L.diagonal()).all()):
        raise NumericalError(
            f"the Hessian is not positive definite (leading minor {int(failed_at)} of {hessian.size}): {_NO_MINIMUM}"
        )
    X, norms = torch.cholesky_solve(B, L), B.norm(dim=0)
    _check(float(((B - H @ X).norm(dim=0) / torch.where(norms > 0, norms, torch.ones_like(norms))).amax()), 1e-8)
    return X


def solve_by_products(hessian: HessianVectorProduct, B: Tensor, max_iterations: int = 5_000) -> Tensor:
    """Return ``H^{-1} B`` by conjugate gradients (Hestenes & Stiefel, 1952), in a few vectors of memory.

    Products in float32, where the Hessian has them, do most of the work, and residuals in float64 correct them
    (iterative refinement): the true residual is that of float64.

    Negative curvature stops the solve when a search direction meets it; unlike a Cholesky factor, this cannot prove
    that there is none.
    """

    def apply(V: Tensor, which: Tensor) -> Tensor:
        return hessian.matmat(V)

    def refuse_negative(curvature: Tensor) -> None:
        if not bool((curvature > 0).all()):
            raise NumericalError(
                f"the Hessian has curvature {float(curvature.min()):.1e} along a search direction: {_NO_MINIMUM}"
            )

    rough, solved = apply if hessian.in_float32 else None, []
    for group in B.split(max(1, _GROUP_ELEMENTS // hessian.size), dim=1):
        X, worst = conjugate_gradients(apply, group, 1e-10, max_iterations, look=refuse_negative, rough=rough)
        _check(worst, 1e-10)
        solved.append(X)
    return torch.cat(solved, 1)


def _check(worst: float, tolerance: float) -> None:
    if not worst <= tolerance:
        raise NumericalError(
            f"the solve with the Hessian left a relative residual of {worst:.1e} (tolerance {tolerance:.1e}): raise "
            "the head's `ridge`"
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

    Attributes:
        rows: ``J H^{-1}``, [d, p].
        offset: ``o``, [d].

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
    ):
        self.model, self.theta = model, theta.detach()
        x, s, w, queries = (t.to(self.theta) for t in (x, s, w, queries))
        hessian = _hessian(model, self.theta, x, s, w, ridge)
        self.rows = solve_hessian(hessian, self._gradients(queries).detach().T).T
        self.offset = -2 * ridge * self.rows @ self.theta
        self._short = self._shortened()

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
