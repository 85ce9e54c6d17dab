"""What the minimum of a first stage says of its weights: suprema over records by Lagrange multipliers, and the pull."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

_POINTS = 20_001
_ANGLES = 1_501

Values = np.ndarray


def between(low: float, high: float) -> Values:
    """Return the predictors in [low, high] at which suprema are sought, which `highest` makes rigorous."""
    return np.linspace(low, high, _POINTS)


def highest(values: Values, at: Values, steepest: float) -> float:
    """Return a bound of a function from its values at predictors `between` two ends, given its largest slope."""
    return float(values.max()) + steepest * float(at[1] - at[0]) / 2


def least_bound(bound: Callable[[float], float], largest: float) -> float:
    """Return the least bound over multipliers in [0, largest]: each is valid, so the search need not be exact."""
    found = minimize_scalar(bound, bounds=(0.0, largest), method="bounded", options={"xatol": 1e-6 * largest})
    return min(bound(0.0), float(found.fun))


def largest_difference(slope: Callable[[Values], Values], reach: float, steepest: float) -> float:
    r"""Return the largest distance of two records' gradients at one l of norm up to ``reach``, features up to one.

    .. math:: \max_{a, b} \sqrt{p^2 + q^2 - 2 p q \cos(a \pm b)}, \quad p = g'(R \cos a), \; q = g'(R \cos b)

    At given predictors a longer l leaves more of the features across it, so that l has norm R.

    Args:
        slope: g', a function of the predictor.
        reach: R.
        steepest: Largest slope of g'.

    Example:
        >>> round(largest_difference(lambda u: 0 * u + 1, 1.0, 0.0), 2)
        2.0
    """
    angle = np.linspace(0, np.pi, _ANGLES)
    size = slope(reach * np.cos(angle))
    p, q = size[:, None], size[None, :]
    turns = (angle[:, None] + angle[None, :], angle[:, None] - angle[None, :])
    squared = p * p + q * q + 2 * np.maximum(*(-p * q * np.cos(turn) for turn in turns))
    # half a step of either angle moves its own gradient by its turn, times its length, and by its change of length
    stray = np.pi / (_ANGLES - 1) * (float(np.abs(size).max()) + steepest * reach)
    return float(np.sqrt(squared.max())) + stray
