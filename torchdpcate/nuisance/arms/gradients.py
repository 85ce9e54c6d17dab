"""Where ridge and logistic minimisers can lie, and how large one record's gradient is there: public suprema.

Features have norm at most ``radius``, the ridge belongs to the mean loss, and outcomes lie in [-1/2, 1/2]; see
``stability``, which turns these into movements. Proofs: docs/guarantees/stable_nuisances.md.
"""

import math
from collections.abc import Callable

from torchdpcate.privacy.budget import positive

_STEPS = 200  # of fixed points and bisections: far beyond what float64 resolves
_PROVED = 1.5  # largest |theta'x| for which the distance of logistic gradients is proved


def ridge_norm(radius: float, ridge: float, localised: bool = True) -> float:
    r"""Return a bound of the ridge coefficients' norm, for outcomes in [-1/2, 1/2].

    .. math:: \|b\| \le \frac12 \max_{s \le R_x} \frac{s}{s^2 + \lambda} \le \frac{1}{2\sqrt\lambda}

    The first is attained; the second, the paper's, is that of the objective's value at zero.

    Args:
        radius: R_x, bound of the features' norm.
        ridge: lambda of the mean loss.
        localised: Whether to take the first.

    Raises:
        InputError: A radius or ridge that is not positive.

    Example:
        >>> ridge_norm(1.0, 1.0), ridge_norm(1.0, 1.0, localised=False)
        (0.25, 0.5)
    """
    radius, ridge = positive("radius", radius), positive("ridge", ridge)
    if not localised:
        return 1 / (2 * math.sqrt(ridge))
    s = min(radius, math.sqrt(ridge))
    return s / (2 * (s * s + ridge))


def ridge_gradient_bound(radius: float, ridge: float, localised: bool = False) -> float:
    r"""Return G_mu = R_x (1/2 + R_x ||b||), the largest gradient of one record at a minimiser.

    Args:
        radius: R_x.
        ridge: lambda.
        localised: See `ridge_norm`.

    Example:
        >>> round(ridge_gradient_bound(21**0.5, 50.0), 6)
        3.776212
    """
    return radius * (0.5 + radius * ridge_norm(radius, ridge, localised))


def ridge_gradient_distance(radius: float, ridge: float) -> float:
    r"""Return the largest distance of two records' gradients at one minimiser, at most 2 G_mu.

    .. math:: R_x \max_\tau \sin\tau\, (1 + 2 z \cos\tau), \qquad z = R_x \|b\|

    Args:
        radius: R_x.
        ridge: lambda.

    Example:
        >>> round(ridge_gradient_distance(1.0, 1.0), 6), 2 * ridge_gradient_bound(1.0, 1.0, localised=True)
        (1.100917, 1.5)
    """
    z = radius * ridge_norm(radius, ridge)
    c = 4 * z / (1 + math.sqrt(1 + 32 * z * z))  # the root of cos + 2 z cos 2 tau = 0
    return radius * math.sqrt(1 - c * c) * (1 + 2 * z * c)


def logistic_norm(radius: float, ridge: float, offset: float = 0.0) -> float:
    r"""Return the largest norm of logistic coefficients, the logit being an offset o plus theta'x.

    .. math:: \lambda r = R_x \sigma(|o| - R_x r), \quad\text{or}\quad \lambda r^2 = \max_v v \sigma(|o| - v) = v^* - 1

    where the first would have R_x r > v*, the place of the maximum, 1.27846... for o = 0; attained by records that all
    agree, with the rarer action.

    Args:
        radius: R_x.
        ridge: lambda.
        offset: o.

    Example:
        >>> round(logistic_norm(21**0.5, 50.0) * 21**0.5, 6)
        0.190099
    """
    radius, ridge, offset = positive("radius", radius), positive("ridge", ridge), abs(offset)
    flattest = _root(lambda v: v * sigmoid(v - offset) - 1, offset + 2)
    if ridge * flattest < radius**2 * sigmoid(offset - flattest):
        return math.sqrt((flattest - 1) / ridge)
    z = _root(lambda z: ridge * z - radius**2 * sigmoid(offset - z), flattest)
    return z / radius


