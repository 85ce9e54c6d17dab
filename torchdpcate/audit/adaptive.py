"""The ledger under attack by an adversary who chooses each charge after seeing the outputs before it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq

from torchdpcate.audit.attack import AuditResult, Terms, play
from torchdpcate.errors import BudgetError
from torchdpcate.privacy.accounting import privacy_curve
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import ApproximateEvent, Event, GaussianEvent, PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.worst_case import WorstCase, worst_case

_FILTERS = ("sums", "gaussian")
_POINTS, _REACH = 20_001, 10.0  # of the first loss, and its reach in standard deviations
_SLACK = 1e-5  # by which delta must be exceeded, relative: above what the points of the first loss round off
_SMALL = 0.03  # of the block's epsilon: one of many small charges
_EVERY = 6  # of them, a last charge of another kind is thought of
_HALVINGS = 24  # of the search for the largest charge that is accepted

Delta = Callable[[float], float]
"""epsilon -> the delta of a strategy at it, exact but for quadrature."""


@dataclass(frozen=True, eq=False)
class AdaptiveGame:
    """A block whose budget an adversary spends adaptively, as far as the ledger accepts; its delta is computed.

    Attributes:
        budget: Of the block.
        strategies: Each (budget, filter) -> its delta.
    """

    budget: PrivacyBudget
    strategies: tuple[Callable[[PrivacyBudget, str], Delta], ...]


def choose_by_first_loss(budget: PrivacyBudget, filter: str) -> Delta:
    r"""Half of the budget for a Gaussian output; by its loss the last charge, of four kinds, or none.

    .. math:: \delta(\epsilon) = E_{L \sim N(\mu^2/2, \mu^2)}\big[\max_b \delta_b(\epsilon - L)\big]

    Args:
        budget: Of the block.
        filter: Of the ledger.
    """
    first = GaussianEvent(analytic_gaussian_sigma(budget.epsilon / 2, budget.delta / 2))
    mu = 1 / first.noise_multiplier
    z = np.linspace(-_REACH, _REACH, _POINTS)
    weights = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    losses, last = mu**2 / 2 + mu * z, list(largest_charges(budget, filter, [first]))
    return lambda epsilon: float(weights @ _best(last, epsilon - losses))


def stop_by_loss(budget: PrivacyBudget, filter: str) -> Delta:
    r"""Many small pure charges, ended where it pays most, with a last charge of another kind.

    A small one is randomised response, so the loss after k of them is :math:`j \epsilon_0`, j in -k, -k + 2, ..., k;
    the value of every (k, j) follows backwards.

    Args:
        budget: Of the block.
        filter: Of the ledger.
    """
    small = PureEvent(_SMALL * budget.epsilon)
    most, ledger = 0, _ledger(budget, filter, [])
    while _accepts(ledger, small):
        most += 1
    steps = sorted({*range(1, most, _EVERY), most})
    last = {k: list(largest_charges(budget, filter, [small] * k)) for k in steps}
    up = 1 / (1 + np.exp(-small.epsilon))

    def delta(epsilon: float) -> float:
        value = np.zeros(0)
        for k in range(most, -1, -1):
            stop = _best(last.get(k, []), epsilon - small.epsilon * np.arange(-k, k + 1, 2))
            value = np.maximum(stop, [up * b + (1 - up) * a for a, b in pairwise(value)]) if len(value) else stop
        return float(value[0])

    return delta


def largest_charges(budget: PrivacyBudget, filter: str, before: list[Event]) -> Iterator[Event]:
    """Yield the largest charge of every kind that a ledger accepts after the given ones."""
    epsilon, delta = budget.epsilon, budget.delta
    kinds: tuple[Callable[[float], Event], ...] = (
        lambda share: GaussianEvent(analytic_gaussian_sigma(share * epsilon, delta)),
        lambda share: PureEvent(share * epsilon),
        lambda share: ApproximateEvent(1e-3 * epsilon, share * delta),
        lambda share: ApproximateEvent(0.3 * epsilon, share * delta),
    )
    for kind in kinds:
        low, high, ledger = 0.0, 1.0, _ledger(budget, filter, before)
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            if _accepts(ledger, kind(share)):
                low, ledger = share, _ledger(budget, filter, before)
            else:
                high = share
        if low:
            yield kind(low)


@play.register
def _(game: AdaptiveGame, case: WorstCase, terms: Terms) -> AuditResult:
    found = []
    rounds = [(strategy, filter) for strategy in game.strategies for filter in _FILTERS]
    for done, (strategy, filter) in enumerate(rounds):
        terms.progress(done, len(rounds))
        delta = strategy(game.budget, filter)
        found.append((_epsilon(delta, game.budget), delta))
    bound, delta = max(found, key=lambda pair: pair[0])
    # of the best test S at epsilon: delta = P(S) - e^epsilon Q(S), and its slope is -e^epsilon Q(S)
    step = 1e-3 * game.budget.epsilon
    scaled = (delta(bound - step) - delta(bound + step)) / (2 * step)
    return AuditResult(
        mechanism=case.name,
        attack=case.attack,
        pair=case.pair,
        level=Level.CERTIFIED.value,
        claimed=game.budget.epsilon,
        nominal=terms.budget.epsilon,
        delta=game.budget.delta,
        bound=bound,
        confidence=1.0,
        trials=0,
        false_rate=float(scaled * np.exp(-bound)),
        true_rate=float(delta(bound) + scaled),
        attacks=case.attacks,
    )


def _epsilon(delta: Delta, budget: PrivacyBudget) -> float:
    """Return the epsilon at which a strategy has the block's delta."""
    target = budget.delta * (1 + _SLACK)
    high = budget.epsilon
    if delta(0.0) <= target:
        return 0.0
    while delta(high) > target:
        high *= 2
    return float(brentq(lambda epsilon: delta(epsilon) - target, 0.0, high, xtol=1e-9))


def _best(events: list[Event], epsilons: np.ndarray) -> np.ndarray:
    """Return the largest delta at each epsilon of one more of these events, or of none."""
    none = -np.expm1(np.minimum(epsilons, 0.0))
    return np.max([none, *(privacy_curve([(event, 1)], epsilons) for event in events)], axis=0)


def _ledger(budget: PrivacyBudget, filter: str, before: list[Event]) -> Ledger:
    ledger = Ledger({"block": budget}, filter=filter)
    for event in before:
        ledger.charge("block", "before", event)
    return ledger


def _accepts(ledger: Ledger, event: Event) -> bool:
    try:
        ledger.charge("block", "next", event)
    except BudgetError:
        return False
    return True


@worst_case(
    "composition",
    Ledger,
    attack="adaptive charges",
    pair="any; randomised response and Gaussian outputs whose losses are seen before the next charge is chosen",
)
def _composition(budget: PrivacyBudget) -> AdaptiveGame:
    return AdaptiveGame(budget, (choose_by_first_loss, stop_by_loss))
