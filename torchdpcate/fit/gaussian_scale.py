"""How wide Gaussian objective noise must be: the chi profile of objective perturbation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.privacy.accounting import gaussian_curve
from torchdpcate.privacy.budget import integer, positive, probability
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, bracket, gaussian_log_delta

_DECAY = 45.0  # the integral ends where its integrand is below e^-45 of its largest


def objective_sigma(epsilon: float, delta: float, shift: float, jacobian: float = 0.0, dimension: int = 2) -> float:
    r"""Smallest sigma with delta at most ``delta``; at most 1e-9 of it above, never below. Certified.

    .. math:: \delta = E\big[(1 - e^{\varepsilon - Z})_+\big], \quad
              Z = J + \frac{\xi^2}{2\sigma^2} + \frac{\xi}{\sigma}\chi_k

    Source: policy_learning, section 3; the form for one dimension is that of Redberg, Koskela & Wang (2023).

    Args:
        epsilon: Above ``jacobian``.
        delta: In (0, 1).
        shift: xi, the largest length of the difference of two neighbours' gradients.
        jacobian: J, the largest log ratio of their determinants.
        dimension: k of a subspace that contains that difference wherever it is taken.

    Raises:
        InputError: If an argument is outside its range.
        NumericalError: If no safe value is found.

    Example:
        >>> round(objective_sigma(1.0, 1e-5, 2.0, 0.25), 6)
        11.105875
    """
    left = positive("epsilon", epsilon) - jacobian
    if left <= 0:
        raise InputError(f"epsilon = {epsilon:g}: the determinants spend {jacobian:g} of it; nothing is left")
    delta = probability("delta", delta, above_zero=True, why="Gaussian noise is never pure; use kind=gamma or box")
    return _unit_sigma(left, delta, integer("dimension", dimension, least=1)) * positive("shift", shift)


@dataclass(frozen=True)
class Corners:
    r"""Fixed points h in whose convex hull the shift lies, and how delta follows from theirs.

    The Gaussian loss is convex in the shift, so that

    .. math:: \delta \le \sum_h c_h\, \delta_G(l_h \xi / \sigma, \varepsilon - J)

    Attributes:
        points: Counts c and lengths l over xi, in (0, 1]; points at zero do not count.
        least: The least :math:`(\varepsilon - J)\sigma/\xi - \xi/2\sigma` at which it is proved; elsewhere it is
            not taken. From 1 on delta_G is convex in the squared length.
    """

    points: tuple[tuple[float, float], ...]
    least: float = -math.inf

    def delta(self, ratio: float, left: np.ndarray) -> np.ndarray:
        """Return the sum at xi over sigma, for every epsilon - J, [k], of either sign; at most 1.

        Example:
            >>> TRIANGLE.delta(1.0, np.array([-1.0, 1.0])).round(6).tolist()
            [1.0, 0.140596]
            >>> PARALLELOGRAM.delta(0.5, np.array([-1.0, 1.0])).round(6).tolist()
            [1.0, 0.013659]
        """
        total = sum(count * gaussian_curve(ratio * length, left) for count, length in self.points)
        total -= np.expm1(np.minimum(left, 0.0))  # the point at zero
        return np.where(left / ratio - ratio / 2 >= self.least, np.minimum(total, 1.0), 1.0)

    def sigma(self, left: float, delta: float) -> float | None:
        """Return the least sigma over xi; at most 1e-9 of it above, never below. None where nothing is proved."""
        sigma = _corners_sigma(self.points, left, delta)
        return None if left * sigma - 0.5 / sigma < self.least else sigma


PARALLELOGRAM = Corners(((2.0, 1.0),), least=1.0)
r"""Of the differences of :math:`\pm g` and :math:`\pm g'`, each at most xi/2 long: two are xi long at worst."""
CONVEX_LOSS = Corners(((4 / 3, 1.0),), least=2.0)
r"""The same where :math:`\pm g` is the gradient of a convex loss along its record: with the noise it changes its sign
once and one way, so that the two longest differences never count whole."""
TRIANGLE = Corners(((1.0, 1.0), (2.0, 0.5)))
"""Of 0, g, -g' and g - g', each of g and g' at most xi/2 long: a loss of one slope."""


