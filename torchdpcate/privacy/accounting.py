"""Composition: what several uses of the same records cost together, replace-one adjacency."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np
import scipy

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive, probability, some_delta
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, bracket, gaussian_epsilon, gaussian_log_delta
from torchdpcate.privacy.events import ApproximateEvent, BoundedRangeEvent, DPSGDEvent, Event, GaussianEvent, PureEvent

EventCount = tuple[Event, int]

_INTERVAL = 1e-4  # of the discretised privacy loss, where nothing requests another
_MOST_BINS = 500_000  # about half a second
_LARGEST_LOSS = 100.0  # of one event in a discretised composition
_MOST_LOSSES = 64  # of pure events together, up to which they are composed with a Gaussian one in closed form
_WIDEST = 1e4  # range of losses that is discretised; beyond it no epsilon protects, and closed forms say so at once
_NUMERICAL_DELTA = 1e-12  # kept back for the rounding of the Fourier transforms


class Cost(NamedTuple):
    """What something costs: epsilon (0 for nothing, infinite for no guarantee) at delta."""

    epsilon: float
    delta: float


def compose(charges: Sequence[EventCount], delta: float) -> float:
    r"""Smallest epsilon found for all charges together at ``delta``; an upper bound, adaptive composition.

    The smaller of two: (i) ``dp_accounting``'s convolution of the privacy loss distributions of the dominating
    pairs, rounded pessimistically, or a closed form for Gaussian events beside few pure ones; (ii) basic composition,
    which adds the epsilons and deltas of the pure and approximate events to the composition of the rest. Gaussian
    events are merged exactly beforehand, :math:`\sigma^{-2} = \sum_i \sigma_i^{-2}`, and a lone event comes out
    exactly.

    Args:
        charges: Pairs of an event and how often it happened.
        delta: In [0, 1). At 0 only pure events have a finite cost.

    Returns:
        epsilon; 0 for no charges, infinite if no epsilon holds at this delta.

    Raises:
        InputError: If ``delta`` or a count is outside its range.

    Example:
        >>> round(compose([(DPSGDEvent(8.0, 128 / 1350), 422), (GaussianEvent(6.0), 1)], 1e-5), 6)
        2.057311
    """
    return _compose(_merge(charges), probability("delta", delta))


def privacy_curve(charges: Sequence[EventCount], epsilons: Any, coarse: float = 1.0) -> np.ndarray:
    r"""delta(epsilon) of all charges together: an upper bound, adaptive composition.

    Closed forms for a lone event and for Gaussian ones; else ``dp_accounting``'s convolution.

    Args:
        charges: Pairs of an event and how often it happened, at least one.
        epsilons: Any real numbers, [k].
        coarse: Makes the discretisation of the convolution coarser, which is faster and never smaller.

    Returns:
        Values in [0, 1], [k].

    Raises:
        InputError: If there is no charge or a count is outside its range.

    Example:
        >>> privacy_curve([(PureEvent(1.0), 1)], [0.0, 1.0]).round(6).tolist()
        [0.462117, 0.0]
    """
    merged, epsilons = _merge(charges), np.asarray(epsilons, dtype=np.float64)
    if not merged:
        raise InputError("charges = []: nothing was charged, so there is no curve")
    (event, count), *others = merged
    if others or (count > 1 and not isinstance(event, GaussianEvent)) or isinstance(event, DPSGDEvent):
        if any(getattr(e, "epsilon", 0.0) > _LARGEST_LOSS for e, _ in merged) or _wide(merged):
            return np.ones_like(epsilons)  # too large for a discretised composition, and no privacy anyway
        total = _total_loss(merged, coarse)
        return np.clip(np.asarray(total.get_delta_for_epsilon(epsilons)) + _lost(total), 0.0, 1.0)
    if isinstance(event, GaussianEvent):
        return gaussian_curve(1 / event.noise_multiplier, epsilons)
    if isinstance(event, BoundedRangeEvent):
        return logistic_curve(event.epsilon, epsilons)
    assert isinstance(event, PureEvent | ApproximateEvent)
    bound, delta, capped = event.epsilon, getattr(event, "delta", 0.0), np.minimum(epsilons, event.epsilon)
    # randomised response, the worst of its kind: (e^bound - e^epsilon) / (1 + e^bound), without overflow
    gap = -np.expm1(capped - bound) * scipy.special.expit(bound)
    return delta + (1 - delta) * np.maximum(gap, -np.expm1(np.minimum(capped, 0.0)))


def logistic_curve(eta: float, epsilons: np.ndarray) -> np.ndarray:
    r"""Return delta(epsilon) of two logistic laws at distance eta, [k]: that of the worst choice of bounded range eta.

    .. math:: \delta(\epsilon) = \frac{(1 - e^{(\epsilon - \eta)/2})^2}{1 - e^{-\eta}}, \quad |\epsilon| \le \eta

    Args:
        eta: Distance, positive.
        epsilons: Any real numbers, [k].

    Example:
        >>> logistic_curve(0.61, np.array([0.0, 0.5])).round(6).tolist()
        [0.151329, 0.006271]
    """
    inside = np.expm1((np.clip(epsilons, -eta, eta) - eta) / 2) ** 2 / -np.expm1(-eta)
    return np.where(epsilons <= -eta, -np.expm1(np.minimum(epsilons, 0.0)), inside)


def naive_sum(charges: Sequence[EventCount], delta: float) -> Cost:
    """Basic composition: epsilons added, each charge at an equal share of what delta is left.

    Approximate events keep their own delta, pure ones need none, the others share the rest. For comparison
    with ``compose``; infinite if the deltas do not fit.

    Raises:
        InputError: If ``delta`` or a count is outside its range.
    """
    delta = probability("delta", delta)
    charges = [(event, integer("count", count, least=0)) for event, count in charges]
    charges = [(event, count) for event, count in charges if count]
    left = _left(charges, delta)
    sharing = sum(not isinstance(event, PureEvent | ApproximateEvent) for event, _ in charges)
    if left is None:
        return Cost(math.inf, delta)
    return Cost(sum(_alone(charge, left / max(sharing, 1)) for charge in charges), delta)


def dp_sgd_epsilon(noise_multiplier: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Epsilon of DP-SGD with Poisson sampling, replace-one adjacency.

    Conditions: each record is in each batch with probability ``sampling_rate`` independently, its gradient
    is clipped to norm C, and the noise has standard deviation C times ``noise_multiplier``.

    Args:
        noise_multiplier: sigma, noise standard deviation over clip norm.
        delta: In (0, 1).
        sampling_rate: q in (0, 1].
        steps: Number of steps, empty batches included.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> round(dp_sgd_epsilon(4.0, 1e-5, 128 / 1350, 211), 6)
        2.850185
    """
    return compose([(DPSGDEvent(noise_multiplier, sampling_rate), steps)], delta)


