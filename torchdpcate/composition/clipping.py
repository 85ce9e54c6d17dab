"""What a clip does to the mean of doubly robust scores, by released numbers and a law of the residuals."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_HALVINGS = 60
_DEVIATIONS = (1e-6, 1e3)  # of residuals, in clips
_NODES, _FARTHEST = 41, 5.0  # of a normal number


class ArmScores(NamedTuple):
    r"""Scores :math:`(\varphi - c)/S` of one arm at points, [N].

    Attributes:
        middle: Their means, [N].
        pull: What they move by per unit of the outcome, with its sign, [N].
        share: Probability of the arm, [N].
    """

    middle: Tensor
    pull: Tensor
    share: Tensor


class Clipped(NamedTuple):
    r"""Clipped scores of one arm at points, [N] each.

    Attributes:
        inside: Probability that a score is not clipped.
        mean: Of the clipped score.
        square: Mean of its square.
        product: Mean of it times the residual's pull in the outcome regression.
    """

    inside: Tensor
    mean: Tensor
    square: Tensor
    product: Tensor


def first_order(pi: Tensor, control: Tensor, treated: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return what the mean clipped score moves by per unit of errors of m_0 and m_1 at points, [N] each.

    .. math:: (p_0 - p_1)\,\pi - (1 - p), \qquad (p_0 - p_1)(1 - \pi) + 1 - p,
        \qquad p = E[\pi p_1 + (1 - \pi) p_0] .

    A treated score moves by :math:`1 - 1/\pi` per unit of m_1, a control's by 1, if they are not clipped; those that
    are stay where they are but for c, the mean of :math:`m_1 - m_0`, which they lie about.

    Args:
        pi: Propensities, [N].
        control: Probability p_0 that a control's score is not clipped, [N].
        treated: p_1, that of a treated one, [N].

    Example:
        >>> half, all_of_them = torch.tensor([0.5]), torch.tensor([1.0])
        >>> [v.item() for v in first_order(half, all_of_them, all_of_them)]
        [0.0, 0.0]
    """
    out = 1 - (pi * treated + (1 - pi) * control).mean()
    return (control - treated) * pi - out, (control - treated) * (1 - pi) + out


class ClippedNormal(NamedTuple):
    """Of a normal number, clipped to [-1, 1]: how likely it is inside, its mean and that of its square."""

    inside: Tensor
    mean: Tensor
    square: Tensor


def clipped_normal(mean: Tensor, deviation: Tensor) -> ClippedNormal:
    r"""Return moments of normal numbers that are clipped to [-1, 1].

    With :math:`\alpha, \beta = (\mp 1 - \mu)/s` and :math:`p = \Phi(\beta) - \Phi(\alpha)`

    .. math:: \mu p + s (\phi(\alpha) - \phi(\beta)) + 1 - \Phi(\beta) - \Phi(\alpha), \quad
        (\mu^2 + s^2) p + 2 \mu s (\phi(\alpha) - \phi(\beta)) + s^2 (\alpha\phi(\alpha) - \beta\phi(\beta)) + 1 - p .

    Args:
        mean: Of the numbers, any shape.
        deviation: Their standard deviations, positive.

    Example:
        >>> [abs(round(v.item(), 4)) for v in clipped_normal(torch.zeros(1).double(), torch.ones(1).double())]
        [0.6827, 0.0, 0.5161]
    """
    a, b = (-1 - mean) / deviation, (1 - mean) / deviation
    below_a, below_b = torch.special.ndtr(a), torch.special.ndtr(b)
    at_a, at_b = (torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi) for x in (a, b))
    inside, moved = below_b - below_a, deviation * (at_a - at_b)
    square = (mean.square() + deviation.square()) * inside + 2 * mean * moved
    square = square + deviation.square() * (a * at_a - b * at_b) + 1 - inside
    return ClippedNormal(inside, mean * inside + moved + 1 - below_b - below_a, square)


def normal_residual(arms: tuple[ArmScores, ArmScores], square: float) -> float:
    """Return the standard deviation of normal residuals by which clipped scores have this mean square, by halving.

    Args:
        arms: Controls and treated.
        square: Released, in (0, 1).
    """
    size = max(float((1 / arm.pull.abs()).max()) for arm in arms)
    low, high = (math.log(s * size) for s in _DEVIATIONS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        s = math.exp(middle)
        found = sum(float((arm.share * clipped_normal(arm.middle, s * arm.pull.abs()).square).mean()) for arm in arms)
        low, high = (middle, high) if found < square else (low, middle)
    return math.exp(high)


def clipped_by_normal(arm: ArmScores, residual: float, slope: float) -> Clipped:
    """Return what the clip does where residuals are normal.

    Args:
        arm: Controls or treated.
        residual: Standard deviation of the residuals.
        slope: At which the outcome regression clips them.
    """
    z = torch.linspace(-_FARTHEST, _FARTHEST, _NODES, dtype=torch.float64)
    weight = torch.softmax(-z.square() / 2, 0) * (residual * z).clamp(-slope, slope)
    scores = (arm.middle[:, None] + residual * arm.pull[:, None] * z).clamp(-1, 1)
    return Clipped(*clipped_normal(arm.middle, residual * arm.pull.abs()), scores @ weight)


def clipped_of_two_values(arm: ArmScores, mean: Tensor, width: float) -> Clipped:
    """Return what the clip does where the outcome has two values, of which the regression's pull is one apart.

    Args:
        arm: Controls or treated.
        mean: Probability of the higher value, [N].
        width: From the lower to the higher value.
    """
    high, low = arm.middle + (1 - mean) * width * arm.pull, arm.middle - mean * width * arm.pull
    inside = mean * (high.abs() < 1) + (1 - mean) * (low.abs() < 1)
    high, low = high.clamp(-1, 1), low.clamp(-1, 1)
    square = mean * high.square() + (1 - mean) * low.square()
    return Clipped(inside, mean * high + (1 - mean) * low, square, mean * (1 - mean) * (high - low))
