"""What a reader learns from one choice: the exact log-likelihood ratio of the chosen policy on two neighbours."""

import torch
from torch import Tensor

from torchdpcate.privacy.selection import SELECTIONS

_LEAST = 1e-300  # probabilities below are taken for it, so that ratios are lower bounds

MECHANISMS = ("exponential", "permute_and_flip")
"""Whose laws have a small relative error, however improbable a policy is."""


def log_likelihood_ratio(name: str, epsilon: float, spread: float, before: Tensor, after: Tensor) -> float:
    r"""Return the largest absolute log-likelihood ratio of the chosen index.

    .. math:: \max_\pi \big| \log P(\pi \mid U) - \log P(\pi \mid U') \big|

    which pure epsilon-DP bounds by epsilon for every pair of neighbours. Nothing is sampled; the relative error of the
    laws is below 1e-12. The curator's.

    Args:
        name: Of the mechanism, one of ``MECHANISMS``.
        epsilon: That it is calibrated for.
        spread: That it is calibrated for.
        before: U, [M].
        after: U', [M].

    Returns:
        The ratio; a lower bound of it where it exceeds some 600.

    Example:
        >>> U, V = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 20.0])
        >>> round(log_likelihood_ratio("permute_and_flip", 1.0, 20.0, U, V), 6)  # a whole spread apart
        1.0
        >>> round(log_likelihood_ratio("exponential", 1.0, 20.0, U, 30 * V), 3)
        29.307
    """
    laws = SELECTIONS[name](epsilon, spread).probabilities(torch.stack([before, after])).clamp(min=_LEAST).log()
    return float((laws[0] - laws[1]).abs().max())
