"""Gaussian noise whose scale is a smooth bound of the local sensitivity: the exact law of its privacy loss."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.privacy.budget import integer, positive, some_delta

_RULE = np.polynomial.legendre.leggauss(300)  # delta to ten digits up to 10^5 answers
_NEGLIGIBLE = 1e-30  # the mass of the chi law that the rule leaves out, which is added to delta
_LARGEST = 1e6  # a multiplier over the plain one, beyond which no noise is said to help
_ROUNDING = 1e-6  # by which multipliers are pushed up


def largest_smoothness(epsilon: float, dimension: int) -> float:
    r"""Return :math:`\ln(1 + \epsilon/d)/2`, up to which less noise on the neighbour is the worst that can happen.

    Args:
        epsilon: Positive.
        dimension: Number of answers d, at least 1.

    Raises:
        InputError: If an argument is outside its range.
    """
    return math.log1p(positive("epsilon", epsilon) / integer("dimension", dimension, least=1)) / 2


def smooth_gaussian_delta(epsilon: float, multiplier: float, dimension: int, smoothness: float) -> float:
    r"""Smallest delta of Gaussian noise on d answers, of ``multiplier`` times a xi-smooth bound of their sensitivity.

    .. math:: \sup_S P(S) - e^{\epsilon} Q(S), \qquad P = N(h, e^{2\xi} I_d),\ Q = N(0, I_d),\ \|h\| = 1/\kappa

    which is the worst of all neighbours (docs/guarantees/smooth_sensitivity.md). Along h the difference is a closed
    form; across it both laws depend on the chi law of d - 1 degrees alone, over which it is integrated.

    Args:
        epsilon: Positive.
        multiplier: kappa, at least :math:`1/\sqrt{2\epsilon}`.
        dimension: Number of answers d, at least 1.
        smoothness: xi > 0, at most ``largest_smoothness``.

    Returns:
        delta, to ten digits.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(smooth_gaussian_delta(1.0, 3.78, 300, 7.706e-4) * 1e5, 2)
        1.0
    """
    most = largest_smoothness(epsilon, dimension)
    if not 0 < smoothness <= most:
        raise InputError(f"smoothness = {smoothness:g}: must be positive and at most ln(1 + epsilon/d)/2 = {most:.4g}")
    if not positive("multiplier", multiplier) ** 2 * 2 * epsilon >= 1:
        raise InputError(f"multiplier = {multiplier:g}: must be at least 1/sqrt(2 epsilon) = {_least(epsilon):.4g}")
    return float(_delta(np.array([epsilon]), 1 / multiplier, dimension, smoothness)[0])


def smooth_gaussian_curve(epsilons: np.ndarray, multiplier: float, dimension: int, smoothness: float) -> np.ndarray:
    """Return ``smooth_gaussian_delta`` at many epsilons, [k]; 1 where it is not proved to be the worst."""
    proved = (2 * epsilons * multiplier**2 >= 1) & (dimension * math.expm1(2 * smoothness) <= epsilons)
    deltas = np.ones(len(epsilons))
    deltas[proved] = _delta(epsilons[proved], 1 / multiplier, dimension, smoothness)
    return deltas


@lru_cache(maxsize=4096)
def smooth_gaussian_multiplier(epsilon: float, delta: float, dimension: int, smoothness: float) -> float:
    r"""Least noise over a xi-smooth bound of the sensitivity of d answers that is (epsilon, delta)-private; certified.

    The least :math:`\kappa \ge 1/\sqrt{2\epsilon}` of which ``smooth_gaussian_delta`` is at most delta, pushed up by
    a millionth.

    Args:
        epsilon: Positive.
        delta: In (0, 1).
        dimension: Number of answers d, at least 1.
        smoothness: xi > 0, at most ``largest_smoothness``.

    Returns:
        kappa; infinite where the two scales alone tell neighbours apart.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(smooth_gaussian_multiplier(1.0, 1e-5, 300, 7.706246626e-4), 4)
        3.7791
    """
    delta = some_delta("delta", delta, above_zero=True, why="Gaussian noise needs delta > 0")
    least = _least(positive("epsilon", epsilon))

    def excess(log_multiplier: float) -> float:
        return smooth_gaussian_delta(epsilon, math.exp(log_multiplier), dimension, smoothness) - delta

    low = math.log(least * (1 + 1e-12))
    if excess(low) <= 0:
        return least * (1 + _ROUNDING)
    high = low + 1
    while excess(high) > 0:
        high += 1
        if high - low > math.log(_LARGEST):
            return math.inf
    multiplier = math.exp(scipy.optimize.brentq(excess, high - 1, high, xtol=1e-10)) * (1 + _ROUNDING)
    if excess(math.log(multiplier)) > 0:
        raise NumericalError(f"no safe scale found for epsilon = {epsilon:g}, delta = {delta:g}, d = {dimension}")
    return multiplier


@dataclass(frozen=True)
class SmoothNoise:
    r"""What d answers of a smooth sensitivity cost, from public numbers alone, and the smoothness that is worth most.

    Attributes:
        epsilon: Positive.
        delta: In (0, 1).
        dimension: Number of answers d, at least 1.
        condition: eta = B^2 / (n lambda), by which one record may change the curvature.
        n: Number of records.

    Example:
        >>> round(SmoothNoise(1.0, 1e-5, dimension=10, condition=0.02, n=4000).smoothness, 4)
        0.0198
    """

    epsilon: float
    delta: float
    dimension: int
    condition: float
    n: int

    @cached_property
    def smoothness(self) -> float:
        r"""The xi of the least ``expected`` noise, of ``largest_smoothness`` halved 0, 1/2, 1, ..., 17/2 times.

        :math:`\ln(1 + \eta)`, at which the scale is the local sensitivity itself, is tried too.
        """
        most, full = largest_smoothness(self.epsilon, self.dimension), math.log1p(self.condition)
        tried = [most * 2 ** (-k / 2) for k in range(18)]
        return min([*tried, full] if full < most else tried, key=self.expected)

    @property
    def multiplier(self) -> float:
        """Noise over the smooth bound of the sensitivity."""
        return smooth_gaussian_multiplier(self.epsilon, self.delta, self.dimension, self.smoothness)

    def expected(self, smoothness: float) -> float:
        r"""Return noise over the global sensitivity on data of middling curvature.

        .. math:: \kappa(\xi)\, r^{\min(1,\ \xi/\ln(1+\eta))}, \qquad r = 1/\sqrt{1+\eta n}

        r is the local over the global sensitivity at a curvature of :math:`\sqrt{\lambda(\lambda + B^2)}`, the
        geometric mean of the least and the largest that data may have.
        """
        ratio = 1 / math.sqrt(1 + self.condition * self.n)
        exponent = min(1.0, smoothness / math.log1p(self.condition))
        return smooth_gaussian_multiplier(self.epsilon, self.delta, self.dimension, smoothness) * ratio**exponent


def _least(epsilon: float) -> float:
    return 1 / math.sqrt(2 * epsilon)


def _delta(epsilons: np.ndarray, h: float, d: int, xi: float) -> np.ndarray:
    """Return P(S) - e^epsilon Q(S), S the complement of a ball about -c, by the length r of Z across h, Z = x/e^xi."""
    growth, epsilon = math.expm1(2 * xi), epsilons[:, None]
    c = h / growth
    power = (2 * (epsilon + d * xi) + h * h * math.exp(-2 * xi)) / -math.expm1(-2 * xi)  # of zero to the sphere
    radius = np.sqrt(c * c + power)
    if d == 1:
        return _outside(epsilon, h, xi, power / (c + radius), -radius - c)[:, 0]
    # by the angle: the chord's length is no smooth function of r at its end
    low, high, log_constant = _across(d)
    widest = radius / math.exp(xi)
    first, last = (np.arcsin(np.minimum(end / widest, 1)) for end in (low, high))
    nodes, weights = _RULE
    angle = (first + last) / 2 + (last - first) / 2 * nodes
    r, chord = widest * np.sin(angle), radius * np.cos(angle)
    density = np.exp(log_constant + (d - 2) * np.log(r) - r * r / 2)
    loss = growth * r * r / 2 - (d - 1) * xi
    right = (power - np.square(r * math.exp(xi))) / (c + chord)  # chord - c without cancellation
    inside = density * _outside(epsilon - loss, h, xi, right, -chord - c) * widest * np.cos(angle)
    beyond = scipy.special.gammaincc((d - 1) / 2, np.square([widest[:, 0], radius[:, 0]]) / 2)
    total = inside @ weights * ((last - first) / 2)[:, 0] + beyond[0] - np.exp(epsilons) * beyond[1]
    return np.asarray(total + _NEGLIGIBLE)


@lru_cache(maxsize=64)
def _across(d: int) -> tuple[float, float, float]:
    """Return between which lengths d - 1 standard normals lie, but for 1e-30, and the log of their law's constant."""
    # of the chi law, not the chi-square: its density is smooth at zero for two answers
    law = scipy.stats.chi(d - 1)
    constant = (3 - d) / 2 * math.log(2) - math.lgamma((d - 1) / 2)
    return float(law.ppf(_NEGLIGIBLE / 2)), float(law.isf(_NEGLIGIBLE / 2)), constant


def _outside(epsilon: np.ndarray, h: float, xi: float, right: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return P(S) - e^epsilon Q(S) of N(h, e^2xi) and N(0, 1), S all beyond ``left`` and ``right``."""
    s, ndtr, log_ndtr = math.exp(xi), scipy.special.ndtr, scipy.special.log_ndtr
    upper = ndtr((h - right) / s) - np.exp(epsilon + log_ndtr(-right))
    return np.asarray(upper + ndtr((left - h) / s) - np.exp(epsilon + log_ndtr(left)))
