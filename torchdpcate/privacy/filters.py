"""Privacy filters: what may still be charged when each charge is chosen after seeing the outputs before it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import scipy

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import EventCount, compose, event_mu, naive_sum
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget, number, some_delta
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, Event, GaussianEvent, PureEvent

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


ROUNDING = 1e-12
"""Of sums of epsilons and deltas, relative, as in ``accounting``: below it are shares such as delta / 3."""
_INWARDS = 1e-9  # by which a budget made of mu is lessened, far above the rounding of its inverse
_SHARE_TOLERANCE = 1e-3  # of the share that subsampled steps take, relative; on the safe side
_NEGLIGIBLE = 1e-6  # of a block's epsilon and delta; less is not offered


class FilterCost(NamedTuple):
    """What charges count in a filter.

    Attributes:
        size: Sum of epsilons (``SumFilter``), or mu (``GaussianFilter``).
        delta: Sum of deltas.
    """

    size: float
    delta: float


class Filter(ABC):
    """A rule that says when to stop, and holds whatever the parameters of the charges depend on.

    Attributes:
        kind: The name that users and files give.
        unit: What the size of its costs is called.
    """

    kind: ClassVar[str]
    unit: ClassVar[str]

    @abstractmethod
    def reserve(self, fixed: Sequence[EventCount], budget: PrivacyBudget) -> FilterCost | None:
        """Return what all later charges of a block may come to beside its fixed ones; None if nothing."""

    @abstractmethod
    def cost(self, event: Event, count: int, left: FilterCost) -> FilterCost | None:
        """Return what a charge counts, chosen so that it fits into what is left; None if there is no such number."""

    @abstractmethod
    def total(self, costs: Sequence[FilterCost]) -> FilterCost:
        """Return what charges come to together."""

    @abstractmethod
    def left(self, reserve: FilterCost, costs: Sequence[FilterCost]) -> FilterCost | None:
        """Return what is left of a reserve, of which ``fits`` is true; None if nothing is."""

    @abstractmethod
    def budget(self, left: FilterCost, block: PrivacyBudget, gaussian: bool) -> PrivacyBudget | None:
        """Return (epsilon, delta) of which every event fits, or every Gaussian one; None if next to nothing."""

    @abstractmethod
    def events(self, cost: FilterCost) -> tuple[list[EventCount], float]:
        """Return events, and a delta beside them, that dominate all charges of this cost together."""

    @abstractmethod
    def covers(self, cost: FilterCost, event: Event, count: int) -> bool:
        """Whether a stated cost is at least the event's, to a relative 1e-9."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return what ``filter_from`` takes."""

    def takes(self, event: Event) -> bool:
        """Whether a block with this filter may have such an event at all, before any output too."""
        return True

    def fits(self, reserve: FilterCost, costs: Sequence[FilterCost]) -> bool:
        """Whether charges stay within a reserve, but for the rounding of shares such as 1 / 40."""
        total = self.total(costs)
        return all(used <= free * (1 + ROUNDING) for used, free in zip(total, reserve, strict=True))

    def compose(self, fixed: Sequence[EventCount], costs: Sequence[FilterCost], delta: float) -> float:
        """Return the epsilon of fixed charges and later ones of these costs at ``delta``; infinite if none holds."""
        if not costs:
            return compose(fixed, delta)
        later, spent = self.events(self.total(costs))
        if spent > delta * (1 + ROUNDING):
            return math.inf
        return compose([*fixed, *later], max(delta - spent, 0.0))

    def naive(self, fixed: Sequence[EventCount], costs: Sequence[FilterCost], delta: float) -> float:
        """Return ``naive_sum`` of the fixed charges and of what each later one counts."""
        parts = [self.events(cost) for cost in costs]
        rest = delta - math.fsum(spent for _, spent in parts)
        return naive_sum([*fixed, *(charge for later, _ in parts for charge in later)], max(rest, 0.0)).epsilon

    def cost_to_dict(self, cost: FilterCost) -> dict[str, float]:
        """Plain dictionary of a cost."""
        return {self.unit: cost.size, "delta": cost.delta}


