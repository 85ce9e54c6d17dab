"""Convex sets of coefficients that bound the linear predictor, with their projections."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.privacy.budget import positive


@dataclass(frozen=True)
class ConvexDomain(ABC):
    """A closed convex set around zero; public.

    Args:
        radius: Its radius in its own norm.

    Raises:
        InputError: If ``radius`` is not positive.
    """

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    @abstractmethod
    def project(self, theta: Tensor) -> Tensor:
        """Return the nearest point of the set to each row of theta [runs, p]."""


@dataclass(frozen=True)
class Ball(ConvexDomain):
    """Coefficients with ||theta||_2 <= radius.

    Example:
        >>> Ball(1.0).project(torch.tensor([[3.0, 4.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """

    def project(self, theta: Tensor) -> Tensor:
        """See ``ConvexDomain``."""
        return theta * (self.radius / theta.norm(dim=1, keepdim=True)).clamp_max(1.0)


@dataclass(frozen=True)
class L1Ball(ConvexDomain):
    """Coefficients with ||theta||_1 <= radius.

    The projection shrinks every entry by one threshold, found from the sorted entries (Duchi et al. 2008, figure 1).

    Example:
        >>> L1Ball(1.0).project(torch.tensor([[2.0, -1.5, 0.0]])).tolist()
        [[0.75, -0.25, 0.0]]
    """

    def project(self, theta: Tensor) -> Tensor:
        """See ``ConvexDomain``."""
        size = theta.abs()
        ordered = size.sort(dim=1, descending=True).values
        ranks = torch.arange(1, theta.shape[1] + 1).to(theta)
        thresholds = (ordered.cumsum(1) - self.radius) / ranks
        # the threshold of the most entries that stay above their own is the largest of them all
        return theta.sign() * (size - thresholds.amax(1, keepdim=True).clamp_min(0)).clamp_min(0)
