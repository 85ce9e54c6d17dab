"""The loss of a rule by its name, with the set of coefficients on which its slope is bounded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdpcate.erm.domains import Ball, ConvexDomain, L1Ball
from torchdpcate.erm.loss_check import check_loss
from torchdpcate.erm.losses import Logistic, Loss, Squared
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import as_number, positive
from torchdpcate.registry import Registry

LOSSES = Registry("loss")
"""Losses of labels by the names that users give; the squared one needs a radius."""
MOST_TARGET = 2.0
"""Of the squared loss: twice a label times a magnitude."""
_LABELS = (-1.0, 1.0)  # what rules feed to losses, but for the squared one


def make_loss(loss: str | Loss, radius: float | None, largest_entry: float) -> tuple[Loss, ConvexDomain | None]:
    r"""Return a rule's loss, and the set to which its coefficients are confined; None leaves them free.

    The squared loss :math:`(2 m t - u)^2` lives on an l1 ball of this radius, where
    :math:`|u| \le \max_j |\psi_j|\, r` bounds its slope by :math:`2 (2 + \max_j |\psi_j|\, r)`.

    Args:
        loss: ``huber_hinge``, ``logistic``, ``squared``, or a ``Loss``, which `check_loss` tries at both labels.
        radius: Public bound of the coefficients: l2, or l1 for the squared loss, which needs one.
        largest_entry: Public bound of |psi_j|.

    Raises:
        InputError: No loss of this name, a radius that is not positive, or a squared loss without one; a loss that is
            not for labels of -1 and 1, or that breaks its bounds there.

    Example:
        >>> loss, ball = make_loss("squared", 3.0, 0.5)
        >>> loss.slope, ball
        (7.0, L1Ball(radius=3.0))
    """
    if radius is not None and not radius > 0:
        raise InputError(f"radius = {radius}: give a number above 0, or null for none")
    if loss == "squared" or isinstance(loss, Squared):
        if radius is None:
            raise InputError("loss = squared: its slope is bounded for bounded coefficients alone; give a radius")
        return Squared(MOST_TARGET + largest_entry * radius), L1Ball(radius)
    domain = None if radius is None else Ball(radius)
    if isinstance(loss, Loss):
        check_loss(loss, _LABELS, math.inf if radius is None else radius)  # |u| <= ||psi|| ||theta||
        return loss, domain
    if loss not in LOSSES:
        raise InputError(f"loss = {loss}: choose one of {', '.join(LOSSES)}, squared")
    return LOSSES.make(loss, Loss), domain


@dataclass(frozen=True)
class LossBounds:
    """Public bounds of a loss, on which the noise rests.

    Attributes:
        slope: Largest slope.
        curvature: Largest curvature.
        monotone: Whether the slope never changes its sign.
        logistic: Whether it is the library's logistic one.
    """

    slope: float
    curvature: float
    monotone: bool
    logistic: bool

    @classmethod
    def of(cls, loss: Loss) -> "LossBounds":
        """Return those of a loss."""
        return cls(loss.slope, loss.curvature, loss.monotone, type(loss) is Logistic)

    @classmethod
    def restated(cls, public: Mapping[str, Any], largest_entry: float, curved: bool) -> "LossBounds":
        """Return those of the loss that a statement names; what its name does not say is as stated.

        Args:
            public: Constants of a statement; any value may be forged.
            largest_entry: Public bound of |psi_j|.
            curved: Whether noise depends on its curvature.

        Raises:
            InputError, LookupError, TypeError, ValueError: There is no such loss.
        """
        name = public["loss"]
        if is_squared(name):
            return cls.of(Squared(MOST_TARGET + largest_entry * as_number(public["radius"])))
        curvature = as_number(public["loss_curvature"]) if curved else math.inf
        if not is_known(name):
            slope = positive("loss_slope", as_number(public["loss_slope"]))
            return cls(slope, curvature, public.get("loss_monotone") is True, logistic=False)
        loss = LOSSES[LOSSES.class_names().get(name, name)]
        if isinstance(loss.curvature, float):
            return cls.of(loss())
        return cls(loss().slope, curvature, loss.monotone, logistic=False)

    def public(self, curved: bool) -> dict[str, Any]:
        """Return them by their names in statements.

        Args:
            curved: Whether noise depends on the curvature.
        """
        of_curvature = {"loss_curvature": self.curvature, "loss_monotone": self.monotone} if curved else {}
        return {"loss_slope": self.slope, **of_curvature}


def is_squared(name: Any) -> bool:
    """Whether statements call the squared loss so."""
    return name in ("squared", Squared.__name__)


def is_known(name: Any) -> bool:
    """Whether statements call one of the library's losses so."""
    return is_squared(name) or name in LOSSES or name in LOSSES.class_names()
