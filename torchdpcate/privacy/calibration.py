"""From a budget to the scale of the noise: closed forms, analytic Gaussian noise, and that of a smooth sensitivity."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.privacy.budget import integer, positive, probability, some_delta

_ROOT2 = math.sqrt(2)
_LEAST_EPSILON = 1e-6  # of the analytic scale
_NEEDS_DELTA = "the Gaussian part needs delta > 0; for a pure guarantee use Laplace noise"


def analytic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    r"""Smallest standard deviation of Gaussian noise that is (epsilon, delta)-private; certified.

    .. math:: \min \{\Delta\sigma : \Phi(\tfrac{1}{2\sigma} - \epsilon\sigma)
              - e^{\epsilon} \Phi(-\tfrac{1}{2\sigma} - \epsilon\sigma) \le \delta\}

    Balle & Wang (2018), theorem 8; valid for every epsilon > 0. Relative error below 1e-9, on the safe side.
    Of epsilon below 1e-6, where the difference loses its digits, it is the smaller of the classical scale and of that
    of epsilon = 0, :math:`1 / (2\sqrt{2}\,\mathrm{erf}^{-1}(\delta))`: safe, and not the smallest.

    Args:
        epsilon: Positive.
        delta: In (0, 1).
        sensitivity: Replace-one l2 sensitivity Delta of the value.

    Raises:
        InputError: If an argument is outside its range.
        NumericalError: If no safe value is found.

    Example:
        >>> round(analytic_gaussian_sigma(1.0, 1e-5), 9)
        3.730631635
    """
    epsilon = positive("epsilon", epsilon)
    delta = probability("delta", delta, above_zero=True, why=_NEEDS_DELTA)
    return _unit_sigma(epsilon, delta) * positive("sensitivity", sensitivity)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Smallest epsilon of Gaussian noise of s = ``noise_multiplier`` times the sensitivity, at ``delta``.

    Inverse of ``analytic_gaussian_sigma``; rounded up by 5e-13. Infinite at delta = 0.

    Raises:
        InputError: If an argument is outside its range.
    """
    sigma, delta = positive("noise_multiplier", noise_multiplier), probability("delta", delta)
    if delta == 0:
        return math.inf
    target = math.log(delta)
    if gaussian_log_delta(sigma, 0.0) <= target:
        return 0.0
    upper = 0.5 / sigma**2 + math.sqrt(2 * math.log(1 / delta)) / sigma + 1e-3
    while gaussian_log_delta(sigma, upper) > target:
        upper *= 2

    def excess(epsilon: float) -> float:
        return gaussian_log_delta(sigma, epsilon) - target

    root = scipy.optimize.brentq(excess, 0.0, upper, xtol=1e-300, rtol=1e-15, maxiter=5000)
    return float(root) * (1 + 5e-13)


def classical_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    r"""Standard deviation of the textbook mechanism, :math:`\Delta\sqrt{2\ln(1.25/\delta)}/\epsilon`.

    Dwork & Roth (2014), theorem A.1, whose proof covers 0 < epsilon < 1 only.

    Raises:
        InputError: If epsilon >= 1 (use ``analytic_gaussian_sigma``) or an argument is outside its range.
    """
    epsilon = positive("epsilon", epsilon)
    delta = probability("delta", delta, above_zero=True, why=_NEEDS_DELTA)
    if epsilon >= 1:
        raise InputError(f"epsilon = {epsilon:g}: the classical constant is proved below 1 only; use the analytic one")
    return positive("sensitivity", sensitivity) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def laplace_scale(epsilon: float, sensitivity: float = 1.0) -> float:
    r"""Scale of Laplace noise, :math:`\Delta_1/\epsilon` (Dwork et al. 2006); certified, pure.

    Args:
        epsilon: Positive.
        sensitivity: Replace-one l1 sensitivity of the value.

    Raises:
        InputError: If an argument is not positive.
    """
    return positive("sensitivity", sensitivity) / positive("epsilon", epsilon)


def theorem1_multiplier(epsilon: float, delta: float, n: int) -> float:
    r"""Noise over gross-error sensitivity, :math:`5\sqrt{2\ln n\,\ln(2/\delta)}/(\epsilon n)`.

    Schröder et al. (2025), theorem 1. Heuristic for neural second stages; conditional at best elsewhere.

    Args:
        epsilon: Positive.
        delta: In (0, 1).
        n: Number of records of the second stage, at least 2.

    Raises:
        InputError: If an argument is outside its range.
    """
    n = integer("n", n, least=2)
    return smooth_sensitivity_multiplier(epsilon, delta) * math.sqrt(math.log(n)) / n