def logistic_gradient_bound(radius: float, ridge: float, localised: bool = False) -> float:
    r"""Return G_e, the largest gradient of one record: R_x, or at a minimiser R_x sigmoid(R_x r).

    Args:
        radius: R_x.
        ridge: lambda.
        localised: Whether to take the second, with r the theory note's root of lambda r = R_x sigmoid(R_x r).

    Example:
        >>> round(logistic_gradient_bound(21**0.5, 50.0, localised=True), 6)
        2.55873
    """
    radius, ridge = positive("radius", radius), positive("ridge", ridge)
    if not localised:
        return radius
    r = radius / ridge
    for _ in range(_STEPS):  # from above: every step is a bound
        r = radius * sigmoid(radius * r) / ridge
    return radius * sigmoid(radius * r)


def logistic_gradient_distance(radius: float, ridge: float, offset: float = 0.0) -> float:
    r"""Return the largest distance of two records' gradients at one minimiser, at most 2 G_e.

    .. math:: 2 R_x \max_c \sqrt{1 - c^2}\, \sigma(|o| + z c), \qquad z = R_x r \le \min\{3/2,
        16 \sigma(|o| + z)^2 \sigma(-|o| - z)\}

    with r of `logistic_norm`; beyond that 2 R_x sigmoid(|o| + z).

    Args:
        radius: R_x.
        ridge: lambda.
        offset: o of the logit.

    Example:
        >>> round(logistic_gradient_distance(1.0, 1.0), 6), logistic_gradient_distance(1.0, 1e-3) <= 2
        (1.01918, True)
    """
    z, offset = radius * logistic_norm(radius, ridge, offset), abs(offset)
    if z > min(_PROVED, 16 * sigmoid(offset + z) ** 2 * sigmoid(-offset - z)):
        return 2 * radius * sigmoid(offset + z)
    c = _root(lambda c: c - z * (1 - c * c) * sigmoid(-offset - z * c), 1.0)
    return 2 * radius * math.sqrt(1 - c * c) * sigmoid(offset + z * c)


def multinomial_norm(radius: float, ridge: float, actions: int) -> float:
    r"""Return a bound of the norm of all K coefficient vectors of a multinomial fit, as one vector.

    The fixed point from above of :math:`\lambda r = R_x g(r)`, g of `multinomial_gradient_bound`.

    Args:
        radius: R_x.
        ridge: lambda.
        actions: K.
    """
    r = math.sqrt(2) * positive("radius", radius) / positive("ridge", ridge)
    for _ in range(_STEPS):  # every step is a bound
        r = _multinomial_gradient(radius, r, actions) / ridge
    return r


def multinomial_gradient_bound(radius: float, ridge: float, actions: int, localised: bool = False) -> float:
    r"""Return the largest gradient of one record of a multinomial fit.

    That is sqrt(2) R_x, or at a minimiser

    .. math:: R_x \sqrt{(1 - p_{min})(1 - p_{min} + p_{max})}

    with the least and largest probability that `multinomial_norm` leaves, `multinomial_range`.

    Args:
        radius: R_x.
        ridge: lambda.
        actions: K.
        localised: Whether to take the second.

    Example:
        >>> round(multinomial_gradient_bound(1.0, 1e6, 3, localised=True), 4)  # sqrt(2/3) at equal probabilities
        0.8165
    """
    if not localised:
        return math.sqrt(2) * radius
    return _multinomial_gradient(radius, multinomial_norm(radius, ridge, actions), actions)


def multinomial_range(reach: float, actions: int) -> tuple[float, float]:
    r"""Return the least and largest softmax probability where the logits' vector has norm at most ``reach``.

    Any two logits differ by at most sqrt(2) reach.

    Example:
        >>> multinomial_range(0.0, 4)
        (0.25, 0.25)
    """
    gap = math.sqrt(2) * reach
    return 1 / (1 + (actions - 1) * math.exp(min(gap, 700.0))), 1 / (1 + (actions - 1) * math.exp(-gap))


def _multinomial_gradient(radius: float, norm: float, actions: int) -> float:
    least, most = multinomial_range(radius * norm, actions)
    return radius * math.sqrt((1 - least) * (1 - least + min(most, 1 - least)))


def sigmoid(u: float) -> float:
    """Return 1 / (1 + exp(-u)), without overflow."""
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


def _root(increasing: Callable[[float], float], high: float) -> float:
    """Return the upper end of a bisection of [0, high] for the root of an increasing function."""
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if increasing(middle) >= 0 else (middle, high)
    return high
