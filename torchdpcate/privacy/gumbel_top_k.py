"""The best few of several scores by Gumbel noise, at the cost of Gaussian events."""

import scipy
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.noise import NoiseSource

_INWARDS = 1e-12  # relative: the rounding of logarithms of the normal law


def bounded_range(event: GaussianEvent) -> float:
    r"""Return by how much the losses of two outputs of a choice may differ that costs no more than a Gaussian event.

    .. math:: \eta = 2 \ln\frac{\Phi(\mu/2)}{\Phi(-\mu/2)}, \qquad \mu = 1/\text{noise multiplier}

    A mechanism whose losses differ by at most eta changes the odds of any event by at most :math:`e^\eta`, so that its
    tests have :math:`\frac{\alpha}{1-\alpha}\frac{\beta}{1-\beta} \ge e^{-\eta}`, those of two logistic laws at
    distance eta. Among all points the curve of mu comes nearest at :math:`\alpha = \beta`
    (docs/guarantees/gumbel_top_k.md).

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
        InputError: There are fewer scores than asked for, or see ``NoiseSource.select``.

    Example:
        >>> gumbel_top_k(torch.tensor([0.0, 900.0, 0.0, 2000.0]), 2, GaussianEvent(2.0), NoiseSource.system())
        [3, 1]
    """
    left = list(range(scores.numel()))
    if integer("count", count, least=1) > len(left):
        raise InputError(f"count = {count}: there are {len(left)} candidates; ask for no more than that")
    eta, chosen = bounded_range(event), []
    for _ in range(count):
        chosen.append(left.pop(noise.select(scores[left], eta, positive("sensitivity", sensitivity), law="gumbel")))
    return noise.released(chosen)
