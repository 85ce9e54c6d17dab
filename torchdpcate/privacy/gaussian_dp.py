"""Gaussian differential privacy: the mu that covers a composed curve, and the largest choice beside it."""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import EventCount, compose, logistic_curve, privacy_curve
from torchdpcate.privacy.budget import PrivacyBudget, positive, probability
from torchdpcate.privacy.events import ApproximateEvent, BoundedRangeEvent, DPSGDEvent, GaussianEvent, PureEvent

_POINTS = 1001  # where the curve is compared
_ROUNDING = 1e-9  # relative; far above that of the closed forms
_LARGEST = 100.0  # a mu or an epsilon that hides nothing at all


class Validity(StrEnum):
    """How much of the privacy curve a mu covers."""

    EXACT = "exact: the events are Gaussian, so the whole curve is that of mu"
    WHOLE = "upper bound over the whole curve: pure events are covered by a Gaussian of the same advantage"
    CURVE = "upper bound over the accountant's curve down to the delta given with it, and no further"
    ENDS = "not available: a curve that ends at a delta says nothing of several records of a person"
    NONE = "not available: an (epsilon, delta) event has no Gaussian curve"
    VOID = "not available: what the events guarantee is next to nothing"


class GaussianDP(NamedTuple):
    """A mu with how far it reaches; None where there is none.

    Attributes:
        mu: Every (epsilon, delta(epsilon)) of the events lies on or under the curve of mu, where it reaches.
        validity: How much of the curve that is.
        down_to: The delta at which it ends; 0 for the whole curve.
    """

    mu: float | None
    validity: Validity
    down_to: float = 0.0


def gaussian_dp(charges: Sequence[EventCount], delta: float) -> GaussianDP:
    r"""Smallest mu found whose curve covers that of all charges together, replace-one adjacency.

    .. math:: \delta_\mu(\epsilon) = \Phi(-\epsilon/\mu + \mu/2) - e^\epsilon \Phi(-\epsilon/\mu - \mu/2)

    Gaussian events compose exactly, :math:`\mu^2 = \sum_i \sigma_i^{-2}` (Dong, Roth & Su 2022, corollary 3.3); a
    pure event is :math:`2\Phi^{-1}(e^\epsilon/(1+e^\epsilon))`-GDP, which is tight (Liu, Sun, Jiang & Kong 2022).
    The tail of T subsampled steps is heavier than that of any useful mu: for epsilon without limit it needs
    :math:`\sqrt{T}/\sigma`, whatever the sampling rate. So their curve is covered down to ``delta`` alone (as Gomez et
    al. 2025 advise, with the end made explicit): :math:`\delta(\epsilon) \le \max(\delta_\mu(\epsilon), \delta)` for
    all epsilon >= 0. An (epsilon, delta) event with delta > 0 has no mu: a point says nothing of the curve, which may
    allow a total loss with probability delta.

    Args:
        charges: Pairs of an event and how often it happened.
        delta: Where a curve of subsampled steps ends, in [0, 1); no mu for them at 0.

    Raises:
        InputError: If ``delta`` or a count is outside its range.

    Example:
        >>> gaussian_dp([(GaussianEvent(4.0), 4)], 1e-5).mu
        0.5
        >>> steps = gaussian_dp([(DPSGDEvent(8.0, 128 / 1350), 422)], 1e-5)
        >>> round(steps.mu, 3), steps.down_to
        (0.489, 1e-05)
    """
    delta = probability("delta", delta)
    charges = [(event, count) for event, count in charges if count]
    if any(isinstance(event, ApproximateEvent) and event.delta > 0 for event, _ in charges):
        return GaussianDP(None, Validity.NONE)
    if any(isinstance(event, DPSGDEvent) and event.sampling_rate < 1 for event, _ in charges):
        mu = _cover(charges, delta) if delta else None
        return GaussianDP(None, Validity.VOID) if mu is None else GaussianDP(mu, Validity.CURVE, delta)
    gaussian = all(isinstance(event, GaussianEvent | DPSGDEvent) for event, _ in charges)
    mu = math.sqrt(math.fsum(count * event_mu(event) ** 2 for event, count in charges))
    return GaussianDP(mu, Validity.EXACT if gaussian else Validity.WHOLE)


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


def _cover(charges: Sequence[EventCount], delta: float) -> float | None:
    """Smallest mu whose curve is at least the charges' wherever theirs is above ``delta``; None beyond ``_LARGEST``."""
    end = compose(charges, delta)
    if not end < _LARGEST:
        return None
    epsilons = np.linspace(0.0, max(end, 1e-6) * 1.01, _POINTS)
    curve = privacy_curve(charges, epsilons)
    while curve[-1] > delta:  # basic composition was the better one at delta
        epsilons = epsilons * 1.25
        curve = privacy_curve(charges, epsilons)
    # between two points the charges' curve is below its left value, and a Gaussian's above its right one
    ends, needed = epsilons[1:], curve[:-1]
    ends, needed = ends[needed > delta], needed[needed > delta]
    if not needed.size:
        return 0.0

    def covers(mu: float) -> bool:
        return bool((gaussian_curve(mu, ends) >= needed * (1 + _ROUNDING)).all())

    lower, upper = 0.0, 1e-3
    while not covers(upper):
        if upper > _LARGEST:
            return None
        lower, upper = upper, 2 * upper
    while upper - lower > 1e-6 * upper:
        middle = (lower + upper) / 2
        lower, upper = (lower, middle) if covers(middle) else (middle, upper)
    return upper


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
    return _range_beside(positive("mu", mu), budget.epsilon, budget.delta, event)


@lru_cache(maxsize=1024)
def _range_beside(mu: float, epsilon: float, delta: float, event: type[PureEvent]) -> float:
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
