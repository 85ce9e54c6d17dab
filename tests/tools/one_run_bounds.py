r"""From the right guesses of one run to a lower bound on epsilon.

A public list of pairs of records :math:`(z_i^+, z_i^-)`, i = 1..m, and m fair secret coins
:math:`s_i \in \{-1, +1\}`: the data set holds :math:`z_i^{s_i}` in place i. The mechanism runs once, the auditor looks
at its output and guesses r of the coins. Of those, v are right.

**Why it fits replace-one adjacency.** Steinke et al. state their theorem for a map from coins to outputs that is
private when one coin is turned over; there a coin says whether record i is in the data. Here it says which of two
records is in place i. Turning coin i over replaces one record and leaves n alone, so a mechanism with a replace-one
guarantee, composed with :math:`s \mapsto D_s`, is such a map at the same (epsilon, delta), or the same trade-off
function, and nothing else about the data enters the proof. No conversion and no factor of two is needed.

**Abstention.** r is fixed before the run, by the auditor's plan. Which r coins are guessed, and how, may depend on the
output in any way, for that is post-processing; the truth of a guess enters v alone. Nothing is chosen by v, so there
is nothing to correct for.

Sources: Steinke, Nasr & Jagielski (2023), theorem 5.2; Mahloujifar, Melis & Chaudhuri (2024).
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import privacy_curve
from torchdpcate.privacy.events import DPSGDEvent

TradeOff = Callable[[float], float]
"""The least type II error a test of D against D' can have at a type I error; the same with D and D' swapped."""

_FINEST = 2.0**-12  # a smaller parameter of a family counts as nothing refuted
_COARSEST = 2.0**12
_TOLERANCE = 1e-4  # relative, of the parameter found; on the safe side
_COARSEST_CURVE = (
    64.0  # of the accountant's discretisation: safe at any value; this one moves a bound by less than 1e-4 of itself
)
_CURVE = np.concatenate([[0.0], np.geomspace(1e-3, 80.0, 600)])


def best_guesses(scores: Tensor, truth: Tensor, guesses: int) -> Tensor:
    """Guess the coins with the largest scores in magnitude, each by its score's sign; count what is right.

    Args:
        scores: Evidence for +1 against -1, [..., m], centred on 0 like a log-likelihood ratio.
        truth: The coins, -1 or +1, [..., m].
        guesses: Number r of guesses, fixed before the run.

    Returns:
        Number of right guesses, [...].

    Raises:
        InputError: More guesses than canaries, none, or a score that is not finite.

    Example:
        >>> import torch
        >>> int(best_guesses(torch.tensor([3.0, -2.0, 0.1]), torch.tensor([1, -1, -1]), guesses=2))
        2
    """
    if not 1 <= guesses <= scores.shape[-1]:
        raise InputError(f"guesses = {guesses}: give between 1 and the {scores.shape[-1]} canaries")
    if not bool(scores.isfinite().all()):
        raise InputError("scores hold a value that is not finite; nothing can be guessed from it")
    chosen = scores.abs().topk(guesses, dim=-1).indices
    return ((scores >= 0) == (truth > 0)).gather(-1, chosen).sum(-1)


def one_run_epsilon(guesses: int, correct: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    r"""Largest epsilon that one run refutes at ``delta``, whatever the mechanism; 0 if none.

    With :math:`W \sim \mathrm{Bin}(r, e^\epsilon / (1 + e^\epsilon))`, (epsilon, delta) privacy implies

    .. math:: P[V \ge v] \le P[W \ge v] + 2 m \delta \max_{1 \le i \le v} \tfrac{1}{i} P[v > W \ge v - i].

    Args:
        guesses: Number r of guesses, fixed before the run.
        correct: Number v of right ones.
        canaries: Number m of coins.
        delta: In [0, 1).
        confidence: The bound exceeds the truth with probability at most 1 - confidence.

    Raises:
        InputError: A number out of its range.

    Example:
        >>> round(one_run_epsilon(guesses=1000, correct=950, canaries=1000, delta=1e-5), 4)
        2.7008
    """
    check_counts(guesses, correct, canaries, confidence)
    if not 0 <= delta < 1:
        raise InputError(f"delta = {delta}: give a number in [0, 1)")

    def excess(epsilon: float) -> float:
        return _p_value(guesses, correct, canaries, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    upper = 1.0
    while excess(upper) < 0:
        upper *= 2
    return max(0.0, float(brentq(excess, 0.0, upper, xtol=1e-12)) - 1e-9)


def _p_value(guesses: int, correct: int, canaries: int, epsilon: float, delta: float) -> float:
    """The right-hand side of the theorem, by the number of wrong guesses: exact also where e^-epsilon is tiny."""
    wrong, rate = guesses - correct, expit(-epsilon)
    beyond = np.exp(binom.logpmf(np.arange(wrong + 1, guesses + 1), guesses, rate)).cumsum()
    slack = np.max(beyond / np.arange(1, correct + 1), initial=0.0)
    return float(binom.cdf(wrong, guesses, rate) + 2 * canaries * delta * slack)


def one_run_refutes(guesses: int, correct: int, canaries: int, trade_off: TradeOff, confidence: float = 0.95) -> bool:
    r"""Whether a mechanism with this trade-off has so many right guesses only with probability below 1 - confidence.

    Let V be the number of right guesses, :math:`p_j = P[V = j]`, and

    .. math:: R_i = \sum_{j \ge i} \tfrac{j}{m} p_j, \qquad H_i = \sum_{j \ge i} \tfrac{r - j}{m} p_j .

    :math:`R_i` is the chance that a coin chosen at random is guessed right and V >= i; :math:`H_{i-1}` that it is
    guessed wrong and V >= i - 1. Given the other coins both are the probability of one event, "coin u is guessed and
    at least i - 1 others are right", under either face of u. So, f being convex and symmetric,
    :math:`H_{i-1} \ge f(1 - R_i)`. Were :math:`P[V \ge v] \ge \alpha`, the smallest :math:`H_i` allowed, from
    all of alpha at v downwards, would have to end at :math:`R_0 + H_0 \le r / m`; if it does not, alpha is refuted.

    The bound allows for mechanisms that betray all coins together, rarely; that is why it stays below the truth
    for a mechanism that does not, however many canaries there are.

    Args:
        guesses: Number r of guesses, fixed before the run.
        correct: Number v of right ones.
        canaries: Number m of coins.
        trade_off: The claimed f, for replace-one: convex, decreasing, and its own inverse.
        confidence: A mechanism that has f is refuted with probability at most 1 - confidence.

    Raises:
        InputError: A number out of its range.

    Example:
        >>> [one_run_refutes(1000, correct, 1000, gaussian_trade_off(1.0)) for correct in (900, 950)]
        [False, True]
    """
    check_counts(guesses, correct, canaries, confidence)
    return _surplus(guesses, correct, canaries, trade_off, confidence) > 0


def _surplus(guesses: int, correct: int, canaries: int, trade_off: TradeOff, confidence: float) -> float:
    """By how much the least probability that the trade-off needs exceeds 1, as a share of the canaries."""
    right, wrong = (1 - confidence) * correct / canaries, (1 - confidence) * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        needed = trade_off(1 - right)
        if needed <= wrong:  # nothing below changes any more
            break
        right = min(right + i / (guesses - i) * (needed - wrong), 1.0)
        wrong = needed
    return right + wrong - guesses / canaries


def one_run_fdp(
    guesses: int,
    correct: int,
    canaries: int,
    family: Callable[[float], TradeOff],
    confidence: float = 0.95,
) -> float:
    """Largest parameter of a family of trade-off functions that one run refutes; 0 if it refutes none.

    Args:
        guesses: Number r of guesses, fixed before the run.
        correct: Number v of right ones.
        canaries: Number m of coins.
        family: From a positive parameter to a trade-off function, less private as the parameter grows; 1 should be
            of the order of what is claimed.
        confidence: The bound exceeds the truth with probability at most 1 - confidence, if the family holds it.

    Raises:
        InputError: A number out of its range.

    Example:
        >>> round(one_run_fdp(1000, 950, 1000, gaussian_trade_off), 4)
        1.1371
    """
    check_counts(guesses, correct, canaries, confidence)

    def surplus(log_parameter: float) -> float:
        return _surplus(guesses, correct, canaries, family(math.exp(log_parameter)), confidence)

    lower = upper = 0.0
    while surplus(upper) > 0 and upper < math.log(_COARSEST):
        lower, upper = upper, upper + math.log(2)
    while surplus(lower) <= 0:
        if lower < math.log(_FINEST):
            return 0.0
        lower, upper = lower - math.log(2), lower
    return math.exp(float(brentq(surplus, lower, upper, xtol=_TOLERANCE)) - 2 * _TOLERANCE)


def gaussian_trade_off(mu: float) -> TradeOff:
    r"""Trade-off of a unit Gaussian against its shift by mu: :math:`\Phi(\Phi^{-1}(1 - \alpha) - \mu)`.

    Source: Dong, Roth & Su (2022), definition 6.

    Example:
        >>> round(gaussian_trade_off(1.0)(0.05), 6)
        0.740489
    """
    return lambda alpha: float(ndtr(-ndtri(alpha) - mu))


def dp_sgd_trade_off(noise_multiplier: float, sampling_rate: float, steps: int) -> TradeOff:
    r"""Trade-off of DP-SGD with Poisson sampling, replace-one, from the accountant's curve delta(epsilon).

    .. math:: f(\alpha) = \max_{\epsilon \ge 0} \max\{1 - \delta(\epsilon) - e^\epsilon \alpha,
              e^{-\epsilon} (1 - \delta(\epsilon) - \alpha), 0\}

    Over a grid of epsilon and with delta(epsilon) bounded from above, so f is a lower bound and what it
    refutes is refuted.

    Args:
        noise_multiplier: sigma, noise standard deviation over clip norm.
        sampling_rate: q in (0, 1].
        steps: Number of steps.

    Source: Dong, Roth & Su (2022), proposition 6.
    """
    deltas = privacy_curve([(DPSGDEvent(noise_multiplier, sampling_rate), steps)], _CURVE, _COARSEST_CURVE)
    growth = np.exp(_CURVE)
    heights, slopes = np.r_[1 - deltas, (1 - deltas) / growth], np.r_[growth, 1 / growth]
    return lambda alpha: max(float(np.max(heights - slopes * alpha)), 0.0)


def confidence_of_each(confidence: float, runs: int) -> float:
    r"""Confidence at which to bound the fewest right guesses of R independent runs: :math:`1 - (1 - c)^{1/R}`.

    That bound exceeds the truth only if every run has as many, with probability :math:`((1 - c)^{1/R})^R`. At a low
    confidence a rare betrayal of all coins at once need not be allowed for, so a few runs bring the bound much
    closer to the truth.

    Args:
        confidence: Wanted in all, in (0, 1).
        runs: Number R of runs with fresh coins and fresh noise.

    Example:
        >>> round(confidence_of_each(0.95, 4), 6)
        0.527129
    """
    return 1 - (1 - confidence) ** (1 / runs)


def check_counts(guesses: int, correct: int, canaries: int, confidence: float) -> None:
    """Refuse counts that cannot be, and a confidence outside (0, 1).

    Raises:
        InputError: One of them is not 0 <= correct <= guesses <= canaries, 1 <= guesses, 0 < confidence < 1.
    """
    if not (0 <= correct <= guesses <= canaries and guesses >= 1):
        raise InputError(
            f"guesses = {guesses}, of which correct = {correct}, on canaries = {canaries}: give 1 to {canaries} guesses"
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: give a probability strictly between 0 and 1")
