"""Convex sets of coefficients, and minimisers of weighted sums on them by projected gradient steps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.errors import NumericalError
from torchdpcate.fit.descent import Evaluate
from torchdpcate.fit.losses import Loss
from torchdpcate.fit.minimise import PerturbedSum, positive_ridges
from torchdpcate.privacy.budget import positive

Measure = Callable[[Tensor, Tensor], Tensor]
"""(theta, gradient) -> how far from stationary, [runs]."""
Project = Callable[[Tensor], Tensor]
"""theta [runs, p] -> the nearest points of a convex set."""


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
        size = theta.abs()
        ordered = size.sort(dim=1, descending=True).values
        ranks = torch.arange(1, theta.shape[1] + 1).to(theta)
        thresholds = (ordered.cumsum(1) - self.radius) / ranks
        # the threshold of the most entries that stay above their own is the largest of them all
        return theta.sign() * (size - thresholds.amax(1, keepdim=True).clamp_min(0)).clamp_min(0)


def minimise_within(
    psi: Tensor,
    target: Tensor,
    weights: Tensor,
    loss: Loss,
    gamma: float,
    linear_terms: Tensor,
    tolerance: float,
    domain: ConvexDomain,
) -> Tensor:
    r"""Minimise the sums of ``torchdpcate.fit.minimise.minimise`` on a convex set, one a row of ``linear_terms``.

    At the end the norm of the gradient mapping G = L (theta - P(theta - F'(theta) / L)) is at most tau =
    ``tolerance``, L a bound of the curvature, and the distance to the minimiser at most 2 tau / gamma (Nesterov 2004,
    theorem 2.2.7).

    Raises:
        NumericalError: The tolerance is finer than float64 resolves.
    """
    ridges, features = positive_ridges(gamma, len(linear_terms), psi.device), psi.double()
    problem = PerturbedSum(features, target.double(), weights.double(), loss, ridges, linear_terms.to(features))
    gram = (problem.psi.mT * problem.weights[..., None, :]) @ problem.psi
    most = loss.curvature * torch.linalg.eigvalsh(gram)[..., -1] * (1 + 1e-9) + ridges

    def mapping(theta: Tensor, gradient: Tensor) -> Tensor:
        return (most[:, None] * (theta - domain.project(theta - gradient / most[:, None]))).norm(dim=1)

    start = torch.zeros_like(problem.linear_terms)
    steepness = problem.evaluate(start)[1].norm(dim=1)
    theta, norm = descend_within(problem.evaluate, start, tolerance, ridges, most, steepness, domain.project, mapping)
    if not bool((norm <= tolerance).all()):
        raise NumericalError(f"the fit stopped at a gradient mapping above {tolerance:.1e}; raise the ridge")
    return theta


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
    r"""Accelerated gradient steps that are projected on a convex set; the stop is on the gradient mapping.

    .. math:: \theta_{k+1} = P(y_k - F'(y_k)/L), \quad G(\theta) = L (\theta - P(\theta - F'(\theta)/L))

    The rate is that of ``torchdpcate.fit.descent.descend`` (Nesterov 2004, section 2.2.4). The bracket is at most
    G^2 / mu, for :math:`\langle F'(\theta_0), \theta_0 - \theta^*\rangle \ge \mu\|\theta_0 - \theta^*\|^2`; and
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
