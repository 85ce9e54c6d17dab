"""Bounded sets of coefficients on which no propensity is clipped."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from torchdpcate.erm.descent import L1Ball
from torchdpcate.privacy.budget import positive


@dataclass(frozen=True)
class CoefficientSet(ABC):
    r"""The ball of a norm N around zero, public.

    .. math:: \{\theta : N(\theta) \le R\}, \qquad \|\theta\|_2 \le N(\theta) \le \sqrt p\, \|\theta\|_2

    so that it lies in the Euclidean ball of radius R, and a step of Euclidean length r from one of its points ends in
    the set 1 + r sqrt(p) / R times as large.

    Args:
        radius: R.

    Raises:
        InputError: If ``radius`` is not positive.
    """

    radius: float

    def __post_init__(self) -> None:
        """Refuse a radius that is not positive."""
        positive("radius", self.radius)

    @abstractmethod
    def norm(self, theta: Tensor) -> Tensor:
        """Return N of each row of theta [runs, p], [runs]."""

    @abstractmethod
    def dual(self, slope: Tensor) -> Tensor:
        """Return the largest slope'theta over N(theta) <= 1 for each row of ``slope`` [runs, p], [runs]."""

    @abstractmethod
    def project(self, theta: Tensor) -> Tensor:
        """Return the nearest point of the set to each row of theta [runs, p]."""

    def holds(self, theta: Tensor) -> Tensor:
        """Return whether each row of theta [runs, p] lies in the set, [runs]."""
        return self.norm(theta) <= self.radius


class L1Set(CoefficientSet):
    r"""Coefficients with ||theta||_1 <= R: with entries of psi up to m, \|psi'theta\| is at most m R.

    Where psi is an intercept and covariates that fill a cube, all of size m, it holds all coefficients of which that
    is true.

    Example:
        >>> import torch
        >>> theta = torch.tensor([[1.0, -1.5]]).double()
        >>> L1Set(2.0).holds(theta).tolist(), L1Set(2.0).dual(theta).tolist()
        ([False], [1.5])
    """

    def norm(self, theta: Tensor) -> Tensor:
        """See ``CoefficientSet``."""
        return theta.abs().sum(1)

    def dual(self, slope: Tensor) -> Tensor:
        """See ``CoefficientSet``."""
        return slope.abs().amax(1)

    def project(self, theta: Tensor) -> Tensor:
        """See ``CoefficientSet``."""
        return L1Ball(self.radius).project(theta)