def smooth_sensitivity_multiplier(epsilon: float, delta: float) -> float:
    r"""Noise over smooth sensitivity, :math:`5\sqrt{2\ln(2/\delta)}/\epsilon` (Nissim et al. 2007).

    The sensitivity must be ``smoothness``-smooth for the guarantee, which is proved for
    :math:`\epsilon \le 3\ln(2/\delta)` (docs/guarantees/two_blocks.md).

    Raises:
        InputError: If an argument is outside its range, or epsilon beyond the proof.
    """
    epsilon = positive("epsilon", epsilon)
    delta = probability("delta", delta, above_zero=True, why=_NEEDS_DELTA)
    most = 3 * math.log(2 / delta)
    if epsilon > most:
        raise InputError(
            f"epsilon = {epsilon:g}: noise for a smooth sensitivity is proved up to 3 ln(2/delta) = {most:.4g}; "
            "give less, or use mechanism=objective or output"
        )
    return 5 * math.sqrt(2 * math.log(2 / delta)) / epsilon


def smoothness(epsilon: float, delta: float, dimension: int) -> float:
    r"""Smoothness :math:`\xi = \epsilon / (4 (d + 2\ln(2/\delta)))` that d answers need (Nissim et al. 2007).

    Args:
        epsilon: Positive.
        delta: In (0, 1).
        dimension: Number of answers d, at least 1.

    Raises:
        InputError: If an argument is outside its range.
    """
    epsilon = positive("epsilon", epsilon)
    delta = probability("delta", delta, above_zero=True, why=_NEEDS_DELTA)
    return epsilon / (4 * (integer("dimension", dimension, least=1) + 2 * math.log(2 / delta)))


def gaussian_log_delta(sigma: float, epsilon: float) -> float:
    """Log of the smallest delta of noise sigma at sensitivity 1, free of over- and underflow.

    Args:
        sigma: Positive.
        epsilon: Not negative.

    Example:
        >>> round(math.exp(gaussian_log_delta(1.0, 1.0)), 6)
        0.126937
    """
    half, middle = 0.5 / sigma, epsilon * sigma
    if middle > half:
        # e^eps phi(middle + half) = phi(middle - half): no exponentials left to cancel, Mills ratios only
        ratios = scipy.special.erfcx((middle - half) / _ROOT2) - scipy.special.erfcx((middle + half) / _ROOT2)
        return math.log(ratios / 2) - (middle - half) ** 2 / 2 if ratios > 0 else -math.inf
    plus = float(scipy.special.log_ndtr(half - middle))
    gap = epsilon + float(scipy.special.log_ndtr(-half - middle)) - plus
    return plus + math.log(-math.expm1(gap)) if gap < 0 else -math.inf


def bracket(excess: Callable[[float], float], start: float, step: float) -> tuple[float, float]:
    """Return two points with excess above 0 and not above 0, out from ``start`` by growing steps."""
    here, above = start, excess(start) > 0
    while abs(here) < 300:
        there = here + step if above else here - step
        if (excess(there) > 0) != above:
            return min(here, there), max(here, there)
        here, step = there, 2 * step
    raise InputError("no noise multiplier meets this epsilon and delta: give larger ones (delta above 1e-11)")


@lru_cache(maxsize=1024)
def _unit_sigma(epsilon: float, delta: float) -> float:
    if epsilon < _LEAST_EPSILON:
        at_zero = 1 / (2 * _ROOT2 * float(scipy.special.erfinv(delta)))
        return min(classical_gaussian_sigma(epsilon, delta), at_zero) * (1 + 1e-9)
    target = math.log(delta)

    def excess(log_sigma: float) -> float:
        return max(gaussian_log_delta(math.exp(log_sigma), epsilon), -1e300) - target

    ends = bracket(excess, math.log(math.sqrt(2 * math.log(1.25 / delta)) / epsilon + 1e-3), 1.0)
    sigma = math.exp(float(scipy.optimize.brentq(excess, *ends, xtol=1e-15, rtol=1e-15)))
    # the inverse must agree in floating point, or a ledger would refuse what this calibrates
    for margin in (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7):
        close = [sigma * (1 + margin + k * 4e-15) for k in (-1, 0, 1)]
        if all(gaussian_epsilon(s, delta) <= epsilon for s in close):
            return sigma * (1 + 4 * margin)
    raise NumericalError(f"no safe Gaussian scale found for epsilon = {epsilon:g}, delta = {delta:g}")


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

    which is the worst of all neighbours (docs/guarantees/two_blocks.md). Along h the difference is a closed
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
