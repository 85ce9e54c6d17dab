"""A linear head as a Lightning module, to be trained by DP-SGD; apart from recipes, which need no trainer."""

import torch
from torch import Tensor, nn

from torchdpcate.fit.trainable import RecordLossModule


class HeadModule(RecordLossModule):
    r"""Huber regression of s on w psi(x)'theta with weight decay, s in units of the threshold.

    The loss of a record is :math:`H_1(s - w\,\psi^\top\theta)`, with H_1(r) = r^2 up to one and 2 |r| - 1 beyond, so
    that its gradient is at most 2 |w| ||psi||. The ridge is weight decay, which no record enters.

    Args:
        size: Number of features p.
        ridge: lambda in the ridge term lambda ||theta||^2.
        learning_rate: Step size of plain SGD.

    Example:
        >>> head = HeadModule(2, ridge=0.1, learning_rate=0.5)
        >>> psi, w, s = torch.eye(2), torch.ones(2), torch.tensor([0.5, 3.0])
        >>> head.record_loss((psi, w, s)).tolist()
        [0.25, 5.0]
    """

    def __init__(self, size: int, ridge: float, learning_rate: float) -> None:
        super().__init__(learning_rate, "sgd")
        self.ridge = ridge
        self.linear = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def record_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Loss ``[B]`` of a batch (psi ``[B, p]``, w ``[B]``, s ``[B]``)."""
        psi, w, s = batch
        # the layer sees w psi, so that per-record gradients are the layer's own
        residual = s - self.linear(w[:, None] * psi)[:, 0]
        size = residual.abs()
        return torch.where(size <= 1, residual.square(), 2 * size - 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD whose weight decay is the ridge's gradient."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, weight_decay=2 * self.ridge)
