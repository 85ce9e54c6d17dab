"""The error of estimated effects as one number."""

import torch
from torch import Tensor


def pehe(effect: Tensor, truth: Tensor) -> float:
    r"""Return the PEHE of effects [m] against true effects [m], in outcome units.

    .. math:: \Big(\frac{1}{m} \sum_i (\hat\tau_i - \tau_i)^2\Big)^{1/2}

    ``evaluation.metrics.PEHE`` is the same number over batches.

    Example:
        >>> round(pehe(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])), 4)
        1.4142
    """
    difference = torch.as_tensor(effect, dtype=torch.float64) - torch.as_tensor(truth, dtype=torch.float64)
    return difference.square().mean().sqrt().item()