@dataclass(frozen=True)
class SumFilter(Filter):
    r"""Epsilons and deltas add up: :math:`\sum \epsilon_i \le \epsilon_r,\ \sum \delta_i \le \delta_r`.

    If each charge is chosen by the outputs before it, all of them together are :math:`(\epsilon_r, \delta_r)`-private
    (Rogers et al. 2016; docs/guarantees/composition.md). A Gaussian charge counts with the delta that takes the same
    share of both.
    """

    kind: ClassVar[str] = "sums"
    unit: ClassVar[str] = "epsilon"

    def reserve(self, fixed: Sequence[EventCount], budget: PrivacyBudget) -> FilterCost | None:
        """See ``Filter.reserve``: the budget that ``largest_remaining`` finds."""
        return _sum_reserve(tuple(fixed), budget)

    def cost(self, event: Event, count: int, left: FilterCost) -> FilterCost | None:
        if isinstance(event, PureEvent | ApproximateEvent):
            return FilterCost(count * event.epsilon, count * getattr(event, "delta", 0.0))
        if left.delta < LEAST_DELTA or not left.size > 0:
            return None
        charge = [(event, count)]
        alone = compose(charge, left.delta)
        if alone > left.size:
            return FilterCost(alone, left.delta) if math.isfinite(alone) else None
        fine = _is_gaussian(event)
        low, high = 0.0, 1.0
        while high - low > (_INWARDS if fine else _SHARE_TOLERANCE) * high and high > _NEGLIGIBLE:
            share = (low + high) / 2
            enough = compose(charge, share * left.delta) <= share * left.size
            low, high = (low, share) if enough else (share, high)
        return FilterCost(high * left.size, max(high * left.delta, LEAST_DELTA))

    def total(self, costs: Sequence[FilterCost]) -> FilterCost:
        return FilterCost(math.fsum(c.size for c in costs), math.fsum(c.delta for c in costs))

    def left(self, reserve: FilterCost, costs: Sequence[FilterCost]) -> FilterCost | None:
        total = self.total(costs)
        size, delta = reserve.size - total.size, max(reserve.delta - total.delta, 0.0)
        if total.delta > reserve.delta * (1 + ROUNDING):
            return None
        while size > 0 and math.fsum([*(c.size for c in costs), size]) > reserve.size:
            size = math.nextafter(size, 0.0)
        return FilterCost(size, delta) if size > 0 else None

    def budget(self, left: FilterCost, block: PrivacyBudget, gaussian: bool) -> PrivacyBudget | None:
        delta = left.delta if left.delta >= max(_NEGLIGIBLE * block.delta, LEAST_DELTA) else 0.0
        return PrivacyBudget(left.size, delta) if delta or not gaussian else None

    def events(self, cost: FilterCost) -> tuple[list[EventCount], float]:
        return [(ApproximateEvent(*cost) if cost.delta > 0 else PureEvent(cost.size), 1)], 0.0

    def covers(self, cost: FilterCost, event: Event, count: int) -> bool:
        return compose([(event, count)], cost.delta * (1 + ROUNDING)) <= cost.size * (1 + _INWARDS)

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class GaussianFilter(Filter):
    r"""Squares of mu add up: :math:`\sum \mu_i^2 \le M^2`; it takes Gaussian and pure events alone.

    Fully adaptive composition of Gaussian differential privacy (Smith & Thakurta 2022; Koskela, Tobaben & Honkela
    2023; docs/guarantees/composition.md): all charges together are dominated by one Gaussian mechanism of multiplier
    1/M. A pure event counts :math:`\mu = -2\Phi^{-1}(1/(1 + e^\epsilon))`.

    Attributes:
        alone: Whether the block may have nothing but Gaussian events, those before any output included: then all of
            it is mu-GDP, with the mu at which a Gaussian mechanism costs the block's budget.

    Raises:
        InputError: ``alone`` is no truth value.
    """

    alone: bool = False
    kind: ClassVar[str] = "gaussian"
    unit: ClassVar[str] = "mu"

    def __post_init__(self) -> None:
        if not isinstance(self.alone, bool):
            raise InputError(f"alone = {self.alone}: no truth value")

    def takes(self, event: Event) -> bool:
        return not self.alone or _is_gaussian(event)

    def reserve(self, fixed: Sequence[EventCount], budget: PrivacyBudget) -> FilterCost | None:
        r"""See ``Filter.reserve``: the largest M of which a Gaussian of multiplier 1/M fits."""
        return None if budget.delta < LEAST_DELTA else _gaussian_reserve(tuple(fixed), budget)

    def cost(self, event: Event, count: int, left: FilterCost) -> FilterCost | None:
        if isinstance(event, DPSGDEvent) and event.sampling_rate < 1:
            return None
        return FilterCost(math.sqrt(count) * event_mu(event), count * getattr(event, "delta", 0.0))

    def total(self, costs: Sequence[FilterCost]) -> FilterCost:
        return FilterCost(math.sqrt(math.fsum(c.size**2 for c in costs)), math.fsum(c.delta for c in costs))

    def left(self, reserve: FilterCost, costs: Sequence[FilterCost]) -> FilterCost | None:
        total = self.total(costs)
        if total.delta > reserve.delta * (1 + ROUNDING):
            return None
        free = math.fsum([reserve.size**2, *(-(c.size**2) for c in costs)])
        size = math.sqrt(free) * (1 - _INWARDS) if free > _INWARDS * reserve.size**2 else 0.0
        return FilterCost(size, max(reserve.delta - total.delta, 0.0)) if size else None

    def budget(self, left: FilterCost, block: PrivacyBudget, gaussian: bool) -> PrivacyBudget | None:
        multiplier = (1 + _INWARDS) / left.size
        if gaussian:
            epsilon, delta = gaussian_epsilon(multiplier, block.delta), block.delta
        else:
            above, below = (float(scipy.special.log_ndtr(sign * left.size / 2)) for sign in (1, -1))
            epsilon, delta = (above - below) * (1 - _INWARDS), 0.0
        return PrivacyBudget(epsilon, delta) if epsilon > _NEGLIGIBLE * block.epsilon else None

    def events(self, cost: FilterCost) -> tuple[list[EventCount], float]:
        return [(GaussianEvent(1 / cost.size), 1)], cost.delta

    def covers(self, cost: FilterCost, event: Event, count: int) -> bool:
        least = self.cost(event, count, cost)
        return least is not None and all(own <= given * (1 + _INWARDS) for own, given in zip(least, cost, strict=True))

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, **({"alone": True} if self.alone else {})}


