"""Products with the exact Hessian of a training objective, and the Hessian itself.

The Hessian is the full one, of the objective with its ridge term; a Gauss-Newton matrix is another matrix
(relative gap 0.85 on an untrained network) and would give another influence function.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

STREAMED_RECORDS = 1_024
"""Records whose graph is held at a time: 8 MiB a layer of 1,000 units, several times over."""

_BATCHED_PARAMETERS = 16_384  # above this a batch of products needs too much memory for its activations


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
        >>> H.matvec(torch.tensor([1.0, 1.0], dtype=torch.float64))
        tensor([12., 48.], dtype=torch.float64)
        >>> H.dense()
        tensor([[12.,  0.],
                [ 0., 48.]], dtype=torch.float64)
    """

    def __init__(self, objective: Callable[[Tensor], Tensor], theta: Tensor):
        self._theta = theta.detach().clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(objective(self._theta), self._theta, create_graph=True)
        self._gradient = gradient

    @property
    def in_float32(self) -> bool:
        """Whether ``matmat`` also takes float32, for products that are quick and less exact."""
        return False

    @property
    def size(self) -> int:
        """Number of parameters p."""
        return self._theta.numel()

    @property
    def gradient(self) -> Tensor:
        """Gradient of the objective at theta, [p]."""
        return self._gradient.detach()

    def matvec(self, v: Tensor) -> Tensor:
        """``H v`` for one vector v, [p] -> [p]."""
        (product,) = torch.autograd.grad(self._gradient, self._theta, v, retain_graph=True)
        return product

    def matmat(self, V: Tensor) -> Tensor:
        """``H V``, column by column, [p, k] -> [p, k]; columns share a backward pass where they are short."""
        chunk = self._columns_per_pass()
        if chunk == 1:
            return torch.stack([self.matvec(v) for v in V.unbind(1)], 1)
        rows = [
            torch.autograd.grad(self._gradient, self._theta, block, retain_graph=True, is_grads_batched=True)[0]
            for block in V.T.split(chunk)
        ]
        return torch.cat(rows).T

    def dense(self) -> Tensor:
        """The Hessian, [p, p], symmetric; p products, so for small p only."""
        H = self.matmat(torch.eye(self.size, dtype=self._theta.dtype, device=self._theta.device))
        return (H + H.T) / 2

    def _columns_per_pass(self) -> int:
        if self.size > _BATCHED_PARAMETERS:
            return 1
        return 8 if self._theta.device.type == "cpu" else 128


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
        >>> StreamedHessian(lambda theta, x: x @ theta, one[:1], x, one, one, 0.5, batch=1).matvec(one[:1])
        tensor([6.], dtype=torch.float64)
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
        self._records, self._batch, self._in_float32 = (x, s, w), batch, in_float32

    @property
    def in_float32(self) -> bool:
        """Whether ``matmat`` also takes float32."""
        return self._in_float32

    @property
    def gradient(self) -> Tensor:
        """Gradient of the objective at theta, [p]."""
        total = 2 * self._ridge * self._theta
        for _, gradient in self._gradients(self._theta):
            total = total + gradient.detach()
        return total

    def matvec(self, v: Tensor) -> Tensor:
        """``H v`` for one vector v, [p] -> [p]."""
        return self.matmat(v[:, None])[:, 0]

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
