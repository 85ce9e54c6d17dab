"""Convex losses of a linear predictor u = psi'theta, with exact derivatives and the bounds that noise rests on."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import positive
from torchdpcate.privacy.guarantee import Condition, of_library


class Slopes(NamedTuple):
    """A loss and its derivatives in the linear predictor, each of the predictor's shape.

    Attributes:
        value: l(u, t).
        first: dl/du.
        second: d^2 l/du^2; at a kink of dl/du one of its two limits.
    """

    value: Tensor
    first: Tensor
    second: Tensor


class Loss(ABC):
    """A convex loss l(u, t) of the linear predictor u and the target t.

    Attributes:
        targets: Least and largest target for which the bounds hold; None where nothing is declared.
        slope: sup |dl/du| over the public domain.
        curvature: sup d^2 l/du^2.
        monotone: Whether dl/du never changes its sign, for any one target; Gaussian objective noise is then less.
    """

    targets: ClassVar[tuple[float, float] | None] = None
    monotone: ClassVar[bool] = False
    slope: float
    curvature: float

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What a guarantee rests on beside its proof: nothing for the library's losses, whose bounds are proved."""
        return loss_conditions(self)

    @abstractmethod
    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """Return the loss and its two derivatives at u, for targets of a shape that broadcasts to u's."""


def loss_conditions(loss: Loss) -> tuple[Condition, ...]:
    """Return what claims on a loss rest on: one that is not the library's cannot say that it is nothing."""
    if of_library(loss):
        return ()
    text = (
        f"loss = {type(loss).__name__}, which is no loss of the library, is convex, keeps what it declares of its "
        "slope and curvature everywhere, and works out each record's slope from that record alone; it was tried on a "
        "public grid"
    )
    return (Condition("loss", text),)


@dataclass(frozen=True)
class HuberHinge(Loss):
    r"""The hinge loss with a rounded corner (Huber's hinge), for targets t = +-1.

    With z = t u and h = ``smoothing`` it has slope 1 and curvature 1/(2h), and is

    .. math:: l = 0 \ (z > 1 + h), \quad (1 + h - z)^2 / (4h) \ (|1 - z| \le h), \quad 1 - z \ (z < 1 - h).

    Source: Chapelle (2007); Chaudhuri, Monteleoni & Sarwate (2011), section 3.4.2.

    Args:
        smoothing: h > 0.

    Raises:
        InputError: If ``smoothing`` is not positive.

    Example:
        >>> HuberHinge(0.5)(torch.tensor([0.0, 1.0, 2.0]), torch.tensor(1.0)).value.tolist()
        [1.0, 0.125, 0.0]
    """

    targets: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    monotone: ClassVar[bool] = True
    smoothing: float = 0.5

    def __post_init__(self) -> None:
        positive("smoothing", self.smoothing)

    @property
    def slope(self) -> float:  # type: ignore[override]
        """1."""
        return 1.0

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """1/(2h)."""
        return 1 / (2 * self.smoothing)

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``."""
        h, z = self.smoothing, target * u
        reach = (1 + h - z).clamp(0, 2 * h)  # how far into the rounded corner; 2h is its far end
        value = reach.square() / (4 * h) + (1 - h - z).clamp_min(0)
        bent = ((z - 1).abs() <= h).to(u)
        return Slopes(value, -target * reach / (2 * h), target * target * bent / (2 * h))


@dataclass(frozen=True)
class Logistic(Loss):
    """Logistic loss log(1 + exp(-t u)), t = +-1: slope 1, curvature 1/4.

    Example:
        >>> round(Logistic()(torch.zeros(1), torch.ones(1)).value.item(), 6)
        0.693147
    """

    targets = (-1.0, 1.0)
    monotone = True
    slope = 1.0
    curvature = 0.25

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``."""
        z = target * u
        p = torch.sigmoid(-z)
        return Slopes(torch.nn.functional.softplus(-z), -target * p, target * target * p * torch.sigmoid(z))


@dataclass(frozen=True)
class CrossEntropy(Loss):
    r"""Logistic loss of a share t in [0, 1], log(1 + e^u) - t u: slope 1, curvature 1/4.

    For t = 0 and 1 it is ``Logistic`` with labels -1 and +1. Its mean model is sigmoid(u), which stays in [0, 1] as an
    outcome model of scaled outcomes must (Papke & Wooldridge 1996). Where a mean is known to lie within [1 - ``slope``,
    ``slope``], the loss goes on straight where sigmoid(u) leaves that.

    Args:
        slope: In (1/2, 1].

    Example:
        >>> round(CrossEntropy()(torch.zeros(1), torch.full((1,), 0.25)).first.item(), 6)
        0.25
    """

    targets = (0.0, 1.0)
    curvature = 0.25
    slope: float = 1.0

    def __post_init__(self) -> None:
        if not 0.5 < self.slope <= 1:
            raise InputError(f"slope = {self.slope}: give the largest mean, above 1/2 and at most 1")

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``."""
        edge = math.log(self.slope / (1 - self.slope)) if self.slope < 1 else math.inf
        inside = u.clamp(-edge, edge)
        p = torch.sigmoid(inside)
        # log(1 + e^u) - t u, from two terms that are both positive: nothing large is subtracted
        value = target * torch.nn.functional.softplus(-inside) + (1 - target) * torch.nn.functional.softplus(inside)
        curved = p * torch.sigmoid(-inside) * (u.abs() < edge)
        return Slopes(value + (p - target) * (u - inside), p - target, curved)


@dataclass(frozen=True)
class Huber(Loss):
    r"""Huber's loss of the residual r = t - u: r^2 up to tau, then 2 tau |r| - tau^2. Slope 2 tau, curvature 2.

    Args:
        threshold: tau > 0; infinity is the squared loss, whose slope is not bounded.

    Raises:
        InputError: If ``threshold`` is not positive.

    Example:
        >>> Huber(1.0)(torch.tensor([0.0, 0.0]), torch.tensor([0.5, 3.0])).value.tolist()
        [0.25, 5.0]
    """

    targets: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    threshold: float

    def __post_init__(self) -> None:
        if self.threshold != math.inf:
            positive("threshold", self.threshold)

    @property
    def slope(self) -> float:  # type: ignore[override]
        """2 tau."""
        return 2 * self.threshold

    curvature = 2.0

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``."""
        r, tau = target - u, self.threshold
        clipped = r.clamp(-tau, tau)
        # r^2 inside and 2 tau |r| - tau^2 outside, without infinity minus infinity when tau is infinite
        return Slopes(clipped * (2 * r - clipped), -2 * clipped, 2 * (r.abs() <= tau).to(r))


@dataclass(frozen=True)
class Squared(Loss):
    """Squared loss (t - u)^2 on a bounded domain, where |t - u| <= ``most_residual``.

    Slope twice that, curvature 2. Without a bounded domain of theta it has no finite slope: use ``Huber``.

    Args:
        most_residual: Public bound of |t - u| over records and domain, for instance M_y + M_inf s on an l1 ball of
            radius s.

    Raises:
        InputError: If ``most_residual`` is not positive.

    Example:
        >>> Squared(3.0).slope
        6.0
    """

    targets: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    most_residual: float

    def __post_init__(self) -> None:
        positive("most_residual", self.most_residual)

    @property
    def slope(self) -> float:  # type: ignore[override]
        """Twice the largest residual."""
        return 2 * self.most_residual

    curvature = 2.0

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``."""
        r = target - u
        return Slopes(r.square(), -2 * r, torch.full_like(r, 2.0))
