"""Estimate, interval and noise of a released average effect, computed anew from its numbers and public facts."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torchdpcate.causal.efficient_score import ScoreRanges
from torchdpcate.causal.estimand import ATE, Estimand
from torchdpcate.estimators.recompute import CLOSE, compared, same
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import AdditiveMechanism, LaplaceMechanism
from torchdpcate.privacy.root_polytope import RootPolytopeMechanism
from torchdpcate.release.interval_law import IntervalLaw
from torchdpcate.verify.average_facts import AverageFacts

TABLE = ("treated_high", "treated_low", "control_high", "control_low")
"""Cells of the outcome table: T_11, T_10, T_01, T_00."""
SCALES = 3.0
"""A denominator below this many scales of its noise is swamped by it."""
UPPER = math.log(5)
"""One-sided 90 % quantile of Laplace noise, in its scale."""
EQUAL = ATE(0.5)
"""All records weigh the same."""

_ANOTHER = "its estimate does not follow from its numbers"
_OTHER_LAW = "its interval does not follow from its numbers"


@dataclass(frozen=True)
class _Law:
    """What an estimate and the law of its error must be, for outcomes in [0, 1].

    Attributes:
        effect: The estimate.
        swamped: Whether noise swamps a denominator.
        least: Least Gaussian deviation that its numbers allow.
        most: Largest.
        laplace: Scales of the Laplace parts.
        polytope: Factors of the root-polytope noise.
    """

    effect: float
    swamped: bool
    least: float
    most: float
    laplace: tuple[float, ...] = ()
    polytope: tuple[float, ...] = ()


def balanced_difference(facts: AverageFacts) -> Iterator[str]:
    """Return problems of a balanced difference."""
    of, n, numbers = facts.estimand, facts.n, facts.release.numbers
    modelled = facts.release.outcome_theta is not None
    low, high = (as_number(b) for b in facts.release.privacy.public["outcome_bounds"]) if modelled else (0.5, 0.5)
    treated, control, reach = of.most_treated, of.most_control, of.largest * max(high, 1 - low)
    above, below = max(treated * (1 - low), control * high), max(treated * high, control * (1 - low))
    most_size = of.largest / 2 if of.symmetric else 1.0
    moved = {
        "difference": (above + below, reach),
        "size": ((of.largest - of.smallest) / 2 if of.symmetric else 1.0, most_size),
        "spread": (reach**2, reach**2),
    }
    noise, sensitivities = {}, {}
    for part, (change, term) in moved.items():
        sensitivities[part] = change and change + sum_grid(n, term)
        noise[part] = facts.number(f"scale_{part}") if change else 0.0
        if change:
            # of constant centres, which no statement tells, 1/2 costs least
            mechanism = LaplaceMechanism(facts.epsilon(part), sensitivities[part])
            yield from facts.scale(part, mechanism, least=not modelled and part != "size")
    widest = reach if modelled else of.largest
    for part, term in (("difference", widest), ("size", most_size), ("spread", widest**2)):
        yield from facts.far(part, n * term, noise[part])
    size, swamped = _size(facts)
    effect = min(max(numbers["difference"] / size, -1.0), 1.0)
    spread = min(max(numbers["spread"] + UPPER * noise["spread"], 0.0), n * sensitivities["spread"])
    least = math.hypot(math.sqrt(spread) / size, _imbalance(facts, not modelled) / size)
    laplace = (noise["difference"] / size, abs(effect) * noise["size"] / size)
    yield from _compare(facts, _Law(effect, swamped, least, least if modelled else math.inf, laplace))


def outcome_table(facts: AverageFacts) -> Iterator[str]:
    """Return problems of an outcome table."""
    of, n, price = facts.estimand, facts.n, facts.epsilon("table")
    yield from facts.scale("table", table_noise(of, n, price), 4)
    yield from facts.scale("variance", LaplaceMechanism(facts.epsilon("variance"), 1 + sum_grid(n, 1.0)))
    arms = {"treated": of.most_treated, "control": of.most_control}
    for arm, bound in arms.items():
        if not same(facts.number(f"floor_{arm}"), 2 * bound / price):
            yield f"the floor of its {arm} arm is not that of what was paid"
    scale, noise = facts.number("scale_table"), facts.number("scale_variance")
    (treated, n_1), (control, n_0) = (_arm(facts, arm) for arm in arms)
    pulls = [(1 - treated) / n_1, -treated / n_1, -(1 - control) / n_0, control / n_0]
    swamped = any(size <= SCALES * facts.number(f"floor_{arm}") for arm, size in zip(arms, (n_1, n_0), strict=True))
    bounds = (of.most_treated, of.most_treated, of.most_control, of.most_control)
    laplace, polytope = tuple[float, ...](), tuple[float, ...]()
    if of.symmetric:
        polytope = tuple(pull * scale for pull in pulls)
    else:
        laplace = tuple(2 * bound * abs(pull) * scale for bound, pull in zip(bounds, pulls, strict=True))
    sizes = ((treated, n_1, of.most_treated), (control, n_0, of.most_control))
    most = max((bound * max(mean, 1 - mean) / size) ** 2 for mean, size, bound in sizes)
    for cell, bound in zip(TABLE, bounds, strict=True):
        yield from facts.far(cell, n * bound, scale * (1.0 if of.symmetric else 2 * bound))
    yield from facts.far("variance", n * most, noise * most)
    variance = min(max(facts.release.numbers["variance"] + UPPER * noise * most, 0.0), n * most)
    imbalance = _imbalance(facts, True) / ((n_1 + n_0) / 2)
    deviation = math.hypot(math.sqrt(variance), imbalance)
    yield from _compare(facts, _Law(treated - control, swamped, deviation, deviation, laplace, polytope))


def difference_in_means(facts: AverageFacts) -> Iterator[str]:
    """Return problems of a difference in means."""
    yield from outcome_table(replace(facts, estimand=EQUAL))


def horvitz_thompson(facts: AverageFacts) -> Iterator[str]:
    """Return problems of a Horvitz-Thompson estimate, which has no interval."""
    of, release = facts.estimand, facts.release
    if not of.public_size:
        yield f"a Horvitz-Thompson estimate is none of the {of.name}"
    moved = of.most_treated + of.most_control + sum_grid(facts.n, of.largest)
    mechanism = LaplaceMechanism(facts.epsilon("sum"), moved)
    yield from facts.scale("sum", mechanism, name="sum_scale")
    yield from facts.far("sum", facts.n * of.largest, facts.number("sum_scale"))
    effect, unit = min(max(release.numbers["sum"] / facts.n, -1.0), 1.0), release.domain.outcome_range
    if not same(release.estimate, effect * unit, unit):
        yield _ANOTHER
    if release.main.law is not None or release.main.swamped:
        yield f"{_OTHER_LAW}: none is known"


def subsample_aggregate(facts: AverageFacts) -> Iterator[str]:
    """Return problems of an aggregate of groups."""
    groups, numbers = facts.release.privacy.public["groups"], facts.release.numbers
    if isinstance(groups, bool) or not isinstance(groups, int) or not 2 <= groups <= facts.n:
        yield f"{groups} groups cannot be made of its records"
        return
    change = {
        "sum": 2.0,
        "spread": 4.0 * (1 - 1 / groups) + 2 * groups * sum_grid(groups, 4.0),
    }
    for part, moved in change.items():
        yield from facts.scale(part, LaplaceMechanism(facts.epsilon(part), moved), name=f"{part}_scale")
    noise, noise_q = facts.number("sum_scale"), facts.number("spread_scale")
    yield from facts.far("sum", groups, noise)
    yield from facts.far("spread", 4 * groups, noise_q)
    variance = (numbers["spread"] + UPPER * noise_q) / (groups * (groups - 1))
    deviation = math.sqrt(min(max(variance, 0.0), 1 / groups))
    effect = min(max(numbers["sum"] / groups, -1.0), 1.0)
    yield from _compare(facts, _Law(effect, False, deviation, deviation, (noise / groups,)))


def aipw(facts: AverageFacts) -> Iterator[str]:
    """Return problems of a doubly robust estimate; ranges of its nuisances are told in part alone."""
    of, n, numbers = facts.estimand, facts.n, facts.release.numbers
    bought, public = not of.public_size, facts.release.privacy.public
    least, most = (as_number(end) for end in public["size_range"])
    if not of.has_score() or not of.score_sizes_are_possible(least, most):
        yield f"its size_range is none of the {of.name} at this overlap"
        return
    whole = facts.release.privacy.n
    if n != whole - round(facts.number("split") * whole):
        yield "its blocks are not those of its split"
    # of any nuisances, what one record moves the score's sum by, and the largest score
    largest = ScoreRanges.widest(of).largest
    smallest = of.least_score_change(most)
    unit_noise = LaplaceMechanism(facts.epsilon("score"), 1.0).released_scale(1)
    noise_a, noise_b = facts.number("score_scale"), 0.0
    change = noise_a / unit_noise
    yield from compared("score", change, smallest, least=True)
    step = sum_grid(n, largest)  # at most what rounding for exact sums adds
    if change > 2 * largest * (1 + CLOSE) + step:
        yield "the noise of score is more than what was paid asks for"
    if bought:
        noise_b = facts.number("size_scale")
        unit_size = LaplaceMechanism(facts.epsilon("size"), 1.0).released_scale(1)
        yield from compared("size", noise_b, (most - least + sum_grid(n, 1.0)) * unit_size)
        yield from facts.far("size", n * most, noise_b)
    divisor = max(min(numbers["size"] if bought else float(n), n * most), n * least, SCALES * noise_b, 1e-9)
    effect = min(max(numbers["score"] / divisor, -1.0), 1.0)
    unit_noise = LaplaceMechanism(facts.epsilon("spread"), 1.0).released_scale(1)
    reaches = max(change - step - abs(effect) * (most - least), 0.0) / 2, largest + abs(effect) * most
    yield from facts.far("score", n * largest, noise_a)
    narrow, wide = (_squares(numbers["spread"], reach**2, n, unit_noise) / divisor for reach in reaches)
    yield from facts.far("spread", n * reaches[1] ** 2, unit_noise * (reaches[1] ** 2 + sum_grid(n, reaches[1] ** 2)))
    laplace = (noise_a / divisor, abs(effect) * noise_b / divisor)
    yield from _compare(facts, _Law(effect, divisor <= SCALES * noise_b, narrow, wide, laplace))


def _squares(spread: float, most: float, n: int, unit_noise: float) -> float:
    """Return the root of a bought sum of n squares of at most ``most``, with the bound of its noise."""
    noise = unit_noise * (most + sum_grid(n, most)) if most else 0.0
    return math.sqrt(min(max(spread + UPPER * noise, 0.0), n * most))


READOUTS: dict[str, tuple[Callable[[AverageFacts], Iterator[str]], tuple[str, ...]]] = {
    "balanced_difference": (balanced_difference, ("difference", "size", "spread")),
    "outcome_table": (outcome_table, (*TABLE, "variance")),
    "difference_in_means": (difference_in_means, (*TABLE, "variance")),
    "horvitz_thompson": (horvitz_thompson, ("sum",)),
    "subsample_aggregate": (subsample_aggregate, ("sum", "spread")),
    "aipw": (aipw, ("score", "size", "spread")),
}
"""Mechanisms, by what their releases are checked, and what numbers they hold (that of the ATE no size by AIPW)."""


def table_noise(of: Estimand, n: int, price: float) -> AdditiveMechanism:
    """Return the noise of an outcome table (Laplace noise: of the table over 2 W_z)."""
    step = sum_grid(n, of.largest)
    if of.symmetric:
        return RootPolytopeMechanism(price, of.largest + 2 * step)
    return LaplaceMechanism(price, 1 + 2 * step / min(of.most_treated, of.most_control))


def denominator(facts: AverageFacts) -> float:
    """Return N, what imbalances are divided by, of a balanced difference or an outcome table."""
    if facts.release.privacy.mechanism == "balanced_difference":
        return _size(facts)[0]
    return (_arm(facts, "treated")[1] + _arm(facts, "control")[1]) / 2


def _size(facts: AverageFacts) -> tuple[float, bool]:
    """Return the size of a balanced difference, and whether noise swamps it."""
    of, size, n = facts.estimand, facts.release.numbers["size"], facts.n
    if of.symmetric:
        noise = facts.number("scale_size") if of.largest > of.smallest else 0.0
        size = min(max(size, n * of.smallest / 2), n * of.largest / 2)
        return size, size <= SCALES * noise
    noise = facts.number("scale_size")
    return min(max(size, SCALES * noise, 1.0), float(n)), size <= SCALES * noise


def _arm(facts: AverageFacts, arm: str) -> tuple[float, float]:
    """Return mean and sum of an arm, by the released table alone."""
    high, low = facts.release.numbers[f"{arm}_high"], facts.release.numbers[f"{arm}_low"]
    floor = facts.number(f"floor_{arm}")
    mean = min(max(high / (high + low), 0.0), 1.0) if high + low > floor else 0.5
    return mean, max(high + low, floor)


def _imbalance(facts: AverageFacts, plain: bool) -> float:
    """Return what the noise of stage one leaves of the interval's imbalance, before it is divided by N.

    Args:
        facts: The release.
        plain: Whether there is no outcome model, without which noise of the logistic loss counts too.
    """
    if facts.release.privacy.mechanism not in ("balanced_difference", "outcome_table"):
        return 0.0
    slope, noise = facts.number("slope_bound"), facts.number("noise_per_record") * facts.n
    if slope < 0 or (slope > 0 and not (facts.balancing or plain)):
        raise ValueError("a slope_bound that does not count")
    return slope * noise * (1.0 if facts.balancing else facts.estimand.amplification)


def _compare(facts: AverageFacts, law: _Law) -> Iterator[str]:
    """Problems of the estimate and of the law of its error."""
    unit, stated = facts.release.domain.outcome_range, facts.release.main
    if not same(stated.value, unit * law.effect, unit):
        yield _ANOTHER
    if stated.law is None or stated.swamped is not law.swamped or not _follows(stated.law, unit, law):
        yield _OTHER_LAW


def _follows(stated: IntervalLaw, unit: float, law: _Law) -> bool:
    largest = unit * max(map(abs, (*law.laplace, *law.polytope)), default=0.0)
    for one, other in ((stated.laplace, law.laplace), (stated.polytope, law.polytope)):
        if len(one) != len(other) or not all(same(a, unit * b, largest) for a, b in zip(one, other, strict=True)):
            return False
    return unit * law.least * (1 - CLOSE) <= stated.gaussian <= unit * law.most * (1 + CLOSE)
