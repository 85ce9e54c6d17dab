"""Plays a distinguishing game, or an adversary who chooses charges, and turns the outcome into a bound on epsilon."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import beta, binom
from torch import Tensor

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.accounting import dp_sgd_epsilon, privacy_curve
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, Event, GaussianEvent, PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Curve, Game, Target, WorstCase, worst_case

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


_PILOT = 40_000  # runs a data set that choose the threshold and, where requested, the number of trials
_DOUBT = 0.95  # confidence at which the pilot is believed: a lucky threshold must not win
_HOPE = 0.7  # and at which the chosen threshold's rates are planned with
_SHARE = 0.25  # of a capped number of runs goes to the pilot
_THRESHOLDS = 400  # tried
_WANTED = 0.94  # of the claim, that the number of trials is chosen to reach
_POWER = 0.9  # with which it is reached
_BATCH = 100_000  # runs drawn at once
AGAIN = 4  # fresh runs that must all exceed the claim before it counts as refuted


@dataclass(frozen=True)
class AuditResult:
    """What an attack found.

    Attributes:
        mechanism: Name of the mechanism.
        attack: Kind of attack.
        pair: The neighbours, in words.
        level: Level of the claim.
        claimed: Claimed epsilon, or None where nothing is claimed.
        nominal: Epsilon that was requested, at which the noise was calibrated.
        delta: At which delta claim and bound are stated.
        bound: Lower bound on epsilon.
        confidence: Of the bound.
        trials: Runs of the mechanism counted, on D and D' together; of canaries in one run, all of them.
        false_rate: How often the attack said "D'" on D; of guesses of coins, the share of wrong ones.
        true_rate: How often it said so on D'; of guesses of coins, the share of right ones.
        attacks: What of releases was attacked.
    """

    mechanism: str
    attack: str
    pair: str
    level: str
    claimed: float | None
    nominal: float
    delta: float
    bound: float
    confidence: float
    trials: int
    false_rate: float
    true_rate: float
    attacks: tuple[Target, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether the bound exceeds what is claimed."""
        return self.claimed is not None and self.bound > self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for a file."""
        return {**asdict(self), "attacks": [target.to_dict() for target in self.attacks]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AuditResult":
        """Inverse of ``to_dict``."""
        return cls(**{**values, "attacks": tuple(Target.from_dict(target) for target in values["attacks"])})


def audit(
    case: WorstCase,
    budget: PrivacyBudget,
    *,
    confidence: float = 0.95,
    trials: int | None = None,
    noise: NoiseSource | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AuditResult:
    """Attack a mechanism on its worst-case neighbours.

    A pilot chooses the threshold of the evidence and how many runs are needed; fresh runs are counted. Where the bound
    exceeds the claim all is repeated, up to four times, and the last bound stands: an honest mechanism is refuted with
    a probability of at most (1 - confidence)^5, 3e-7 at 95 %, and the bound that is returned is wrong less often than
    1 - confidence.

    Args:
        case: The declaration.
        budget: At which the mechanism is run; a pure one leaves delta aside.
        confidence: Of the bound.
        trials: Runs on either data set; None chooses as few as reach 94 % of the claim with power 0.9, if the
            game's cap allows.
        noise: Where the mechanism's noise comes from; None takes the system's entropy.
        progress: Called with (runs done, runs in total).

    Raises:
        InputError: A number of trials or a confidence out of range.

    Example:
        >>> from torchdpcate.audit.report import registry
        >>> result = audit(registry()["laplace"], PrivacyBudget(1.0, 1e-5), trials=2_000)
        >>> 0.5 < result.bound < 1.0, result.refuted
        (True, False)
    """
    if trials is not None and trials < 100:
        raise InputError(f"trials = {trials}: give at least 100, or none to have the number chosen")
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: give a probability strictly between 0 and 1")
    game, terms = case.make(budget), Terms(budget, confidence, trials, noise or NoiseSource.system(), progress)
    result = play(game, case, terms)
    for _ in range(AGAIN):
        if not result.refuted:
            break
        result = play(game, case, terms)
    return result


@dataclass(frozen=True)
class Terms:
    """On what terms a game is played; see ``audit``."""

    budget: PrivacyBudget
    confidence: float
    trials: int | None
    noise: NoiseSource
    progress: Callable[[int, int], None]

    def result(self, case: WorstCase, **found: Any) -> AuditResult:
        """Return what was found of a case."""
        nominal = self.budget.epsilon
        return AuditResult(case.name, case.attack, case.pair, nominal=nominal, attacks=case.attacks, **found)


@singledispatch
def play(game: Any, case: WorstCase, terms: Terms) -> AuditResult:
    """Play a game once and return its bound; a new kind of game registers here."""
    raise TypeError(f"{case.name}: no audit plays a {type(game).__name__}")


@play.register
def _(game: Game, case: WorstCase, terms: Terms) -> AuditResult:
    claim = game.guarantee.budget if game.guarantee.holds_claim else None
    delta = terms.budget.delta if claim is None else claim.delta
    most = terms.trials or game.most_runs
    pilot = min(_PILOT, max(int(most * _SHARE), 50))
    terms.progress(0, pilot)
    outputs = [_draw(game, dataset, pilot, terms.noise) for dataset in (0, 1)]
    scores = [game.evidence(part) for part in outputs]
    threshold, rates = _threshold(game, scores, most, terms.confidence, delta)
    trials = terms.trials or _enough(game, rates, most, terms.confidence, delta, terms.budget.epsilon)
    hits = [0, 0]
    for dataset in (0, 1):
        for start in range(0, trials, _BATCH):
            runs = min(_BATCH, trials - start)
            hits[dataset] += int((game.evidence(_draw(game, dataset, runs, terms.noise)) >= threshold).sum())
            terms.progress(dataset * trials + start + runs, 2 * trials)
    return terms.result(
        case,
        level=game.guarantee.level.value,
        claimed=None if claim is None else claim.epsilon,
        delta=delta,
        bound=_bound(game, delta, Rates.of(hits[0], hits[1], trials, terms.confidence)),
        confidence=terms.confidence,
        trials=2 * trials,
        false_rate=hits[0] / trials,
        true_rate=hits[1] / trials,
    )


def _bound(game: Game, delta: float, rates: Rates) -> float:
    if game.curve is not None:
        return curve_bound(game.curve, delta, rates)
    return epsilon_bound(game.event, game.count, delta, rates)


def _draw(game: Game, dataset: int, runs: int, noise: NoiseSource) -> Tensor:
    return game.draw(dataset, runs, noise).reshape(runs, -1)


def _threshold(game: Game, scores: list[Tensor], trials: int, confidence: float, delta: float) -> tuple[float, Rates]:
    """Return the threshold of the best bound that so many trials may give, and what the pilot says of its rates."""
    n = len(scores[0])
    pooled = torch.cat(scores).sort().values
    candidates = pooled[torch.linspace(0, len(pooled) - 1, _THRESHOLDS).long()].unique()
    false, true = (n - torch.searchsorted(s.sort().values, candidates).numpy() for s in scores)
    seen = Rates.of(false, true, n, _DOUBT)
    planned = Rates.of(seen.false_high * trials, seen.true_low * trials, trials, confidence)
    best = int(np.argmax(_quick(game, planned, delta)))
    return float(candidates[best]), Rates.of(false[best], true[best], n, _HOPE)


def _quick(game: Game, rates: Rates, delta: float) -> np.ndarray:
    """Bounds that order thresholds as ``_bound`` does, for many at once."""
    if game.curve is not None:
        return best_factors(game.curve, rates)
    if isinstance(game.event, PureEvent | ApproximateEvent):
        return pure_bound(rates, delta if isinstance(game.event, ApproximateEvent) else 0.0)
    return gaussian_bound(rates)


def _enough(game: Game, rates: Rates, most: int, confidence: float, delta: float, epsilon: float) -> int:
    """Return the fewest runs that reach the wanted share of the claim, or of what the cap can reach."""
    margin = (1 + _POWER) / 2  # either count may be unlucky

    def reached(size: int) -> float:
        false, true = binom.ppf(margin, size, rates.false_high), binom.ppf(1 - margin, size, rates.true_low)
        return _reached(game, Rates.of(false, true, size, confidence), delta)

    sizes = np.unique(np.geomspace(min(1_000, most), most, 40).astype(int)).tolist()
    wanted = _WANTED * min(epsilon, reached(most))
    if wanted == 0:
        return most
    return next((size for size in sizes if reached(size) >= wanted), most)


def _reached(game: Game, rates: Rates, delta: float) -> float:
    """Epsilon that the rates would refute; a DP-SGD run is taken for one Gaussian, for it is only to plan with."""
    if not isinstance(game.event, DPSGDEvent):
        return _bound(game, delta, rates)
    mu = float(gaussian_bound(rates))
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


_FILTERS = ("sums", "gaussian")
_POINTS, _DEVIATIONS = 20_001, 10.0  # of the first loss, and its range in standard deviations
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
    z = np.linspace(-_DEVIATIONS, _DEVIATIONS, _POINTS)
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
    return terms.result(
        case,
        level=Level.CERTIFIED.value,
        claimed=game.budget.epsilon,
        delta=game.budget.delta,
        bound=bound,
        confidence=1.0,
        trials=0,
        false_rate=float(scaled * np.exp(-bound)),
        true_rate=float(delta(bound) + scaled),
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
