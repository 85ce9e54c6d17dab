"""From counts of an attack's successes in many runs to a lower bound on epsilon."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import beta

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import dp_sgd_epsilon, privacy_curve
from torchdpcate.privacy.calibration import gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, Event, GaussianEvent, PureEvent
from torchdpcate.privacy.worst_case import Curve

_COARSE = 32.0  # of the accountant's discretisation while a noise multiplier is searched for; never on the unsafe side
_RANGE = 2.0  # log of the noise multipliers searched, on either side of the claimed one
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 60, 400)])


def clopper_pearson(successes: Any, trials: Any, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a lower and an upper bound of a probability, each wrong with probability at most 1 - confidence.

    Clopper & Pearson (1934): exact for every probability and number of trials.

    Args:
        successes: Counts, any shape.
        trials: Out of how many.
        confidence: Of each bound alone, in (0, 1).

    Raises:
        InputError: A confidence outside (0, 1).

    Example:
        >>> low, high = clopper_pearson(0, 100, 0.95)
        >>> float(low), round(float(high), 6)
        (0.0, 0.029513)
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: give a probability strictly between 0 and 1")
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    low = np.where(k > 0, beta.ppf(1 - confidence, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(confidence, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high


@dataclass(frozen=True)
class Rates:
    """What is known of an attack that says "D'": bounds that hold together at the stated confidence.

    Attributes:
        false_high: Upper bound of the probability that it says so on D; any shape.
        true_low: Lower bound of the probability that it says so on D'.
    """

    false_high: Any
    true_low: Any

    @classmethod
    def of(cls, false: Any, true: Any, trials: int, confidence: float) -> "Rates":
        """Bounds from counts of "D'" in ``trials`` runs on D and as many on D'; the error is shared equally."""
        each = (1 + confidence) / 2
        return cls(clopper_pearson(false, trials, each)[1], clopper_pearson(true, trials, each)[0])


def pure_bound(rates: Rates, delta: float = 0.0) -> np.ndarray:
    r"""Return the largest epsilon that some test of (epsilon, delta) privacy refutes; 0 if none does.

    .. math:: \ln\max\Big\{\frac{\beta - \delta}{\alpha},\ \frac{1 - \alpha - \delta}{1 - \beta}\Big\}

    with alpha the false and beta the true positive rate; the second term swaps the data sets.
    Source: Kairouz, Oh & Viswanath (2015), theorem 2.1; Jagielski, Ullman & Oprea (2020).

    Example:
        >>> round(float(pure_bound(Rates(0.1, 0.4), 0.0)), 6)
        1.386294
    """
    false, true = np.asarray(rates.false_high), np.asarray(rates.true_low)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.fmax((true - delta) / false, (1 - false - delta) / (1 - true))
        return np.maximum(np.log(np.maximum(ratio, 1e-300)), 0.0)


def gaussian_bound(rates: Rates) -> np.ndarray:
    r"""Return the largest mu that is refuted as a Gaussian trade-off: Phi^{-1}(beta) - Phi^{-1}(alpha), or 0.

    Source: Dong, Roth & Su (2022), definition 6; Nasr et al. (2023).

    Example:
        >>> round(float(gaussian_bound(Rates(0.5, 0.8413447461))), 6)
        1.0
    """
    return np.maximum(ndtri(np.asarray(rates.true_low)) - ndtri(np.asarray(rates.false_high)), 0.0)


