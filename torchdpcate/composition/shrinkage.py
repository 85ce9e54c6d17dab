"""Empirical Bayes: estimates drawn towards zero as far as their known noise says."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.errors import InputError

_TAUS = torch.logspace(-1.3010299956639813, 0.47712125471966244, 20, dtype=torch.float64)  # .05 to 3
_SPARSITY = (1.0, 0.5, 0.25, 0.1, 0.04)


@dataclass(frozen=True)
class EmpiricalBayes:
    r"""Posterior means of parameters that may be small, or mostly zero; post-processing, which costs nothing.

    .. math:: t_j \sim N(\theta_j, v_j), \qquad
        \theta_j \sim r\, N(0, (\tau s_j)^2 / r) + (1 - r)\, \delta_0

    with tau on 20 points between .05 and 3 and r in {1, .5, .25, .1, .04}, all equally likely, and tau = 0 (all of
    them are zero) with probability ``spike``. Source: after Johnstone & Silverman (2004), with weights over the grid
    in place of a maximum.

    Args:
        spike: Prior probability that all parameters are zero, in (0, 1).

    Raises:
        InputError: A spike outside (0, 1).

    Example:
        >>> t = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
        >>> EmpiricalBayes(0.5).mean(t, torch.full_like(t, 0.1), torch.ones_like(t)).round(decimals=8).tolist()
        [0.50101118, -0.13995869, 0.04641532]
    """

    spike: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.spike < 1:
            raise InputError(f"spike = {self.spike}: give a probability strictly between 0 and 1")

    def mean(self, t: Tensor, variance: Tensor, scale: Tensor) -> Tensor:
        """Return the posterior means, float64 [p]; arguments are those of ``moments``."""
        return self.moments(t, variance, scale)[0]

    def moments(self, t: Tensor, variance: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances, float64 [p] each.

        Args:
            t: Estimates [p].
            variance: v, of their noise, [p].
            scale: s, typical sizes that differ among parameters, [p].
        """
        tau, r = torch.meshgrid(_TAUS, torch.tensor(_SPARSITY, dtype=torch.float64), indexing="ij")
        tau, r = tau.reshape(-1, 1), r.reshape(-1, 1)
        wide = variance + (tau * scale).square() / r
        off = -0.5 * (variance.log() + t.square() / variance)
        on = r.log() - 0.5 * (wide.log() + t.square() / wide)
        none = off + torch.log1p(-r)  # minus infinity where r = 1
        both = torch.logaddexp(on, none)
        kept = 1 - variance / wide
        means = kept * t * (on - both).exp()
        squares = ((kept * t).square() + kept * variance) * (on - both).exp()
        cell = torch.tensor((1 - self.spike) / len(tau), dtype=torch.float64).log()
        zero = off.sum() + torch.tensor(self.spike, dtype=torch.float64).log()
        weights = torch.softmax(torch.cat([zero[None], both.sum(1) + cell]), 0)
        mean = weights[1:] @ means
        return mean, weights[1:] @ squares - mean.square()
