"""Damped Newton steps on many objectives, the gradient steps that finish what those cannot, and convex sets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchdpcate.errors import NumericalError
from torchdpcate.privacy.budget import positive

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""theta [runs, p] -> value [runs], gradient [runs, p], and whatever the step needs of the curvature [runs, ...]."""
Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(theta, gradient, curvature) -> what to take away from theta, [runs, p]."""
Measure = Callable[[Tensor, Tensor], Tensor]
"""(theta, gradient) -> how far from stationary, [runs]."""
Project = Callable[[Tensor], Tensor]
"""theta [runs, p] -> the nearest points of a convex set."""
Bounds = Callable[[], tuple[Tensor, Tensor]]
"""() -> least and largest curvature that the objective has anywhere, [runs] each; asked for where they are needed."""

_MOST_STEPS = 200  # Newton steps before gradient steps take over, or the fit gives up


def newton(
    evaluate: Evaluate,
    step: Step,
    start: Tensor,
    tolerance: float,
    *,
    measure: Measure | None = None,
    what: str = "the fit",
    remedy: str = "raise the ridge",
    bounds: Bounds | None = None,
    project: Project | None = None,
    part: Callable[[Tensor], tuple[Evaluate, Step]] | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Damped Newton steps with backtracking, side by side on the rows of ``start``.

    Steps may be inexact: how far from stationary the end is, is measured at the end itself. That Newton steps get
    there is certain for no data, and an error message would depend on the records. Given ``bounds``, 200
    of them are followed by ``descend``, which in real arithmetic reaches every stop, on all data:

    .. math:: k \le 2 + 2\sqrt{L/\mu}\, \ln\!\big(3\sqrt2\, (L/\mu)\, \|F'(\theta_0)\| / \tau\big)

    steps are enough, a number that has a bound which is public as n, the largest weight and gamma are.

    Args:
        evaluate: The objective; see ``Evaluate``.
        step: The direction; see ``Step``.
        start: First point, [runs, p].
        tolerance: Largest measure at the end.
        measure: How far from stationary a point is; None takes the norm of the gradient.
        what: What is fitted, for the error.
        remedy: What to change, for the error.
        bounds: Gives mu and L, [runs] each, between which the Hessian's eigenvalues lie everywhere; for a smooth,
            strongly convex objective, measured by its gradient or, with ``project``, by its gradient mapping.
        project: On the convex set to which theta is confined, that holds ``start``; None confines it to none.
        part: Gives both for some rows alone, once half of them have arrived; without ``bounds``.

    Returns:
        The minimisers [runs, p] and their measures [runs].

    Raises:
        NumericalError: The tolerance was not reached, given ``bounds`` because it is finer than float64 resolves;
            nothing may be released.
    """
    far = measure or _gradient_norm
    theta = start.clone()
    value, gradient, curvature = evaluate(theta)
    norm = far(theta, gradient)
    begin = value, gradient.norm(dim=1)
    for _ in range(_MOST_STEPS):
        going = norm > tolerance
        if not bool(going.any()):
            break
        if part is not None and 2 * int(going.sum()) <= len(going):
            (rows,) = torch.where(going)
            some = partial(_rows_of, part, rows)
            theta[rows], norm[rows] = newton(
                *part(rows), theta[rows], tolerance, measure=measure, what=what, remedy=remedy, part=some
            )
            break
        direction = step(theta, gradient, curvature)
        decrease = (gradient * direction).sum(1)
        length = going.to(theta)  # a run that has arrived stays where it is
        while True:
            candidate = theta - length[:, None] * direction
            new_value, new_gradient, curvature = evaluate(candidate)
            new_norm = far(candidate, new_gradient)
            # a smaller gradient counts only where the value is level: else the two rules may take turns for ever;
            # a sum that has come near zero is resolved no finer than at its start
            level = new_value <= value + 1e-13 * torch.maximum(value.abs(), begin[0].abs())
            better = (new_value <= value - 1e-4 * length * decrease) | (level & (new_norm < norm))
            worse = going & ~better & (length > 1e-9)
            if not bool(worse.any()):
                break
            length = torch.where(worse, length / 2, length)
        theta, value, gradient, norm = candidate, new_value, new_gradient, new_norm
    if bounds is not None and not bool((norm <= tolerance).all()):
        # from a point that is no higher than the start: its distance to the minimiser is then bounded by the start's
        lower = (value <= begin[0])[:, None]
        first, rest = torch.where(lower, theta, start), (tolerance, *bounds(), begin[1])
        if project is None:
            theta, norm = descend(evaluate, first, *rest)
        else:
            theta, norm = descend_within(evaluate, first, *rest, project, far)
    if bool((norm <= tolerance).all()):  # nan is not: a factor that failed shows here
        return theta, norm
    raise NumericalError(f"{what} stopped at a gradient norm above {tolerance:.1e}: nothing is released; {remedy}")


