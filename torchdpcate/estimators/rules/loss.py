"""The loss of a rule by its name, with the set of coefficients on which its slope is bounded."""

import math
from typing import Any

from torchdpcate.erm.domains import Ball, ConvexDomain, L1Ball
from torchdpcate.erm.loss_check import check_loss
from torchdpcate.erm.losses import Loss, Squared
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import as_number
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


def stated_slopes(name: Any, radius: Any, largest_entry: float) -> tuple[float, float | None, bool] | None:
    """Return what is known of the slope of the loss that a statement calls so; None for one that is not the library's.

    Args:
        name: By the user's name or the class's.
        radius: The stated radius, which the squared loss needs.
        largest_entry: Public bound of |psi_j|.

    Returns:
        The slope; the curvature or, where it depends on settings that are not stated, None; whether it is monotone.
    """
    if name in ("squared", Squared.__name__):
        return Squared(MOST_TARGET + largest_entry * as_number(radius)).slope, Squared.curvature, Squared.monotone
    known = LOSSES.class_names()
    if name not in LOSSES and name not in known:
        return None
    loss = LOSSES[known.get(name, name)]
    stated = isinstance(loss.curvature, float)
    return loss().slope, loss.curvature if stated else None, loss.monotone