def dp_sgd_noise_multiplier(
    epsilon: float, delta: float, sampling_rate: float, steps: int, also: Sequence[EventCount] = ()
) -> float:
    """Smallest noise multiplier of DP-SGD for a budget, to 0.1 %; inverse of ``dp_sgd_epsilon``.

    The value returned satisfies the budget: ``compose`` of these steps and ``also`` is at most ``epsilon``.

    Args:
        epsilon: Target, positive.
        delta: In (0, 1).
        sampling_rate: q in (0, 1].
        steps: Number of steps, at least 1.
        also: Other charges on the same records.

    Raises:
        InputError: If an argument is outside its range, ``also`` leaves nothing, or delta is below the
            rounding of the accountant (about 1e-12).

    Example:
        >>> round(dp_sgd_noise_multiplier(1.0, 1e-5, 128 / 1350, 211), 2)
        10.27
    """
    epsilon, steps = positive("epsilon", epsilon), integer("steps", steps, least=1)
    delta = some_delta("delta", delta, above_zero=True, why="DP-SGD needs delta > 0")
    rate = DPSGDEvent(1.0, sampling_rate).sampling_rate
    return _dp_sgd_noise_multiplier(epsilon, delta, rate, steps, _merge(also))


@lru_cache(maxsize=256)
def _dp_sgd_noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, also: tuple[EventCount, ...]
) -> float:
    spent = _compose(also, delta)
    if spent >= epsilon:
        raise InputError(f"epsilon = {epsilon:g}: the other charges alone cost {spent:g} at delta = {delta:g}")

    def excess(log_sigma: float, coarse: float = 1.0) -> float:
        charges = _merge((*also, (DPSGDEvent(math.exp(log_sigma), rate), steps)))
        return math.log(_compose(charges, delta, coarse) + 1e-300) - math.log(epsilon)

    # a fast coarse root first, then two or three exact evaluations around it
    shift = 1 / analytic_gaussian_sigma(epsilon, delta)
    start = -0.5 * math.log(math.asinh((shift / (2 * rate)) ** 2 / steps))
    coarse = partial(excess, coarse=4.0)
    near = scipy.optimize.brentq(coarse, *bracket(coarse, start, 0.02), xtol=1e-4)
    lower, upper = bracket(excess, near, 5e-4)
    while upper - lower > 6e-4:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if excess(middle) > 0 else (lower, middle)
    return math.exp(upper)