def descend(
    evaluate: Evaluate, start: Tensor, tolerance: float, least: Tensor, most: Tensor, steepness: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Accelerated gradient steps with constant momentum, side by side on the rows of ``start``.

    .. math:: \theta_{k+1} = y_k - F'(y_k)/L, \quad
        y_{k+1} = \theta_{k+1} + \tfrac{1 - r}{1 + r} (\theta_{k+1} - \theta_k), \quad r = \sqrt{\mu/L}

    Nesterov (2004, theorem 2.2.3): :math:`F(\theta_k) - F^* \le (1 - r)^k (F(\theta_0) - F^* +
    \tfrac\mu2\|\theta_0 - \theta^*\|^2)`. If F(theta_0) is at most F at a point where the gradient has norm G, the
    bracket is at most G^2 / mu, and :math:`\|F'(y_k)\| \le L (2\|\theta_k - \theta^*\| + \|\theta_{k-1} -
    \theta^*\|) \le 3\sqrt2 (L/\mu)\, G (1 - r)^{(k-1)/2}`. The number of steps follows from that
    bound, before the first is taken.

    Args:
        evaluate: The objective, mu-strongly convex and L-smooth.
        start: First point, [runs, p].
        tolerance: Largest norm of the gradient at the end.
        least: mu, [runs].
        most: L, [runs].
        steepness: G, [runs].

    Returns:
        Points [runs, p] and the norms of their gradients [runs], in real arithmetic at most ``tolerance``.
    """
    ratio = (least / most).sqrt()
    momentum = ((1 - ratio) / (1 + ratio))[:, None]
    needed = 2 / ratio * (3 * math.sqrt(2) * most / least * steepness / tolerance).clamp_min(1.0).log()
    point = ahead = start
    for _ in range(3 + math.ceil(needed.max().item())):
        gradient = evaluate(ahead)[1]
        norm = gradient.norm(dim=1)
        going = (norm > tolerance)[:, None]
        if not bool(going.any()):
            break
        new = ahead - gradient / most[:, None]
        ahead, point = torch.where(going, new + momentum * (new - point), ahead), new
    return ahead, norm


def descend_within(
    evaluate: Evaluate,
    start: Tensor,
    tolerance: float,
    least: Tensor,
    most: Tensor,
    steepness: Tensor,
    project: Project,
    measure: Measure,
) -> tuple[Tensor, Tensor]:
    r"""Like ``descend`` on a convex set: each gradient step is projected, and the stop is on the gradient mapping.

    .. math:: \theta_{k+1} = P(y_k - F'(y_k)/L), \quad G(\theta) = L (\theta - P(\theta - F'(\theta)/L))

    The rate is the same (Nesterov 2004, section 2.2.4). The bracket is again at most G^2 / mu, for
    :math:`\langle F'(\theta_0), \theta_0 - \theta^*\rangle \ge \mu\|\theta_0 - \theta^*\|^2` on a convex set too; and
    as a gradient step takes no point away from the minimiser, :math:`\|G(\theta_k)\| \le 2L\|\theta_k - \theta^*\|
    \le 2\sqrt2 (L/\mu)\, G (1 - r)^{k/2}`.

    Args:
        evaluate: See ``descend``, and for all up to ``steepness``.
        start: First point, [runs, p], in the set.
        tolerance: Largest measure at the end.
        least: mu, [runs].
        most: L, [runs].
        steepness: G, [runs].
        project: On the set.
        measure: Norm of the gradient mapping, by this L or a smaller one that bounds the curvature too.

    Returns:
        Points of the set [runs, p] and their measures [runs], in real arithmetic at most ``tolerance``.
    """
    ratio = (least / most).sqrt()
    momentum = ((1 - ratio) / (1 + ratio))[:, None]
    needed = 2 / ratio * (2 * math.sqrt(2) * most / least * steepness / tolerance).clamp_min(1.0).log()
    point = ahead = start
    for _ in range(2 + math.ceil(needed.max().item())):
        norm = measure(point, evaluate(point)[1])
        going = (norm > tolerance)[:, None]
        if not bool(going.any()):
            break
        new = torch.where(going, project(ahead - evaluate(ahead)[1] / most[:, None]), point)
        ahead, point = new + momentum * (new - point), new
    return point, measure(point, evaluate(point)[1])


def _rows_of(part: Callable[[Tensor], tuple[Evaluate, Step]], rows: Tensor, some: Tensor) -> tuple[Evaluate, Step]:
    return part(rows[some])


def _gradient_norm(theta: Tensor, gradient: Tensor) -> Tensor:
    return gradient.norm(dim=1)


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
