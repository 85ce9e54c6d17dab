"""How candidate rules are compared on records, and the private choice of one."""

import torch
from torch import Tensor

from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.privacy.noise import NoiseSource

_EXACT = 2.0**-20  # of a sensitivity, the grid of utilities


def agreement(problem: WeightedERM, theta: Tensor) -> Tensor:
    r"""Return the weight of the records whose label each rule agrees with: the value of its decisions, unnormalised.

    .. math:: U(\theta) = \sum_i w_i 1\{(\psi_i^\top\theta > 0) = (t_i > 0)\}

    w_i are the problem's `stakes`: also with the squared loss the weights times the magnitudes. Replacing a record
    moves U by at most W_2 of the weights: what the others lose, or gain, and the record's own; and it moves two rules'
    U apart by at most W_1, their range, half of which is all that permute-and-flip has to cover.

    Args:
        problem: The weighted ERM, the curator's.
        theta: Rules [k, p].

    Example:
        >>> from torchdpcate.erm import HuberHinge, WeightBounds
        >>> psi, t = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> problem = WeightedERM(psi, t, torch.ones(2).double(), HuberHinge(), 1.0, WeightBounds.per_record(1.0))
        >>> agreement(problem, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)).tolist()
        [1.0, 2.0]
    """
    agrees = (theta @ problem.psi.T > 0) == (problem.target > 0)
    return (agrees * problem.stakes).sum(1)


def choose(utilities: Tensor, sensitivity: float, epsilon: float, noise: NoiseSource) -> int:
    """Return the index of a high utility by permute-and-flip; charge ``PureEvent(epsilon)`` first.

    Utilities are rounded to 2^-20 sensitivities, so that the rounding of their sums cannot increase the sensitivity.

    Args:
        utilities: [k].
        sensitivity: Half of the most that replacing one record moves two of them apart: W_1 / 2 for `agreement`.
        epsilon: Privacy budget of the choice.
        noise: Where the noise comes from.

    Example:
        >>> choose(torch.tensor([0.0, 100.0]), 1.0, 1.0, NoiseSource.system())
        1
    """
    step = _EXACT * sensitivity
    return noise.released(noise.select(torch.round(utilities / step), epsilon, 1 / _EXACT + 1))