def _merge(charges: Iterable[EventCount]) -> tuple[EventCount, ...]:
    """Charges with equal events added up, Gaussian ones made one, in a canonical order."""
    counts: Counter[Event] = Counter()
    precision = 0.0
    for event, count in charges:
        count = integer("count", count, least=0)
        if isinstance(event, GaussianEvent):
            precision += count / event.noise_multiplier**2
        elif isinstance(event, DPSGDEvent) and event.sampling_rate == 1:
            precision += count * (2 / event.noise_multiplier) ** 2
        elif not isinstance(event, DPSGDEvent | PureEvent | ApproximateEvent):
            raise InputError(f"event = {event!r}: the accountant knows the events of torchdpcate.privacy alone")
        elif count:
            counts[event] += count
    if precision > 0:
        counts[GaussianEvent(1 / math.sqrt(precision))] = 1
    return tuple(sorted(counts.items(), key=repr))


@lru_cache(maxsize=4096)
def _compose(charges: tuple[EventCount, ...], delta: float, coarse: float = 1.0) -> float:
    if not charges:
        return 0.0
    basic = _basic(charges, delta, coarse)
    bounded = [event for event, _ in charges if isinstance(event, PureEvent | ApproximateEvent)]
    alone = len(charges) == 1 and (charges[0][1] == 1 or not bounded)
    if alone or delta == 0 or any(event.epsilon > _LARGEST_LOSS for event in bounded) or _wide(charges):
        return basic
    if _few_losses(charges):
        return min(basic, _beside_gaussian(charges, delta))
    return min(basic, _convolved(charges, delta, coarse))


def _few_losses(charges: Sequence[EventCount]) -> bool:
    """Whether these are a Gaussian event and pure ones whose losses take few values together."""
    gaussian, pure = ([c for c in charges if type(c[0]) is kind] for kind in (GaussianEvent, PureEvent))
    few = math.prod(count + 1 for _, count in pure) <= _MOST_LOSSES
    return len(gaussian) == 1 and len(gaussian) + len(pure) == len(charges) and few


def _beside_gaussian(charges: Sequence[EventCount], delta: float) -> float:
    r"""Epsilon of a Gaussian event of multiplier s and pure ones, exact but for 1e-12, which it is rounded up by.

    Of a randomised response the loss is :math:`\pm\epsilon_0`, so that of all of them takes values l of known
    probabilities w, and :math:`\delta(\epsilon) = \sum_l w_l\, \delta_s(\epsilon - l)`.
    """
    losses, logs, sigma = np.zeros(1), np.zeros(1), math.nan
    for event, count in charges:
        if isinstance(event, GaussianEvent):
            sigma = event.noise_multiplier
            continue
        assert isinstance(event, PureEvent)
        ups = np.arange(count + 1)
        chance = [float(scipy.special.log_expit(sign * event.epsilon)) for sign in (1, -1)]
        of, up, down = (scipy.special.gammaln(k + 1) for k in (count, ups, count - ups))
        losses = np.add.outer(losses, event.epsilon * (2 * ups - count)).ravel()
        logs = np.add.outer(logs, of - up - down + ups * chance[0] + (count - ups) * chance[1]).ravel()

    def excess(epsilon: float) -> float:
        each = [gaussian_log_delta(sigma, epsilon - loss) for loss in losses]
        return max(float(scipy.special.logsumexp(logs + each)), -1e300) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    upper = float(losses.max()) + gaussian_epsilon(sigma, delta)
    root = scipy.optimize.brentq(excess, 0.0, upper * (1 + 1e-12), xtol=1e-300, rtol=1e-15)
    return float(root) * (1 + 1e-12)


def _basic(charges: Sequence[EventCount], delta: float, coarse: float) -> float:
    """Pure and approximate events added to the composition of the rest at the delta left."""
    left = _left(charges, delta)
    if left is None:
        return math.inf
    total = 0.0
    rest = []
    for event, count in charges:
        if isinstance(event, PureEvent | ApproximateEvent):
            total += count * event.epsilon
        else:
            rest.append((event, count))
    return total + _unbounded(tuple(rest), left, coarse)


def _unbounded(charges: tuple[EventCount, ...], delta: float, coarse: float) -> float:
    """Epsilon of Gaussian and DP-SGD events."""
    if not charges:
        return 0.0
    if delta == 0:
        return math.inf
    if len(charges) == 1 and isinstance(charges[0][0], GaussianEvent):
        return gaussian_epsilon(charges[0][0].noise_multiplier, delta)
    if _wide(charges):
        # a mixture of a pair with itself and of a pair at distance 2 is at most the latter: no gain from sampling
        return gaussian_epsilon(1 / math.sqrt(sum(n * _shift(event) ** 2 for event, n in charges)), delta)
    return _convolved(charges, delta, coarse)


