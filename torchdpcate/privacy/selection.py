"""Private selection among public candidates: the best few, a quantile, the best of scores moved unequally."""

from collections.abc import Callable

import scipy
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, number, positive
from torchdpcate.privacy.charge import MEDIAN, OUTCOME, THRESHOLD
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, choice_game, worst_case

_EXACT = 2.0**-20  # grid of normalised scores, so that rounding cannot stretch their sensitivity


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
        InputError: There are fewer scores than requested, a number is outside its range, or see
            ``NoiseSource.select``.

    Example:
        >>> top_k(torch.tensor([0.0, 900.0, 0.0, 2000.0]), 2, 1.0, NoiseSource.system())
        [3, 1]
    """

    def best(left: Tensor) -> int:
        return noise.select(left, positive("epsilon", epsilon) / count, sensitivity)

    return noise.released(_one_by_one(scores, count, best))


def _one_by_one(scores: Tensor, count: int, best: Callable[[Tensor], int]) -> list[int]:
    """Return positions that are chosen one after the other among those that are left.

    Args:
        scores: Of all candidates, [k].
        count: How many to choose.
        best: From the scores that are left to a position among them.

    Raises:
        InputError: There are fewer.
    """
    left = list(range(scores.numel()))
    if integer("count", count, least=1) > len(left):
        raise InputError(f"count = {count}: there are {len(left)} candidates; request no more than that")
    return [left.pop(best(scores[left])) for _ in range(count)]


_INWARDS = 1e-12  # relative: the rounding of logarithms of the normal law


def bounded_range(event: GaussianEvent) -> float:
    r"""Return by how much the losses of two outputs of a choice may differ that costs no more than a Gaussian event.

    .. math:: \eta = 2 \ln\frac{\Phi(\mu/2)}{\Phi(-\mu/2)}, \qquad \mu = 1/\text{noise multiplier}

    A mechanism whose losses differ by at most eta changes the odds of any event by at most :math:`e^\eta`, so that its
    tests have :math:`\frac{\alpha}{1-\alpha}\frac{\beta}{1-\beta} \ge e^{-\eta}`, those of two logistic laws at
    distance eta. Among all points the curve of mu comes nearest at :math:`\alpha = \beta`
    (docs/guarantees/noise.md).

    Args:
        event: What one choice may cost.

    Example:
        >>> round(bounded_range(GaussianEvent(1 / 0.2680511232)), 10)
        0.428097608
    """
    half = 0.5 / event.noise_multiplier
    return 2 * float(scipy.special.log_ndtr(half) - scipy.special.log_ndtr(-half)) * (1 - _INWARDS)


def gumbel_top_k(
    scores: Tensor, count: int, event: GaussianEvent, noise: NoiseSource, sensitivity: float = 1.0
) -> list[int]:
    r"""Indices of a few high scores, the highest first; certified, each choice at the cost of a Gaussian event.

    The exponential mechanism chooses ``count`` times among those that are left, by Gumbel noise of scale
    :math:`2\Delta/\eta`; see ``bounded_range``. Charge ``event`` so often first.

    Args:
        scores: Shape [q], finite; higher is better.
        count: How many to choose, at most q.
        event: What each choice costs.
        noise: Where the noise comes from.
        sensitivity: Delta, the most that replacing one record moves any score.

    Raises:
        InputError: There are fewer scores than requested, or see ``NoiseSource.select``.

    Example:
        >>> gumbel_top_k(torch.tensor([0.0, 900.0, 0.0, 2000.0]), 2, GaussianEvent(2.0), NoiseSource.system())
        [3, 1]
    """
    eta = bounded_range(event)

    def best(left: Tensor) -> int:
        return noise.select(left, eta, positive("sensitivity", sensitivity), law="gumbel")

    return noise.released(_one_by_one(scores, count, best))


def private_quantile(values: Tensor, grid: Tensor, quantile: float, epsilon: float, noise: NoiseSource) -> float:
    r"""A quantile of the values, chosen from public candidates; certified, pure epsilon.

    Selection (``NoiseSource.select``) with the score :math:`-|\#\{v \le t\} - q n|` of candidate t, which
    replacing one record moves by at most 1 (Smith 2011). Charge ``PureEvent(epsilon)`` first.

    Args:
        values: One number per record, shape [n]; n is public.
        grid: Public candidates, shape [k], any order.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Returns:
        The chosen candidate.

    Raises:
        InputError: If the values or the grid are empty, not vectors or not finite, or a number is outside its
            range.

    Example:
        >>> values = torch.arange(1000.0)
        >>> private_quantile(values, torch.arange(0.0, 1000.0, 250.0), 0.5, 1.0, NoiseSource.system())
        500.0
    """
    return noise.released(chosen_quantile(values, grid, quantile, epsilon, noise))


def chosen_quantile(values: Tensor, grid: Tensor, quantile: float, epsilon: float, noise: NoiseSource) -> float:
    """Return ``private_quantile`` as one number of an answer that is handed out with others, for one charge.

    Args:
        values: See ``private_quantile``, as all others.
        grid: Public candidates.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Raises:
        InputError: As ``private_quantile``.
    """
    for name, vector in (("values", values), ("grid", grid)):
        if vector.ndim != 1 or vector.numel() == 0 or not bool(torch.isfinite(vector).all()):
            raise InputError(f"{name} of shape {tuple(vector.shape)}: give a vector of finite numbers")
    quantile = number("quantile", quantile)
    if not 0 <= quantile <= 1:
        raise InputError(f"quantile = {quantile:g}: give a number in [0, 1]")
    candidates = grid.detach().cpu().double()
    ordered = values.detach().cpu().double().sort().values
    below = torch.searchsorted(ordered, candidates, right=True)
    return float(candidates[quantile_by_counts(below, len(ordered), quantile, epsilon, noise)])


def quantile_by_counts(below: Tensor, n: int, quantile: float, epsilon: float, noise: NoiseSource) -> int:
    """Return which candidate ``private_quantile`` chooses, by position.

    Args:
        below: How many of the values are at most each candidate, [k].
        n: How many values there are, public.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.
    """
    # OpenDP's make_quantile_score_candidates scores in units of 2^-53, which float64 does not hold exactly:
    # a multiple of 2^-20 makes the scores exact, so that rounding cannot stretch their sensitivity
    target = round(quantile * n * 2**20) / 2**20
    return noise.select(-(below.double() - target).abs(), epsilon)


@worst_case(
    "quantile",
    private_quantile,
    attacks=[MEDIAN, THRESHOLD, OUTCOME],
    pair="two candidates, equally good; one of four records moves from below to above",
)
def _quantile(budget: PrivacyBudget) -> Game:
    # counts (1, 3) become (0, 2), where 2 is wanted: one score falls by its sensitivity, the other rises by it
    grid = torch.tensor([0.0, 1.0], dtype=torch.float64)
    datasets = torch.tensor([[-1.0, 0.5, 0.5, 2.0], [3.0, 0.5, 0.5, 2.0]], dtype=torch.float64)
    return choice_game(
        lambda dataset, noise: private_quantile(datasets[dataset], grid, 0.5, budget.epsilon, noise), budget
    )
