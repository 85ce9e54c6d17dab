"""Products with the exact Hessian of a training objective, and the Hessian itself.

The Hessian is the full one, of the objective with its ridge term; a Gauss-Newton matrix is another matrix
(relative gap 0.85 on an untrained network) and would give another influence function.
"""

from collections.abc import Callable

import torch
from torch import Tensor

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
