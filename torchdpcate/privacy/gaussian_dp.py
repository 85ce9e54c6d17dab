"""Gaussian differential privacy: its curve, mu of an event, and the largest choice beside it."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose, logistic_curve
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.events import ApproximateEvent, BoundedRangeEvent, DPSGDEvent, GaussianEvent, PureEvent


def gaussian_curve(mu: float, epsilons: np.ndarray) -> np.ndarray:
    r"""Return delta of a Gaussian mechanism whose sensitivity is mu > 0 deviations, at epsilons [k] of either sign.

    .. math:: \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon}\,\Phi(-\mu/2 - \varepsilon/\mu)

    Example:
        >>> gaussian_curve(1.0, np.array([0.0, 1.0])).round(6).tolist()
        [0.382925, 0.126937]
    """
    high = scipy.special.log_ndtr(mu / 2 - epsilons / mu)
    low = epsilons + scipy.special.log_ndtr(-mu / 2 - epsilons / mu)
    return -np.exp(high) * np.expm1(np.minimum(low - high, 0.0))


def event_mu(event: object) -> float:
    """Return mu of one event that is not subsampled; of an (epsilon, delta) event that of its epsilon."""
    if isinstance(event, GaussianEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, DPSGDEvent):
        return 2 / event.noise_multiplier  # a replaced gradient moves the sum by up to two clip norms
    assert isinstance(event, PureEvent | ApproximateEvent)
    return float(-2 * scipy.special.ndtri_exp(scipy.special.log_expit(-event.epsilon)))


_NODES, _FAR = 4_001, 12.0  # of the quadrature, and deviations that it reaches
_SMALLER = 1 - 1e-4  # until the accountant, which rounds upwards, agrees


def range_beside(mu: float, budget: PrivacyBudget, event: type[PureEvent] = BoundedRangeEvent) -> float:
    r"""Return the largest range eta of a choice that, with a Gaussian of mu, costs no more than a budget.

    .. math::
        \delta(\epsilon) = E_L \sup_{0 \le t \le \eta} q_t (1 - e^{x - t})_+ + (1 - q_t)(1 - e^{x - t + \eta})_+,
        \quad x = \epsilon - L,\ L \sim N(\mu^2/2, \mu^2),\ q_t = \frac{e^\eta - e^t}{e^\eta - 1}

    is exact for a choice after Gaussian events, and an upper bound in any order.

    Args:
        mu: Of all Gaussian events together, positive.
        budget: (epsilon, delta) with delta > 0, more than the Gaussian costs.
        event: ``PureEvent`` requests the epsilon of a choice that is pure and of no bounded range.

    Raises:
        InputError: The Gaussian alone costs the budget, or delta = 0.

    Example:
        >>> mu = 0.2680511232 * 0.3**0.5  # 0.3 of what epsilon = 1, delta = 1e-5 allow
        >>> round(range_beside(mu, PrivacyBudget(1.0, 1e-5)), 3)
        0.61
    """
    return _range_beside(positive("mu", mu), budget.epsilon, budget.delta, event)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _range_beside(mu: float, epsilon: float, delta: float, event: Any) -> float:
    gaussian = GaussianEvent(1 / mu)

    def cost(eta: float) -> float:
        return compose([(gaussian, 1), (event(eta), 1)], delta)

    left = epsilon - compose([(gaussian, 1)], delta) if delta > 0 else 0.0
    if left <= 0:
        raise InputError(f"epsilon = {epsilon:g}, delta = {delta:g}: nothing is left beside Gaussian events of {mu:g}")
    added = left * (1 - 1e-9)  # by basic composition
    if issubclass(event, BoundedRangeEvent):
        at = np.array([epsilon])
        found = scipy.optimize.brentq(lambda x: curve_beside(mu, x, at)[0] - delta, 1e-9, 2 * epsilon + 1, xtol=1e-9)
        eta, smaller = float(found), _SMALLER
    else:
        eta = float(scipy.optimize.brentq(lambda x: cost(x) - epsilon, added, 2 * epsilon + 1, xtol=1e-12 * epsilon))
        smaller = 1 - 1e-9  # the accountant is exact here
    while eta > added and cost(eta) > epsilon:
        eta, smaller = eta * smaller, smaller**2
    return max(eta, added)


def curve_beside(mu: float, eta: float, epsilons: np.ndarray, nodes: int = _NODES) -> np.ndarray:
    r"""Return :math:`\delta(\epsilon) = E\, \delta_\eta(\epsilon - L)` of a choice of range eta beside a Gaussian, [k].

    Args:
        mu: Of all Gaussian events together.
        eta: Range of the choice.
        epsilons: Any real numbers, [k].
        nodes: Of the quadrature over L.

    Example:
        >>> round(float(curve_beside(0.1468, 0.61, np.array([1.0]))[0]), 6)
        1e-05
    """
    z = np.linspace(-_FAR, _FAR, nodes)
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    return logistic_curve(eta, epsilons[:, None] - mu * mu / 2 - mu * z) @ weight
