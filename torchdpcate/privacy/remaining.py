"""The largest budget that fits beside what a block has been charged already."""

import math
from collections.abc import Callable

from torchdpcate.privacy.accounting import EventCount, compose
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import ApproximateEvent, Event, GaussianEvent, PureEvent

_SHARES = (1.0, 0.5, 0.1, 0.01)  # of the free delta, offered to what is still to be charged
_LEAST = 1e-6  # of the block's epsilon and delta; Gaussian noise is not offered less
_TOLERANCE = 1e-4  # of the epsilon that remains, relative
_ROUNDS = 24  # of the search for it; a handful do


def largest_remaining(charges: list[EventCount], budget: PrivacyBudget, gaussian: bool = False) -> PrivacyBudget | None:
    """Return a budget that can still be spent beside ``charges``, or None.

    An ``ApproximateEvent`` or ``PureEvent`` of it, or a Gaussian calibrated to it, composes with the charges to at most
    ``budget``; see ``Ledger.remaining``.

    Args:
        charges: What the block was charged, open entries as planned.
        budget: The block's budget.
        gaussian: Whether the next event is a Gaussian, which composes to less than other events of its budget.

    Example:
        >>> largest_remaining([(PureEvent(0.75), 1)], PrivacyBudget(1.0, 0.0))
        PrivacyBudget(epsilon=0.25, delta=0.0)
    """
    search = _largest_gaussian if gaussian else _largest
    return next(filter(None, (search(charges, budget, start) for start in _starts(charges, budget))), None)


def _starts(charges: list[EventCount], budget: PrivacyBudget) -> list[PrivacyBudget]:
    """What basic composition leaves: at the share of the free delta that needs least noise, and at delta = 0."""
    free = budget.delta - math.fsum(n * e.delta for e, n in charges if isinstance(e, ApproximateEvent))
    free = free if free > _LEAST * budget.delta else 0.0  # below it is rounding
    deltas = [share * free for share in _SHARES if share * free >= LEAST_DELTA] + [0.0]
    left = [(budget.epsilon - compose(charges, max(budget.delta - d, 0.0)), d) for d in deltas]
    *shared, pure = [PrivacyBudget(e, d) if e > 0 else None for e, d in left]
    gaussian = [b for b in shared if b is not None and b.delta > 0 and b.epsilon > _LEAST * budget.epsilon]
    best = min(gaussian, key=lambda b: analytic_gaussian_sigma(b.epsilon, b.delta), default=None)
    return [start for start in (best, pure) if start is not None]


def _largest(charges: list[EventCount], budget: PrivacyBudget, start: PrivacyBudget) -> PrivacyBudget | None:
    """Largest epsilon at the delta of ``start`` that fits beside ``charges``, whatever event is made of it."""

    def over(*events: Event) -> float:
        return max(compose([*charges, (event, 1)], budget.delta) for event in events) - budget.epsilon

    def others(epsilon: float) -> float:
        if start.delta == 0:
            return over(PureEvent(epsilon))
        return over(PureEvent(epsilon), GaussianEvent(analytic_gaussian_sigma(epsilon, start.delta)))

    least = _LEAST * budget.epsilon if start.delta else 0.0
    epsilon = _accepted(lambda e: over(ApproximateEvent(e, start.delta)), start.epsilon, least, _TOLERANCE)
    if epsilon is not None:  # the others cost less, but for the accountant's rounding
        epsilon = _accepted(others, epsilon, least, math.inf)
    return None if epsilon is None else PrivacyBudget(epsilon, start.delta)


def _largest_gaussian(charges: list[EventCount], budget: PrivacyBudget, start: PrivacyBudget) -> PrivacyBudget | None:
    """Largest epsilon at the delta of ``start`` for which a Gaussian calibrated to it fits beside ``charges``."""

    def over(epsilon: float) -> float:
        event = GaussianEvent(analytic_gaussian_sigma(epsilon, start.delta))
        return compose([*charges, (event, 1)], budget.delta) - budget.epsilon

    if start.delta == 0:
        return None
    epsilon = _accepted(over, start.epsilon, _LEAST * budget.epsilon, _TOLERANCE)
    return None if epsilon is None else PrivacyBudget(epsilon, start.delta)


def _accepted(over: Callable[[float], float], epsilon: float, least: float, tolerance: float) -> float | None:
    """An epsilon above ``least`` that is not over the budget, close below the largest; None if none was found.

    Steps by the excess, because the composed epsilon grows about as fast as this one; halves once bracketed.
    """
    low, high, step = 0.0, math.inf, 2.0
    for _ in range(_ROUNDS):
        if epsilon <= least:
            break
        excess = over(epsilon)
        if excess <= 0:
            low = epsilon
            if -excess <= tolerance * epsilon:
                break
        else:
            high, step = epsilon, 2 * step
        if low and high - low <= tolerance * low:
            break
        if low:
            epsilon = low - excess if math.isinf(high) else (low + high) / 2
        else:
            epsilon = max(high - step * excess, high / 10)
    return low or None
