"""How wide Gaussian objective noise must be: the chi profile of objective perturbation."""

import math
from functools import lru_cache

import numpy as np
import scipy

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.privacy.budget import integer, positive, probability
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_log_delta

_DECAY = 45.0  # the integral ends where its integrand is below e^-45 of its largest


def objective_delta(sigma: float, epsilon: float, shift: float, jacobian: float = 0.0, dimension: int = 2) -> float:
    r"""Delta at ``epsilon`` of Gaussian objective noise N(0, sigma^2 I) whose shift lies in a fixed subspace.

    .. math:: \delta = E\big[(1 - e^{\varepsilon - Z})_+\big], \quad
              Z = J + \frac{\xi^2}{2\sigma^2} + \frac{\xi}{\sigma}\chi_k

    Args:
        sigma: Standard deviation of each entry of the noise.
        epsilon: Positive.
        shift: xi, the largest length of the difference of two neighbours' gradients.
        jacobian: J, the largest log ratio of their determinants.
        dimension: k of a subspace that contains that difference wherever it is taken.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(objective_delta(12.0, 1.0, 2.0, 0.25) * 1e6, 6)
        2.023653
    """
    ratio = positive("shift", shift) / positive("sigma", sigma)
    return math.exp(
        _log_delta(ratio, positive("epsilon", epsilon) - jacobian, integer("dimension", dimension, least=1))
    )


