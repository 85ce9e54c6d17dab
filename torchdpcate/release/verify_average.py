"""Verification of a released average effect: was every number paid for, and does the estimate follow from them?"""

import math
from collections.abc import Callable, Iterator, Mapping

from torchdpcate.errors import InputError
from torchdpcate.orthogonal import Weighting
from torchdpcate.privacy import Level
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.interval_law import IntervalLaw
from torchdpcate.release.release import Release

TABLE = ("treated_high", "treated_low", "control_high", "control_low")
"""Cells of the outcome table: T_11, T_10, T_01, T_00."""

SCALES = 3.0
"""A denominator below this many scales of its noise is swamped by it."""
UPPER = math.log(5)
"""One-sided 90 % quantile of Laplace noise, in its scale."""

_CLOSE = 1e-9
_CONDITIONAL = "k_norm_gradient"
_EQUAL = Weighting("ATE", 0.5)  # all records weigh the same
_PARTS = dict.fromkeys(TABLE, "table")
"""Which part of a readout buys a number, where it is not called like the number."""


def average_problems(release: Release) -> Iterator[str]:
    """Return what is wrong with a released average effect; nothing for other releases.

    Every number and coefficient needs its charge. Of a balanced difference and of an outcome table the estimate and
    the noise in its interval are computed anew from the numbers, and the scales of the noise are compared with what
    was paid for; of other readouts, the estimate where it is a sum over a public number.

    Args:
        release: The release, as read from its file.
    """
    if not isinstance(release, AverageEffectRelease):
        return
    privacy = release.privacy
    if not privacy.claims:
        return
    yield from _unpaid(release)
    yield from _settings(release)
    try:
        weighting = Weighting(release.estimand, float(privacy.public["eta"]))
        yield from _READOUTS.get(privacy.mechanism, _nothing)(release, weighting)
    except (InputError, KeyError, TypeError, ValueError, ZeroDivisionError):
        yield "its public constants or its numbers are not those of its mechanism"


def _unpaid(release: AverageEffectRelease) -> Iterator[str]:
    """Problems of what no charge is for."""
    privacy = release.privacy
    charges, own = [c for block in privacy.blocks for c in block["charges"]], f"release by {privacy.mechanism}: "
    labels = [charge["label"] for charge in charges]
    for name in release.numbers:
        if f"{own}{_PARTS.get(name, name)}" not in labels and not _is_public(release, name):
            yield f"it holds the number {name!r}, but no charge is for it"
    held = {
        "weights": (release.weights is not None, "weights: "),
        "an outcome model": (release.outcome_theta is not None, "outcome model: "),
        "balance statistics": (_bought(release), f"{own}balance"),
        "a difference in means": (release.beside is not None, f"{own}difference_in_means"),
    }
    for what, (there, start) in held.items():
        if there and not any(label.startswith(start) for label in labels):
            yield f"it holds {what}, but no charge is for {'it' if what.startswith('a') else 'them'}"
    if any(_CONDITIONAL in c["label"] and c["level"] == Level.CERTIFIED for c in charges):
        yield f"its weights are by {_CONDITIONAL}, which is conditional, but they are called certified"


def _bought(release: AverageEffectRelease) -> bool:
    return release.balance is not None and (release.balance.before is not None or release.balance.after is not None)


def _is_public(release: AverageEffectRelease, name: str) -> bool:
    """Whether a number is public: the size N where all records weigh the same."""
    if name != "size" or release.weights is None or release.privacy.mechanism != "balanced_difference":
        return False
    of = release.weights.weighting
    return of.symmetric and of.largest == of.smallest


def _settings(release: AverageEffectRelease) -> Iterator[str]:
    """Problems of estimand and clip, which stand in several places."""
    public = release.privacy.public
    if public.get("estimand") != release.estimand:
        yield f"it estimates the {release.estimand}, but its statement tells another estimand"
    if release.weights is not None:
        of = release.weights.weighting
        if (of.estimand, of.eta) != (public.get("estimand"), public.get("eta")):
            yield "its weights are not those of the statement's estimand and eta"


def _nothing(release: AverageEffectRelease, weighting: Weighting) -> Iterator[str]:
    yield from ()


def _balanced_difference(release: AverageEffectRelease, of: Weighting) -> Iterator[str]:
    numbers, public = release.numbers, release.privacy.public
    noise = {part: float(public.get(f"scale_{part}", 0.0)) for part in ("difference", "size", "spread")}
    low, high = public.get("outcome_bounds", (0.5, 0.5))  # of constant centres, 1/2 costs least
    least = {
        "difference": max(of.most_treated * (1 - low), of.most_control * high)
        + max(of.most_treated * high, of.most_control * (1 - low)),
        "size": (of.largest - of.smallest) / 2 if of.symmetric else 1.0,
        "spread": (of.largest * max(high, 1 - low)) ** 2,
    }
    yield from _too_little(release, noise, least)
    n, size = release.privacy.n, numbers["size"]
    swamped = size <= SCALES * noise["size"]
    if of.symmetric:
        size = min(max(size, n * of.smallest / 2), n * of.largest / 2)
        swamped = size <= SCALES * noise["size"]
    else:
        size = min(max(size, SCALES * noise["size"], 1.0), float(n))
    effect = min(max(numbers["difference"] / size, -1.0), 1.0)
    spread = min(max(numbers["spread"] + UPPER * noise["spread"], 0.0), n * least["spread"])
    laplace = [noise["difference"] / size, abs(effect) * noise["size"] / size]
    yield from _compare(release, effect, math.sqrt(spread) / size, swamped, laplace, [])


