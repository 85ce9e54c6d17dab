"""The two nuisance networks on scaled covariates: propensity logits and both arms' mean outcomes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdpcate.errors import InputError

ScaledBatch = tuple[Tensor, Tensor, Tensor]


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden ReLU layer, or a linear map when `width` is 0.

    Example:
        >>> [type(layer).__name__ for layer in mlp(3, 32, 2)]
        ['Linear', 'ReLU', 'Linear']

    Raises:
        InputError: `inputs` below 1 or `width` below 0.
    """
    if inputs < 1:
        raise InputError(f"dimension={inputs} must be at least 1")
    if width < 0:
        raise InputError(f"width={width} must be 0 (linear) or more")
    if width == 0:
        return nn.Sequential(nn.Linear(inputs, outputs))
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


class Propensity(nn.Module):
    r"""Propensity model :math:`\pi(x) = \mathrm{sigmoid}(f(x))`, trained by cross-entropy.

    Args:
        dimension: number of covariates q.
        width: hidden units; 0 is a linear model.

    Example:
        >>> Propensity(3, width=8)(torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    def __init__(self, dimension: int, width: int = 32) -> None:
        super().__init__()
        self.net = mlp(dimension, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[..., B]` of treatment at covariates `x` `[..., B, q]` scaled to [-1, 1]."""
        return self.net(x).squeeze(-1)

    def record_loss(self, batch: ScaledBatch) -> Tensor:
        """Cross-entropy `[B]` of (scaled covariates, treatment, outcome on [0, 1])."""
        x, a, _ = batch
        logits = self(x)
        return nn.functional.binary_cross_entropy_with_logits(logits, a.to(logits), reduction="none")


class Outcome(nn.Module):
    r"""Mean outcomes :math:`(\mu_0(x), \mu_1(x))` as two heads on one hidden layer, on the [0, 1] outcome scale.

    Trained by the squared error of the observed arm, so no network sees only one arm's records: under
    replace-one adjacency a record may change its arm, and separate fits would not be parallel.  Training
    starts from means near the middle of the range.

    Args:
        dimension: number of covariates q.
        width: hidden units; 0 is a linear model.

    Example:
        >>> Outcome(3, width=8)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, dimension: int, width: int = 32) -> None:
        super().__init__()
        self.net = mlp(dimension, width, 2)
        # the middle of the public range: less way to go than from its lower end
        self.net.get_parameter(f"{len(self.net) - 1}.bias").data.fill_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Both mean outcomes `[..., B, 2]` at covariates `x` `[..., B, q]` scaled to [-1, 1]."""
        return self.net(x)

    def hidden(self, x: Tensor) -> Tensor:
        """Hidden layer `[..., B, width]`; the covariates themselves in a linear model."""
        return self.net[:-1](x)

    def record_loss(self, batch: ScaledBatch) -> Tensor:
        """Squared error `[B]` of (scaled covariates, treatment, outcome on [0, 1])."""
        x, a, y = batch
        mean = self(x)
        observed = torch.where(a > 0.5, mean[..., 1], mean[..., 0])
        return (y.to(observed) - observed) ** 2