def epsilon_bound(event: Event, count: int, delta: float, rates: Rates) -> float:
    """Return the largest epsilon at ``delta`` that the rates refute, within the family of the claimed event.

    The claim is the event's trade-off curve. The family holds the events of its kind with more or less
    noise (or a larger epsilon); the bound is the epsilon of its most private member that the rates do not refute.
    It exceeds the claimed epsilon if and only if the rates refute the claimed curve, which needs no assumption
    about the mechanism; how far it exceeds it, or falls short, is measured along the family.

    Args:
        event: What one run is charged.
        count: How often it happens in a run.
        delta: At which delta epsilon is stated.
        rates: One pair of numbers.

    Returns:
        The bound, 0 if nothing is refuted.

    Raises:
        InputError: An event of no known family, or an approximate or pure one that happens more than once.

    Example:
        >>> round(epsilon_bound(GaussianEvent(3.730631635), 1, 1e-5, Rates(0.5, 0.6)), 4)
        0.94
    """
    if isinstance(event, PureEvent | ApproximateEvent):
        if count != 1:
            raise InputError(f"count = {count}: an attack on {event} sees one run of it")
        return float(pure_bound(rates, getattr(event, "delta", 0.0)))
    if isinstance(event, GaussianEvent):
        mu = float(gaussian_bound(rates))
        return gaussian_epsilon(1 / mu, delta) if mu > 1e-6 else 0.0
    if isinstance(event, DPSGDEvent):
        return _dp_sgd_bound(event, count, delta, rates)
    raise InputError(f"event = {event!r}: no family of trade-offs is known for it")


def curve_bound(curve: Curve, delta: float, rates: Rates) -> float:
    """Return the epsilon at ``delta`` of the noisiest mechanism of a family that the rates do not refute; 0 if none.

    Args:
        curve: The family; a factor of one is the mechanism as claimed.
        delta: At which delta epsilon is stated.
        rates: One pair of numbers.
    """

    def excess(log_factor: float) -> float:
        return _excess(rates, curve(math.exp(log_factor), _EPSILONS))

    if excess(-_RANGE) <= 0:
        return 0.0
    factor = math.exp(_RANGE if excess(_RANGE) > 0 else brentq(excess, -_RANGE, _RANGE, xtol=1e-5) - 1e-5)

    def above(epsilon: float) -> float:
        return float(curve(factor, np.array([epsilon]))[0]) - delta

    return float(brentq(above, 0.0, _EPSILONS[-1], xtol=1e-9))


def best_factors(curve: Curve, rates: Rates) -> np.ndarray:
    """Return the largest factor, of a few, whose curve each of many pairs of rates refutes; 0 where there is none."""
    false, true = (np.asarray(rate, dtype=np.float64)[:, None] for rate in (rates.false_high, rates.true_low))
    growth, found = np.exp(_EPSILONS), np.zeros(len(false))
    for factor in np.exp(np.linspace(-_RANGE, _RANGE / 2, 150)):
        deltas = curve(float(factor), _EPSILONS)
        broken = np.maximum(true - growth * false - deltas, 1 - false - growth * (1 - true) - deltas).max(1) > 0
        found[broken] = factor
    return found


def _dp_sgd_bound(event: DPSGDEvent, steps: int, delta: float, rates: Rates) -> float:
    """Epsilon of the noisiest run of the same steps and rate that the rates do not refute."""

    def excess(log_noise: float) -> float:
        charges = [(DPSGDEvent(math.exp(log_noise), event.sampling_rate), steps)]
        return _excess(rates, privacy_curve(charges, _EPSILONS, _COARSE))

    claimed, step = math.log(event.noise_multiplier), 2e-3
    low, high = claimed - _RANGE, claimed + _RANGE
    if excess(high) <= 0:
        return 0.0
    # more noise allows less, so the excess grows with it
    noise = low if excess(low) > 0 else brentq(excess, low, high, xtol=step)
    return dp_sgd_epsilon(math.exp(noise + step), delta, event.sampling_rate, steps)


def _excess(rates: Rates, deltas: np.ndarray) -> float:
    """By how much the rates break the curve delta(epsilon) on the grid, in either direction."""
    false, true = float(rates.false_high), float(rates.true_low)
    growth = np.exp(_EPSILONS)
    return float(max(np.max(true - growth * false - deltas), np.max(1 - false - growth * (1 - true) - deltas)))