def objective_sigma(epsilon: float, delta: float, shift: float, jacobian: float = 0.0, dimension: int = 2) -> float:
    r"""Smallest sigma with ``objective_delta`` at most ``delta``; at most 1e-9 of it above, never below. Certified.

    Source: policy_learning, section 3; the form for one dimension is that of Redberg, Koskela & Wang (2023).

    Args:
        epsilon: Above ``jacobian``.
        delta: In (0, 1).
        shift: See ``objective_delta``.
        jacobian: See ``objective_delta``.
        dimension: See ``objective_delta``.

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


def gaussian_scale(
    epsilon: float,
    delta: float,
    shift: float,
    jacobian: float,
    dimension: int,
    vertices: float | None,
    triangle: bool = False,
) -> float:
    r"""The smallest of ``objective_sigma``, :math:`\xi\,\sigma_{AG}(\varepsilon - J, \delta/v)` and that of a triangle.

    The second holds where the shift lies in the convex hull of fixed points h of length at most xi, with
    :math:`v = \sum_h \|h\|^2 / \xi^2`. The Gaussian loss is convex in the shift, so delta is at most the sum over
    the points of that of Gaussian mechanisms; and that of one is a convex function of :math:`x = \|h\|^2/\sigma^2`,
    and zero at 0, as far as :math:`x \le 2(\sqrt{1 + (\varepsilon - J)^2} - 1)`, so that each is at most
    :math:`\|h\|^2/\xi^2` times that of the longest. Beyond that it is not taken. The third is the least sigma with

    .. math:: \delta_G(\xi/\sigma, \varepsilon - J) + 2\,\delta_G(\xi/2\sigma, \varepsilon - J) \le \delta

    where the shift lies in a triangle of 0, g, -g' and g - g', g and g' at most xi/2 long: that of a loss of one slope.

    Args:
        epsilon: See ``objective_sigma``.
        delta: See ``objective_sigma``.
        shift: See ``objective_sigma``.
        jacobian: See ``objective_sigma``.
        dimension: See ``objective_sigma``.
        vertices: v; None where there is no such hull.
        triangle: Whether the shift lies in a triangle as above.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(gaussian_scale(1.0, 1e-5, 2.0, 0.25, 2, vertices=2), 6)
        10.117438
        >>> round(gaussian_scale(1.0, 1e-5, 2.0, 0.25, 2, vertices=2, triangle=True), 6)
        9.701149
    """
    proven, left = [objective_sigma(epsilon, delta, shift, jacobian, dimension)], epsilon - jacobian
    if vertices is not None:
        sigma = analytic_gaussian_sigma(left, delta / vertices)
        if sigma**-2 <= 2 * (math.sqrt(1 + left**2) - 1):
            proven.append(shift * sigma)
    if triangle:
        proven.append(shift * _triangle_sigma(left, delta))
    return min(proven)


@lru_cache(maxsize=1024)
def _triangle_sigma(left: float, delta: float) -> float:
    """Least sigma of the triangle at xi = 1; at most 1e-9 of it above, never below."""

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        longest, others = gaussian_log_delta(sigma, left), math.log(2) + gaussian_log_delta(2 * sigma, left)
        return float(np.logaddexp(longest, others)) - math.log(delta)

    least, most = (math.log(analytic_gaussian_sigma(left, delta / count)) for count in (1, 3))
    if excess(least) <= 0:  # the two short sides do not count
        return math.exp(least)
    root = math.exp(float(scipy.optimize.brentq(excess, least, most, xtol=1e-14, rtol=1e-14)))
    for margin in (1e-11, 1e-10, 1e-9):
        if excess(math.log(root * (1 + margin))) <= -1e-12:
            return root * (1 + margin)
    raise NumericalError(f"no safe scale found for epsilon - J = {left:g}, delta = {delta:g}, a loss of one slope")


def gaussian_curve(ratio: float, epsilons: np.ndarray) -> np.ndarray:
    r"""Delta of a Gaussian mechanism whose sensitivity is ``ratio`` deviations, at epsilons of either sign, 0 included.

    .. math:: \Phi(r/2 - \varepsilon/r) - e^{\varepsilon}\,\Phi(-r/2 - \varepsilon/r)

    Example:
        >>> gaussian_curve(1.0, np.array([0.0, 1.0])).round(6).tolist()
        [0.382925, 0.126937]
    """
    log_cdf = scipy.special.log_ndtr
    return np.exp(log_cdf(ratio / 2 - epsilons / ratio)) - np.exp(epsilons + log_cdf(-ratio / 2 - epsilons / ratio))


def objective_curve(ratio: float, left: np.ndarray, vertices: float | None = None) -> np.ndarray:
    r"""Delta of Gaussian objective noise at every epsilon - J, [k], by the points of a hull; at most 1.

    With v the gradient of a loss whose slope never changes its sign (``vertices`` None)

    .. math:: \delta_G(r) + 2\,\delta_G(r/2) + (1 - e^{\varepsilon - J})_+, \qquad r = \xi/\sigma

    and :math:`v\,\delta_G(r)` for ``vertices``, see ``gaussian_scale``, as far as :math:`\delta_G` is convex; 1 beyond.

    Args:
        ratio: r.
        left: epsilon - J, of either sign.
        vertices: v; None for the triangle of a loss of one slope.

    Example:
        >>> objective_curve(1.0, np.array([-1.0, 1.0]), vertices=2).round(6).tolist()
        [1.0, 1.0]
        >>> objective_curve(0.5, np.array([-1.0, 1.0]), vertices=2).round(6).tolist()
        [1.0, 0.013659]
    """
    if vertices is None:
        total = gaussian_curve(ratio, left) + 2 * gaussian_curve(ratio / 2, left)
        return np.minimum(total - np.expm1(np.minimum(left, 0.0)), 1.0)
    convex = (left > 0) & (ratio**2 <= 2 * (np.sqrt(1 + left**2) - 1))
    return np.where(convex, np.minimum(vertices * gaussian_curve(ratio, left), 1.0), 1.0)


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

    lower = upper = math.log((math.sqrt(k) + math.sqrt(2 * math.log(1.25 / delta))) / left + 1e-3)
    while excess(upper) > 0:
        upper += 1.0
    while excess(lower) <= 0:
        lower -= 1.0
    root = math.exp(float(scipy.optimize.brentq(excess, lower, upper, xtol=1e-14, rtol=1e-14)))
    for margin in (1e-11, 1e-10, 1e-9):
        if excess(math.log(root * (1 + margin))) <= -1e-12:
            return root * (1 + margin)
    raise NumericalError(f"no safe scale found for epsilon - J = {left:g}, delta = {delta:g}, dimension {k}")
