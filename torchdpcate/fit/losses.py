"""Convex losses of a linear predictor u = psi'theta, with exact derivatives and the bounds that noise rests on."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import positive


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
        slope: sup |dl/du| over the public domain.
        curvature: sup d^2 l/du^2.
        monotone: Whether dl/du never changes its sign, for any one target; Gaussian objective noise is then less.
    """

    monotone: ClassVar[bool] = False
    slope: float
    curvature: float

    @abstractmethod
    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """Return the loss and its two derivatives at u, for targets of a shape that broadcasts to u's."""


@dataclass(frozen=True)
class LossBounds:
    """Public bounds of a loss, on which noise rests.

    Attributes:
        slope: Largest slope.
        curvature: Largest curvature.
        monotone: Whether the slope never changes its sign.
        logistic: Whether slope and curvature of a record go together as in the library's logistic losses.
    """

    slope: float
    curvature: float
    monotone: bool = False
    logistic: bool = False

    @classmethod
    def of(cls, loss: Loss) -> "LossBounds":
        """Return those of a loss."""
        return cls(loss.slope, loss.curvature, loss.monotone, type(loss) in (Logistic, CrossEntropy))


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
        h, z = self.smoothing, target * u
        largest = (1 + h - z).clamp(0, 2 * h)  # how far into the rounded corner; 2h is its far end
        value = largest.square() / (4 * h) + (1 - h - z).clamp_min(0)
        bent = ((z - 1).abs() <= h).to(u)
        return Slopes(value, -target * largest / (2 * h), target * target * bent / (2 * h))


@dataclass(frozen=True)
class Logistic(Loss):
    """Logistic loss log(1 + exp(-t u)), t = +-1: slope 1, curvature 1/4.

    Example:
        >>> round(Logistic()(torch.zeros(1), torch.ones(1)).value.item(), 6)
        0.693147
    """

    monotone = True
    slope = 1.0
    curvature = 0.25

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
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

    curvature = 0.25
    slope: float = 1.0

    def __post_init__(self) -> None:
        if not 0.5 < self.slope <= 1:
            raise InputError(f"slope = {self.slope}: give the largest mean, above 1/2 and at most 1")

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
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
        r, tau = target - u, self.threshold
        clipped = r.clamp(-tau, tau)
        # r^2 inside and 2 tau |r| - tau^2 outside, without infinity minus infinity when tau is infinite
        return Slopes(clipped * (2 * r - clipped), -2 * clipped, 2 * (r.abs() <= tau).to(r))


@dataclass(frozen=True)
class BalancingLoss(Loss):
    r"""Loss -S(e, z) of the linear predictor g, whose stationarity balances weighted covariates.

    With v = t g, t = +1 for the treated and -1 for controls, and L = logit(1 - eta),

    .. math:: \ell = A_t (1 + e^{-v}) - B_t v, \qquad A_+ = B_- = 1\{\alpha = -1\}, \quad A_- = B_+ = 1\{\beta = -1\}

    for \|v\| <= L, extended linearly beyond (the clipped score; for ATT and ATC below -L alone, where a weight could
    grow); for the ATO the logistic loss, unclipped. Its slope is
    -w_1 for the treated and +w_0 for controls, so that the minimiser of the sum has sum t w psi = 0.

    Slope W (1 for the ATO), curvature kappa of the ``Estimand``. Source: Zhao (2019); theory note
    ``covariate_balancing``, section 1, which corrects the ATT and ATC rows of Ohnishi & Awan (2024), table 1.

    Args:
        estimand: Estimand and clip.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> loss = BalancingLoss(ATE(0.1))
        >>> round(loss(torch.tensor([0.3]).double(), torch.ones(1)).value.item(), 6)
        1.440818
    """

    monotone: ClassVar[bool] = True
    estimand: Estimand

    @property
    def slope(self) -> float:  # type: ignore[override]
        """W, for the ATO 1."""
        return 1.0 if self.estimand.scoring_rule == "logistic" else self.estimand.largest

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """Kappa, the largest second derivative in g: (1-eta)/eta, of the logistic loss 1/4."""
        of = self.estimand
        return Logistic.curvature if of.scoring_rule == "logistic" else (1 - of.overlap) / of.overlap

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        """See ``Loss``; ``target`` is +1 for the treated and -1 for controls."""
        if self.estimand.scoring_rule == "logistic":
            return Logistic()(u, target)
        alpha, beta = self.estimand.powers
        largest, v = self.estimand.score_bound, target * u
        treated = target > 0
        curved = torch.where(treated, float(alpha == -1), float(beta == -1)).to(u)
        linear = torch.where(treated, float(beta == -1), float(alpha == -1)).to(u)
        inside = v.clamp(-largest, largest if self.estimand.symmetric else math.inf)
        power = curved * torch.exp(-inside)
        slope = -power - linear
        value = curved + power - linear * inside + slope * (v - inside)
        return Slopes(value, target * slope, target * target * power * (v == inside))