def _wide(charges: Sequence[EventCount]) -> bool:
    """Whether the losses range too far to be discretised."""
    return sum(_width(*charge) for charge in charges) > _WIDEST


def _shift(event: Event) -> float:
    """How far apart the means of a Gaussian or unsampled DP-SGD event's pair are, in standard deviations."""
    assert isinstance(event, DPSGDEvent | GaussianEvent)
    return (2 if isinstance(event, DPSGDEvent) else 1) / event.noise_multiplier


def _left(charges: Iterable[EventCount], delta: float) -> float | None:
    """What the approximate events leave of delta; None if it does not cover them."""
    left = math.fsum([delta, *(-count * e.delta for e, count in charges if isinstance(e, ApproximateEvent))])
    if left < -1e-12 * delta:  # below this it is the rounding of shares such as delta / 3
        return None
    return max(left, 0.0)


def _alone(charge: EventCount, share: float) -> float:
    """Epsilon of one charge, its repetitions composed, at a share of delta."""
    event, count = charge
    if isinstance(event, PureEvent | ApproximateEvent):
        return count * event.epsilon
    return _compose(_merge([charge]), share)


@lru_cache(maxsize=4096)
def _convolved(charges: tuple[EventCount, ...], delta: float, coarse: float) -> float:
    """Epsilon by convolution of discretised privacy loss distributions; coarser is faster and larger."""
    total = _total_loss(charges, coarse)
    lost = _lost(total)
    return float(total.get_epsilon_for_delta(delta - lost)) if delta > lost else math.inf


def _total_loss(charges: tuple[EventCount, ...], coarse: float) -> Any:
    """Discretised privacy loss distribution of all charges."""
    interval = coarse * _interval(charges)
    return reduce(lambda total, loss: total.compose(loss), (_loss(event, n, interval) for event, n in charges))


def _lost(total: Any) -> float:
    """Mass that rounding lost; it is taken to be at an infinite loss."""
    return max(0.0, 1 - float(total.get_delta_for_epsilon(-_LARGEST_LOSS * 100))) + _NUMERICAL_DELTA


@lru_cache(maxsize=16)
def _loss(event: Event, count: int, interval: float) -> Any:
    """Privacy loss distribution of an event that happened ``count`` times; the same in both directions."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    if isinstance(event, BoundedRangeEvent):
        # losses lie in [-eta, eta]: a grid that covers them, between whose points the curve is drawn from above
        ends = math.ceil(event.epsilon / interval)
        deltas = logistic_curve(event.epsilon, interval * np.arange(-ends, ends + 1))
        once = pld.PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -ends, ends, deltas)
        )
    elif isinstance(event, PureEvent | ApproximateEvent):
        bounds = DifferentialPrivacyParameters(event.epsilon, getattr(event, "delta", 0.0))
        once = pld.from_privacy_parameters(bounds, value_discretization_interval=interval)
    else:
        # in replace-one mode the library takes the deviation per clip norm, which is half a sensitivity
        assert isinstance(event, DPSGDEvent | GaussianEvent)
        dp_sgd = isinstance(event, DPSGDEvent)
        once = pld.from_gaussian_mechanism(
            event.noise_multiplier * (1 if dp_sgd else 2),
            sampling_prob=getattr(event, "sampling_rate", 1.0),
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    return once if count == 1 else once.self_compose(count)


def _interval(charges: Sequence[EventCount]) -> float:
    """Discretisation that keeps epsilon's excess near 1e-4 of it, within ``_MOST_BINS`` bins."""
    # the excess is near 0.09 (interval / loss per step)^2 where the losses of many steps add up
    finest = min((0.03 * _step(event) for event, count in charges if count > 1), default=_INTERVAL)
    return max(min(_INTERVAL, finest), sum(_width(*charge) for charge in charges) / _MOST_BINS)


def _step(event: Event) -> float:
    """Typical privacy loss of one event."""
    if isinstance(event, DPSGDEvent):
        return 2 * event.sampling_rate / event.noise_multiplier
    return event.epsilon if isinstance(event, PureEvent | ApproximateEvent) else math.inf


def _width(event: Event, count: int) -> float:
    """Rough width of the range of losses; an error costs time, not safety."""
    if isinstance(event, PureEvent | ApproximateEvent):
        return 2 * event.epsilon * min(count, 9 * math.sqrt(count))
    if isinstance(event, GaussianEvent):
        return 20 / event.noise_multiplier
    assert isinstance(event, DPSGDEvent)
    sigma, many = event.noise_multiplier, _step(event) * math.sqrt(count)
    return 24 / sigma + 1 / sigma**2 + 16 * many + many**2 / 2


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