FILTERS: dict[str, type[SumFilter] | type[GaussianFilter]] = {leaf.kind: leaf for leaf in (SumFilter, GaussianFilter)}
"""Filters by name."""


def make_filter(filter: "str | Filter") -> Filter:
    """Return a filter by its name.

    Raises:
        InputError: There is none of this name.

    Example:
        >>> make_filter("gaussian")
        GaussianFilter(alone=False)
    """
    if isinstance(filter, Filter):
        return filter
    if filter not in FILTERS:
        raise InputError(f"filter = {filter!r}: choose from {', '.join(FILTERS)}")
    return FILTERS[filter]()


def filter_from(values: Mapping[str, Any]) -> Filter:
    """Inverse of ``Filter.config``.

    Raises:
        InputError: The kind is unknown, or a field missing or superfluous.
    """
    try:
        fields = dict(values)
        return FILTERS[fields.pop("kind")](**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"filter = {values!r}: not a filter ({error}); kinds are {', '.join(FILTERS)}") from error


def cost_from(values: Mapping[str, Any]) -> tuple[Filter, FilterCost]:
    """Return the filter and the cost that a dictionary of ``Filter.cost_to_dict`` states.

    Raises:
        InputError: It is none.

    Example:
        >>> cost_from({"epsilon": 0.5, "delta": 0.0})
        (SumFilter(), FilterCost(size=0.5, delta=0.0))
    """
    for leaf in FILTERS.values():
        if isinstance(values, Mapping) and values.keys() == {leaf.unit, "delta"}:
            size, delta = number(leaf.unit, values[leaf.unit]), some_delta("delta", values["delta"])
            if size > 0:
                return leaf(), FilterCost(size, delta)
    raise InputError(f"cost = {values!r}: give delta and a positive {' or '.join(c.unit for c in FILTERS.values())}")


def stated_cost(
    charges: Sequence[tuple[Event, int, "tuple[Filter, FilterCost] | None"]], delta: float
) -> tuple[float, float]:
    """Return epsilon at ``delta``, composed and by ``naive_sum``, of the charges of one block of a privacy statement.

    Args:
        charges: Event, count, and, if it passed a filter, that filter and what it counts there.
        delta: The block's.

    Raises:
        InputError: Not an event, costs of two filters, or a cost that is less than its event's.

    Example:
        >>> stated_cost([(PureEvent(0.5), 2, None)], 0.0)
        (1.0, 1.0)
    """
    fixed: list[EventCount] = []
    costs: list[FilterCost] = []
    rule: Filter = SumFilter()
    for event, count, later in charges:
        if later is None:
            fixed.append((event, count))
            continue
        own, cost = later
        if costs and own.kind != rule.kind:
            raise InputError("charges of one block count in two filters")
        if not own.covers(cost, event, count):
            raise InputError(f"{count} x {event} counts less than it costs")
        rule = own
        costs.append(cost)
    return rule.compose(fixed, costs, delta), rule.naive(fixed, costs, delta)


def _is_gaussian(event: Event) -> bool:
    """Return whether an event is a Gaussian mechanism without subsampling."""
    return isinstance(event, GaussianEvent) or (isinstance(event, DPSGDEvent) and event.sampling_rate == 1)


@lru_cache(maxsize=1024)
def _sum_reserve(fixed: tuple[EventCount, ...], budget: PrivacyBudget) -> FilterCost | None:
    left = largest_remaining(list(fixed), budget)
    return None if left is None else FilterCost(left.epsilon, left.delta)


@lru_cache(maxsize=1024)
def _gaussian_reserve(fixed: tuple[EventCount, ...], budget: PrivacyBudget) -> FilterCost | None:
    epsilon, delta = budget.epsilon, budget.delta
    if all(_is_gaussian(event) for event, _ in fixed):
        total = analytic_gaussian_sigma(epsilon, delta) ** -2
        free = math.fsum([total, *(-n * event_mu(e) ** 2 for e, n in fixed)])
        return FilterCost(math.sqrt(free), 0.0) if free > _NEGLIGIBLE**2 * total else None
    left = largest_remaining(list(fixed), budget, gaussian=True)
    return None if left is None else FilterCost(1 / analytic_gaussian_sigma(left.epsilon, left.delta), 0.0)
