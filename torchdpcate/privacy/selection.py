"""Private selection among public candidates: the best few, and the best of scores that one record moves unequally."""

import math

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive, probability
from torchdpcate.privacy.charge import TUNING
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case

_EXACT = 2.0**-20  # grid of normalised scores, so that rounding cannot stretch their sensitivity
_FAILURE = 0.05  # probability with which a choice may be worse than promised
_CANDIDATES, _SENSITIVE = 30, 1e4  # of the audit


def top_k(scores: Tensor, count: int, epsilon: float, noise: NoiseSource, sensitivity: float = 1.0) -> list[int]:
    r"""Indices of a few high scores, the highest first; certified, pure epsilon.

    Selects ``count`` times (``NoiseSource.select``, permute-and-flip) at epsilon / count each, every time among the
    candidates that are left; pure budgets add up. The cost is that of OpenDP's ``make_noisy_top_k``. Charge
    ``PureEvent(epsilon)`` first.

    Args:
        scores: Shape [k], finite; higher is better.
        count: How many to select, at most k.
        epsilon: Privacy cost of all together.
        noise: Where the noise comes from.
        sensitivity: The most that replacing one record moves any score.

    Raises:
        InputError: There are fewer scores than asked for, a number is outside its range, or see
            ``NoiseSource.select``.

    Example:
        >>> top_k(torch.tensor([0.0, 900.0, 0.0, 2000.0]), 2, 1.0, NoiseSource.system())
        [3, 1]
    """
    left = list(range(scores.numel()))
    if integer("count", count, least=1) > len(left):
        raise InputError(f"count = {count}: there are {len(left)} candidates; ask for no more than that")
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(left.pop(noise.select(scores[left], positive("epsilon", epsilon) / count, sensitivity)))
    return noise.released(chosen)


def normalised_scores(scores: Tensor, sensitivities: Tensor, shift: float) -> Tensor:
    r"""Scores of one common sensitivity, from scores that one record moves unequally.

    .. math:: s_i = \min_j \frac{(q_i - t \Delta_i) - (q_j - t \Delta_j)}{\Delta_i + \Delta_j} \le 0

    If replacing one record moves each q_i by at most Delta_i, it moves each s_i by at most 1: numerator j moves by
    at most its denominator. Source: Raskhodnikova & Smith (2016), the generalised exponential mechanism.

    Args:
        scores: q, [k]; higher is better.
        sensitivities: Delta, [k], public, positive.
        shift: t >= 0, public: how much of its own sensitivity a candidate is held to be worse.

    Returns:
        s, float64 [k], rounded to multiples of 2^-20.

    Example:
        >>> normalised_scores(torch.tensor([3.0, 2.0]), torch.tensor([3.0, 1.0]), shift=1.0).tolist()
        [-0.25, 0.0]
    """
    lowered = (scores - shift * sensitivities).double()
    pairs = (lowered[:, None] - lowered) / (sensitivities[:, None] + sensitivities)
    return torch.round(pairs.amin(1) / _EXACT) * _EXACT


def generalised_select(
    scores: Tensor, sensitivities: Tensor, epsilon: float, noise: NoiseSource, failure: float = _FAILURE
) -> int:
    r"""Index of a high score where one record moves each score by a public amount of its own; pure epsilon.

    ``NoiseSource.select`` on ``normalised_scores`` with shift :math:`t = 2 \ln(k / \beta) / \epsilon`, beta the
    ``failure`` probability: except with it, the chosen score is at least :math:`\max_i (q_i - 2 t \Delta_i)`, so
    that a very sensitive candidate does not spoil the choice among the others. Certified; charge
    ``PureEvent(epsilon)`` first. Source: Raskhodnikova & Smith (2016), with permute-and-flip in place of their
    exponential mechanism.

    Args:
        scores: q, [k], finite; higher is better.
        sensitivities: Delta, [k], public, positive.
        epsilon: Privacy cost.
        noise: Where the noise comes from.
        failure: beta in (0, 1), public.

    Raises:
        InputError: Vectors of unequal length, empty, or not finite; a sensitivity or epsilon not positive.

    Example:
        >>> scores, sensitivities = torch.tensor([9.0, 8.0]), torch.tensor([50.0, 0.01])
        >>> generalised_select(scores, sensitivities, 1.0, NoiseSource.system(), failure=1e-9)
        1
    """
    if scores.shape != sensitivities.shape or scores.ndim != 1 or scores.numel() == 0:
        shapes = f"{tuple(scores.shape)} and {tuple(sensitivities.shape)}"
        raise InputError(f"scores and sensitivities of shapes {shapes}: give one sensitivity a score")
    exact, bounds = (vector.detach().cpu().double() for vector in (scores, sensitivities))
    if not bool(torch.isfinite(exact).all()):
        raise InputError(f"scores of shape {tuple(scores.shape)}: give finite numbers")
    if not bool((torch.isfinite(bounds) & (bounds > 0)).all()):
        raise InputError("sensitivities: give positive, finite numbers")
    beta = probability("failure", failure, above_zero=True)
    shift = 2 * math.log(len(exact) / beta) / positive("epsilon", epsilon)
    # rounding a score of sensitivity one to the grid adds at most one step
    return noise.released(noise.select(normalised_scores(exact, bounds, shift), epsilon, 1 + _EXACT))


@worst_case(
    "generalised_selection",
    generalised_select,
    attacks=[TUNING],
    pair="each score moves by its own sensitivity: the first falls, a rival and many far more sensitive ones rise",
)
def _generalised(budget: PrivacyBudget) -> Game:
    # the first candidate is best on D; on D' it is one full step behind, and the sensitive ones, a step behind on D,
    # are level with the best: with many of them the ratio comes near e^epsilon
    sensitivities = torch.full((_CANDIDATES,), _SENSITIVE, dtype=torch.float64)
    sensitivities[:2] = 1.0
    behind, moves = -1.0 - sensitivities, sensitivities.clone()
    behind[:2], moves[0] = 0.0, -1.0
    level = 2 * math.log(_CANDIDATES / _FAILURE) / budget.epsilon * sensitivities
    worlds = (level + behind, level + behind + moves)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        chosen = [generalised_select(worlds[world], sensitivities, budget.epsilon, noise) for _ in range(runs)]
        return torch.tensor(chosen, dtype=torch.float64)

    pure = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return Game(draw, PureEvent(budget.epsilon), pure, evidence=lambda chosen: chosen[:, 0].sign(), most_runs=40_000)