def _outcome_table(release: AverageEffectRelease, of: Weighting) -> Iterator[str]:
    public = release.privacy.public
    noise = {part: float(public[f"scale_{part}"]) for part in ("table", "variance")}
    yield from _too_little(release, noise, {"table": of.largest if of.symmetric else 1.0, "variance": 1.0})
    (treated, n_1), (control, n_0) = (_arm(release, arm) for arm in ("treated", "control"))
    pulls = [(1 - treated) / n_1, -treated / n_1, -(1 - control) / n_0, control / n_0]
    swamped = n_1 <= SCALES * public["floor_treated"] or n_0 <= SCALES * public["floor_control"]
    if of.symmetric:
        laplace, polytope = list[float](), [pull * noise["table"] for pull in pulls]
    else:
        bounds = (of.most_treated, of.most_treated, of.most_control, of.most_control)
        laplace = [2 * bound * abs(pull) * noise["table"] for bound, pull in zip(bounds, pulls, strict=True)]
        polytope = []
    sizes = ((treated, n_1, of.most_treated), (control, n_0, of.most_control))
    most = max((bound * max(mean, 1 - mean) / size) ** 2 for mean, size, bound in sizes)
    variance = release.numbers["variance"] + UPPER * noise["variance"] * most
    deviation = math.sqrt(min(max(variance, 0.0), release.privacy.n * most))
    yield from _compare(release, treated - control, deviation, swamped, laplace, polytope)


def _difference_in_means(release: AverageEffectRelease, of: Weighting) -> Iterator[str]:
    yield from _outcome_table(release, _EQUAL)


def _horvitz_thompson(release: AverageEffectRelease, of: Weighting) -> Iterator[str]:
    yield from _mean(release, release.privacy.n)


def _subsample_aggregate(release: AverageEffectRelease, of: Weighting) -> Iterator[str]:
    yield from _mean(release, int(release.privacy.public["groups"]))


def _aipw(release: AverageEffectRelease, of: Weighting) -> Iterator[str]:
    public = release.privacy.public
    n = next(block["n"] for block in release.privacy.blocks if block["name"] == "records")
    least, most = public["size_range"]
    noise = float(public.get("size_scale", 0.0))
    size = release.numbers.get("size", float(n))
    divisor = max(min(size, n * most), n * least, SCALES * noise, 1e-9)
    effect = min(max(release.numbers["score"] / divisor, -1.0), 1.0)
    if not _same(release.estimate, effect * release.domain.outcome_range):
        yield "its estimate does not follow from its numbers"
    if release.main.swamped is not (divisor <= SCALES * noise):
        yield "its interval does not follow from its numbers"


_READOUTS: dict[str, Callable[[AverageEffectRelease, Weighting], Iterator[str]]] = {
    "balanced_difference": _balanced_difference,
    "outcome_table": _outcome_table,
    "difference_in_means": _difference_in_means,
    "horvitz_thompson": _horvitz_thompson,
    "subsample_aggregate": _subsample_aggregate,
    "aipw": _aipw,
}


def _mean(release: AverageEffectRelease, count: int) -> Iterator[str]:
    effect = min(max(release.numbers["sum"] / count, -1.0), 1.0)
    if not _same(release.estimate, effect * release.domain.outcome_range):
        yield "its estimate does not follow from its numbers"


def _arm(release: AverageEffectRelease, arm: str) -> tuple[float, float]:
    """Return mean and sum of an arm, by the released table alone."""
    high, low = release.numbers[f"{arm}_high"], release.numbers[f"{arm}_low"]
    floor = float(release.privacy.public[f"floor_{arm}"])
    mean = min(max(high / (high + low), 0.0), 1.0) if high + low > floor else 0.5
    return mean, max(high + low, floor)


def _too_little(release: AverageEffectRelease, noise: Mapping[str, float], least: Mapping[str, float]) -> Iterator[str]:
    """Problems of noise scales: below what the sensitivity asks for at the price that was paid."""
    own = f"release by {release.privacy.mechanism}: "
    for part, scale in noise.items():
        paid = [c for block in release.privacy.blocks for c in block["charges"] if c["label"] == f"{own}{part}"]
        prices = [charge["event"].get("epsilon", 0.0) for charge in paid if "event" in charge]
        if any(scale * price < least[part] * (1 - _CLOSE) for price in prices):
            yield f"the noise of {part} is too little for what was paid"


def _compare(
    release: AverageEffectRelease,
    effect: float,
    deviation: float,
    swamped: bool,
    laplace: list[float],
    polytope: list[float],
) -> Iterator[str]:
    """Problems of the estimate and of the law of its error, for outcomes in [0, 1]."""
    unit, stated = release.domain.outcome_range, release.main
    if not _same(stated.value, unit * effect):
        yield "its estimate does not follow from its numbers"
    law = stated.law
    if law is None or stated.swamped is not swamped or not _wide_enough(law, unit, deviation, laplace, polytope):
        yield "its interval does not follow from its numbers"


def _wide_enough(law: IntervalLaw, unit: float, deviation: float, laplace: list[float], polytope: list[float]) -> bool:
    parts = ((law.laplace, laplace), (law.polytope, polytope))
    if any(len(one) != len(other) for one, other in parts):
        return False
    same = all(_same(a, unit * b) for one, other in parts for a, b in zip(one, other, strict=True))
    return same and law.gaussian >= unit * deviation * (1 - _CLOSE)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-12)
