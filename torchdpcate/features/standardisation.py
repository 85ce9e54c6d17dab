"""Covariates in units of their released spread: a public map of each record."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 3.0
"""Standardised covariates are clipped to [-MOST, MOST]."""


@dataclass(frozen=True, eq=False)
class Standardisation:
    r"""z = clip((u - mean) / sd, -3, 3) for covariates u scaled to [-1, 1].

    Its numbers are released before anything else is computed from z, so that z is a public map of each record, and a
    clip bounds what one record can do.

    Attributes:
        mean: Released means, float64 [k].
        sd: Released standard deviations, float64 [k], positive.

    Example:
        >>> Standardisation(torch.zeros(1).double(), torch.full((1,), 0.25).double())(torch.tensor([[0.5], [1.0]])).T
        tensor([[2., 3.]], dtype=torch.float64)
    """

    mean: Tensor
    sd: Tensor

    def __call__(self, u: Tensor) -> Tensor:
        """Return z [n, k] of scaled covariates u [n, k]."""
        device = u.device
        return ((u.double() - self.mean.to(device)) / self.sd.to(device)).clamp(-MOST, MOST)

    @classmethod
    def none(cls, k: int) -> "Standardisation":
        """Return that which leaves k scaled covariates as they are.

        Args:
            k: How many.
        """
        zero = torch.zeros(k, dtype=torch.float64)
        return cls(zero, zero + 1)

    def tensors(self) -> dict[str, Tensor]:
        """Return its numbers by name."""
        return {"mean": self.mean, "sd": self.sd}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Standardisation":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers of shapes that do not fit, or a spread that is not positive.
        """
        mean, sd = tensors["mean"], tensors["sd"]
        if not mean.shape == sd.shape == (len(mean),) or not bool((sd > 0).all()):
            raise ValueError("standardisation: mean and sd [k], sd positive")
        if not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in (mean, sd)):
            raise ValueError("standardisation: numbers are not finite float64")
        return cls(mean, sd)