def gaussian_scale(
    epsilon: float, delta: float, shift: float, jacobian: float, dimension: int, corners: Sequence[Corners] = ()
) -> float:
    r"""The smallest of ``objective_sigma`` and of what the corners that the shift lies between leave.

    Args:
        epsilon: See ``objective_sigma``.
        delta: See ``objective_sigma``.
        shift: See ``objective_sigma``.
        jacobian: See ``objective_sigma``.
        dimension: See ``objective_sigma``.
        corners: Of hulls in all of which the shift lies.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(gaussian_scale(1.0, 1e-5, 2.0, 0.25, 2, [PARALLELOGRAM]), 6)
        10.117438
        >>> round(gaussian_scale(1.0, 1e-5, 2.0, 0.25, 2, [PARALLELOGRAM, CONVEX_LOSS]), 6)
        9.875415
        >>> round(gaussian_scale(1.0, 1e-5, 2.0, 0.25, 2, [PARALLELOGRAM, TRIANGLE]), 6)
        9.701149
    """
    proven = [objective_sigma(epsilon, delta, shift, jacobian, dimension)]
    found = (one.sigma(epsilon - jacobian, delta) for one in corners)
    return min(proven + [shift * sigma for sigma in found if sigma is not None])


@lru_cache(maxsize=1024)
def _corners_sigma(points: tuple[tuple[float, float], ...], left: float, delta: float) -> float:
    """Least sigma at xi = 1 with the sum of the points' deltas at most ``delta``; see ``Corners``."""
    if len(points) == 1:
        ((count, length),) = points
        return length * analytic_gaussian_sigma(left, delta / count)

    def excess(log_sigma: float) -> float:
        terms = [math.log(count) + gaussian_log_delta(math.exp(log_sigma) / length, left) for count, length in points]
        return float(np.logaddexp.reduce(terms)) - math.log(delta)

    total = sum(count for count, _ in points)
    least, most = (math.log(analytic_gaussian_sigma(left, delta / count)) for count in (1.0, total))
    if excess(least) <= 0:  # the other points do not count
        return math.exp(least)
    return _safe_root(excess, least, most, f"epsilon - J = {left:g}, delta = {delta:g}, corners {points}")


def _log_delta(ratio: float, left: float, k: int) -> float:
    """Log of E[(1 - exp(left - Z))_+] with Z = ratio^2/2 + ratio chi_k, by quadrature to about 1e-12."""
    start = left / ratio - ratio / 2  # chi at which the loss begins to count
    first, mode = max(start, 0.0), math.sqrt(k - 1)

    def log_density(x: float) -> float:
        power = (k - 1) * math.log(x) if k > 1 and x > 0 else (0.0 if k == 1 else -math.inf)
        return power - x * x / 2 - (k / 2 - 1) * math.log(2) - math.lgamma(k / 2)

    top = max(first, mode)
    height = log_density(top)
    # -log density is 1-strongly convex: beyond the top it rises by at least rate t + t^2/2
    rate = top - (k - 1) / top if top > 0 else 0.0
    end = top + 2 * _DECAY / (rate + math.sqrt(rate * rate + 2 * _DECAY))

    def integrand(x: float) -> float:
        return -math.expm1(-ratio * (x - start)) * math.exp(log_density(x) - height)

    pieces = [(first, top), (top, end)] if first < top else [(first, end)]
    total = sum(scipy.integrate.quad(integrand, a, b, epsabs=0.0, epsrel=1e-12, limit=200)[0] for a, b in pieces)
    return height + math.log(total) if total > 0 else -math.inf


@lru_cache(maxsize=1024)
def _unit_sigma(left: float, delta: float, k: int) -> float:
    target = math.log(delta)

    def excess(log_sigma: float) -> float:
        return max(_log_delta(math.exp(-log_sigma), left, k), -1e300) - target

    ends = bracket(excess, math.log((math.sqrt(k) + math.sqrt(2 * math.log(1.25 / delta))) / left + 1e-3), 1.0)
    return _safe_root(excess, *ends, f"epsilon - J = {left:g}, delta = {delta:g}, dimension {k}")


def _safe_root(excess: Callable[[float], float], low: float, high: float, of: str) -> float:
    """Return exp of the root of a decreasing function, and a little more, so that it is surely not positive there.

    Args:
        excess: The function.
        low: Where it is positive.
        high: Where it is not.
        of: What it is of, for the error.

    Raises:
        NumericalError: 1e-9 more does not do.
    """
    root = math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))
    for margin in (1e-11, 1e-10, 1e-9):
        if excess(math.log(root * (1 + margin))) <= -1e-12:
            return root * (1 + margin)
    raise NumericalError(f"no safe scale found for {of}")
