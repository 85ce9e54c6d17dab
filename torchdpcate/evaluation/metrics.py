"""Errors of estimated effects, as torchmetrics."""

import torch
from torch import Tensor
from torchmetrics import MeanMetric, MeanSquaredError

from torchdpcate.evaluation.root_error import pehe

__all__ = ["PEHE", "IntervalCoverage", "MeanEffectBias", "pehe"]


class PEHE(MeanSquaredError):
    r"""Root mean squared error of effects, sqrt(mean (tau_hat - tau)^2), in outcome units.

    Precision in estimation of heterogeneous effects, of Hill (2011), as a root.

    Example:
        >>> pehe = PEHE()
        >>> pehe.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        >>> round(pehe.compute().item(), 4)
        1.4142
    """

    def __init__(self) -> None:
        super().__init__(squared=False)
        self.set_dtype(torch.float64)


class MeanEffectBias(MeanMetric):
    """Bias of the mean effect, mean (tau_hat - tau), in outcome units.

    Example:
        >>> bias = MeanEffectBias()
        >>> bias.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        >>> bias.compute().item()
        -1.0
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_dtype(torch.float64)

    def update(self, effect: Tensor, truth: Tensor) -> None:  # type: ignore[override]
        """Add effects [m] and true effects [m]."""
        super().update(effect - truth)


class IntervalCoverage(MeanMetric):
    """Share of true values inside their intervals.

    Example:
        >>> coverage = IntervalCoverage()
        >>> coverage.update(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([0.5, 2.0]))
        >>> coverage.compute().item()
        0.5
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_dtype(torch.float64)

    def update(self, interval: Tensor, truth: Tensor) -> None:  # type: ignore[override]
        """Add intervals [m, 2] and true values [m]."""
        inside = (interval[:, 0] <= truth) & (truth <= interval[:, 1])
        super().update(inside.to(torch.float64))
