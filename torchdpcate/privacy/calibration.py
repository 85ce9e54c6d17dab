"""From a budget to the scale of the noise: closed forms and the analytic Gaussian mechanism."""

import math
from functools import lru_cache

import scipy

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.privacy.budget import integer, positive, probability

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
    :math:`\epsilon \le 3\ln(2/\delta)` (docs/guarantees/smooth_sensitivity.md).

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


@lru_cache(maxsize=1024)
def _unit_sigma(epsilon: float, delta: float) -> float:
    if epsilon < _LEAST_EPSILON:
        at_zero = 1 / (2 * _ROOT2 * float(scipy.special.erfinv(delta)))
        return min(classical_gaussian_sigma(epsilon, delta), at_zero) * (1 + 1e-9)
    target = math.log(delta)

    def excess(log_sigma: float) -> float:
        return max(gaussian_log_delta(math.exp(log_sigma), epsilon), -1e300) - target

    lower = upper = math.log(math.sqrt(2 * math.log(1.25 / delta)) / epsilon + 1e-3)
    while excess(upper) > 0:
        upper += 1.0
    while excess(lower) <= 0:
        lower -= 1.0
    sigma = math.exp(float(scipy.optimize.brentq(excess, lower, upper, xtol=1e-15, rtol=1e-15)))
    # the inverse must agree in floating point, or a ledger would refuse what this calibrates
    for margin in (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7):
        close = [sigma * (1 + margin + k * 4e-15) for k in (-1, 0, 1)]
        if all(gaussian_epsilon(s, delta) <= epsilon for s in close):
            return sigma * (1 + 4 * margin)
    raise NumericalError(f"no safe Gaussian scale found for epsilon = {epsilon:g}, delta = {delta:g}")
