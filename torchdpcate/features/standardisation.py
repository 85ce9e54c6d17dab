"""Covariates in units of their released spread: a public map of each record."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 3.0
"""Standardised covariates are clipped to [-MOST, MOST]."""


@dataclass(frozen=True, eq=False)
class Standardisation:
    r"""z = clip((u - mean) / sd, -3, 3), then if wished clip(z W, -3, 3), for covariates u scaled to [-1, 1].

    Its numbers are released before anything else is computed from z, so that z is a public map of each record, and a
    clip bounds what one record can do.

    Attributes:
        mean: Released means, float64 [k].
        sd: Released standard deviations, float64 [k], positive.
        rotation: Symmetric W [k, k] that takes correlations away; None for none.

    Example:
        >>> Standardisation(torch.zeros(1).double(), torch.full((1,), 0.25).double())(torch.tensor([[0.5], [1.0]])).T
        tensor([[2., 3.]], dtype=torch.float64)
    """

    mean: Tensor
    sd: Tensor
    rotation: Tensor | None = None

    def __call__(self, u: Tensor) -> Tensor:
        """Return z [n, k] of scaled covariates u [n, k]."""
        device = u.device
        z = ((u.double() - self.mean.to(device)) / self.sd.to(device)).clamp(-MOST, MOST)
        return z if self.rotation is None else (z @ self.rotation.to(device)).clamp(-MOST, MOST)

    def tensors(self) -> dict[str, Tensor]:
        """Return its numbers by name."""
        rotation = {} if self.rotation is None else {"rotation": self.rotation}
        return {"mean": self.mean, "sd": self.sd, **rotation}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Standardisation":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers of shapes that do not fit, or a spread that is not positive.
        """
        mean, sd, rotation = tensors["mean"], tensors["sd"], tensors.get("rotation")
        shapes = [mean.shape == sd.shape == (len(mean),), rotation is None or rotation.shape == (len(mean),) * 2]
        given = [tensor for tensor in (mean, sd, rotation) if tensor is not None]
        if not all(shapes) or not bool((sd > 0).all()):
            raise ValueError("standardisation: mean and sd [k], sd positive, rotation [k, k]")
        if not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in given):
            raise ValueError("standardisation: numbers are not finite float64")
        return cls(mean, sd, rotation)
