"""What in a released average effect does not follow from its numbers, its public constants and what was charged.

Every number and coefficient needs its charge, each charge the epsilon that the statement has, and each scale of noise
is that of the mechanism at what was charged. Estimate and interval are recomputed by the mechanism itself. Not
compared is what rests on facts that no statement has: a constant centre of outcomes, ranges of the nuisances of AIPW,
and free settings such as slope_bound or groups; nor fits that are not the library's.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torchdpcate.estimators.average.recompute_parts import balance_problems, beside_problems, fit_problems
from torchdpcate.estimators.average.stated import (
    AUTO,
    CHOSEN_BY,
    FITTED,
    NUISANCE,
    PLANNED_ERROR,
    RECORDS,
    AverageMechanism,
    ContradictionError,
    Entry,
    Recomputed,
    StatedEffect,
)
from torchdpcate.estimators.recompute import CLOSE, same
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import ApproximateEvent, PureEvent
from torchdpcate.privacy.guarantee import Level, of_library
from torchdpcate.privacy.noisy_numbers import FAR
from torchdpcate.release.average_effect import CHOICE, AverageEffectRelease
from torchdpcate.release.holds_if import HOLDS_IF
from torchdpcate.release.interval_law import IntervalLaw

_EPSILON = "epsilon_"
_BESIDE = ("balance", "difference_in_means")  # parts of any mechanism on weights
_FITTED = {"stage_one": Purpose.WEIGHTS, **FITTED}
_SHARED = 1e-6  # how well an epsilon and its charges agree: what was left to rounding, and to the accountant


def problems(mechanism: type[AverageMechanism], release: AverageEffectRelease) -> Iterator[str]:
    """Return what is wrong with a released average effect that claims something.

    Args:
        mechanism: What released it.
        release: The release, as read from its file.
    """
    stated = StatedEffect.of(release)
    try:
        yield from _uncharged(mechanism, stated)
    except ContradictionError as problem:
        yield str(problem)
        return
    yield from _settings(mechanism, stated)
    yield from _blocks(mechanism, stated)
    yield from _epsilons(mechanism, stated)
    yield from fit_problems(stated)
    try:
        found = mechanism.work_out(stated)
    except ContradictionError as problem:
        yield str(problem)
        return
    yield from _constants(stated, found)
    yield from _reaches(stated, found)
    yield from _estimate(mechanism, stated, found)
    if mechanism.on_weights:
        yield from balance_problems(stated, found.estimate.size[0].item())
        yield from beside_problems(stated)
    elif release.balance is not None:
        yield "it holds a balance table, but its mechanism has none"


def _uncharged(mechanism: type[AverageMechanism], stated: StatedEffect) -> Iterator[str]:
    """Problems of contents without a charge."""
    release, parts = stated.release, mechanism.numbers_in(stated)
    yield from _parts(mechanism, stated, parts)
    for name in release.numbers:
        part = parts.get(name, name)
        if part is not None and not stated.own(part):
            yield f"it holds the number {name!r}, but no charge is for it"
    if parts.keys() != release.numbers.keys():
        yield f"its numbers are not those of {mechanism.name} for the {release.estimand}"
    table = release.balance
    held = {
        "weights": (release.weights is not None, stated.charged(Purpose.WEIGHTS)),
        "an outcome model": (release.outcome_theta is not None, stated.charged(Purpose.OUTCOME_MODEL)),
        "balance statistics": (
            table is not None and (table.before is not None or table.after is not None),
            stated.own("balance", piece=None),
        ),
        "a difference in means": (release.beside is not None, stated.own("difference_in_means", piece=None)),
    }
    for what, (there, entries) in held.items():
        if there and not entries:
            yield f"it holds {what}, but no charge is for {'it' if what.startswith('a') else 'them'}"


def _parts(mechanism: type[AverageMechanism], stated: StatedEffect, parts: Mapping[str, str | None]) -> Iterator[str]:
    """Problems of the parts that a release charges: those of its numbers, and those beside, each once and in order."""
    charges = [e.charge for e in stated.entries if e.charge.purpose is Purpose.RELEASE]
    own = [charge for charge in charges if charge.mechanism == mechanism.name]
    known = [*dict.fromkeys(part for part in parts.values() if part is not None), *_BESIDE]
    if own != charges or not all(charge.part in known for charge in own):
        yield "it was charged for a part that its mechanism has not"
    elif len(set(own)) < len(own):
        yield "it was charged twice for a part"
    elif [known.index(charge.part) for charge in own] != sorted(known.index(charge.part) for charge in own):
        yield "its parts were not charged in their order"


def _settings(mechanism: type[AverageMechanism], stated: StatedEffect) -> Iterator[str]:
    """Problems of settings that are stated more than once: estimand, overlap, loss and the centre of outcomes."""
    release, public = stated.release, stated.public
    if release.privacy.level == Level.CERTIFIED and not of_library(stated.estimand):
        yield f"the {release.estimand} is no estimand of the library, but it is called certified"
    if public.get("estimand") != release.estimand:
        yield f"it estimates the {release.estimand}, but its statement has another estimand"
    yield from _choice(stated)
    if public.get(HOLDS_IF) != mechanism.holds_if(public):
        yield f"{HOLDS_IF} is not what its mechanism rests on"
    if release.weights is not None and release.weights.estimand != stated.estimand:
        yield "its weights are not those of the statement's estimand and overlap"
    if mechanism.on_weights:
        if public.get("loss") not in ("balancing", "logistic"):
            yield f"its weights are by the loss {public.get('loss')}, which is none"
        if release.weights is None:
            yield "it holds no weights, which its mechanism rests on"
    if (release.outcome_theta is not None) != _modelled(public.get("outcome_bounds")):
        yield "outcome model and outcome_bounds are not there together"


def _choice(stated: StatedEffect) -> Iterator[str]:
    """Problems of what is said of the choice of the estimator, which public facts alone made."""
    found = stated.public.keys() & set(CHOICE)
    if not found:
        return
    if found != set(CHOICE) or stated.public[CHOSEN_BY] != AUTO:
        yield "what it says of how its estimator was chosen is nothing that the library says"
    elif not 0 < stated.number(PLANNED_ERROR) <= stated.release.domain.outcome_range:
        yield f"{PLANNED_ERROR} is beyond what an effect can be off by"


def _modelled(bounds: Any) -> bool:
    """Whether bounds leave an outcome model an interval; invalid bounds are reported elsewhere."""
    if bounds is None:
        return False
    try:
        low, high = map(as_number, bounds)
    except (TypeError, ValueError):
        return True
    return 0 <= low < high <= 1


def _blocks(mechanism: type[AverageMechanism], stated: StatedEffect) -> Iterator[str]:
    """Problems of the blocks: one that is released from, and one of its own for nuisances."""
    blocks, apart = stated.release.privacy.blocks, mechanism.on_nuisances
    if {block.name for block in blocks} != ({NUISANCE, RECORDS} if apart else {RECORDS}):
        yield f"its blocks of records are not those of {mechanism.name}"
    for block in blocks:
        if not block.charges or (apart and bool(block.of(Purpose.RELEASE)) is (block.name == NUISANCE)):
            yield f"the charges of block {block.name!r} are not those of {mechanism.name}"


def _epsilons(mechanism: type[AverageMechanism], stated: StatedEffect) -> Iterator[str]:
    """Problems of the epsilons that a statement has, against what was charged."""
    public = {part for part, paid in mechanism.numbers_in(stated).items() if paid is None}
    fits = sum(entry.charge.purpose in FITTED.values() for entry in stated.entries)
    for name, value in stated.public.items():
        if not name.startswith(_EPSILON):
            continue
        part, epsilon = name.removeprefix(_EPSILON), as_number(value)
        entries = stated.own(part, piece=None) + (stated.charged(_FITTED[part]) if part in _FITTED else [])
        paid = [_cost(entry, as_number(entry.block.delta) / max(fits, 1)) for entry in entries]
        if not paid and part not in public:
            yield f"{name} is stated, but no charge is for it"
        elif paid and not math.isclose(sum(paid), epsilon, rel_tol=_SHARED):
            yield f"{name} = {epsilon:.6g} is stated, but {sum(paid):.6g} was charged"


def _cost(entry: Entry, delta: float) -> float:
    """Return the epsilon of a charge, of Gaussian noise at a delta."""
    if isinstance(entry.event, PureEvent | ApproximateEvent):
        return entry.event.epsilon * int(entry.count)
    return compose([(entry.event, int(entry.count))], delta)


def _constants(stated: StatedEffect, found: Recomputed) -> Iterator[str]:
    """Problems of public constants beside what mechanism and charges make them."""
    for name, (least, most) in found.constants.items():
        value = stated.number(name)
        if not least * (1 - CLOSE) <= value <= most * (1 + CLOSE):
            needed = f"{least:.6g}" + ("" if least == most else f" or more, up to {most:.6g}")
            yield f"{name} = {value:.6g} is stated, but bounds, records, settings and charge make it {needed}"


def _reaches(stated: StatedEffect, found: Recomputed) -> Iterator[str]:
    """Problems of numbers beyond what records and noise can make them."""
    for name, value in stated.release.numbers.items():
        most, scale = found.reaches.get(name, (0.0, 0.0))
        if not abs(value) <= most * (1 + CLOSE) + FAR * scale:
            yield f"the number {name!r} is larger than records and noise can make it"


def _estimate(mechanism: type[AverageMechanism], stated: StatedEffect, found: Recomputed) -> Iterator[str]:
    """Problems of the estimate and of the law of its error."""
    unit, release = stated.release.domain.outcome_range, stated.release.main
    needed = found.estimate.in_units(unit, mechanism.intervals)
    if not same(release.value, needed.value, unit):
        yield "its estimate does not follow from its numbers"
    if needed.law is None:
        if release.law is not None or release.noise_dominated:
            yield "its interval does not follow from its numbers: none is known"
        return
    law = release.law
    least, most = found.gaussian or (found.estimate.gaussian[0].item(),) * 2
    within = law is not None and unit * least * (1 - CLOSE) <= law.gaussian <= unit * most * (1 + CLOSE)
    if (
        law is None
        or not within
        or release.noise_dominated is not needed.noise_dominated
        or not _follows(law, needed.law)
    ):
        yield "its interval does not follow from its numbers"


def _follows(stated: IntervalLaw, needed: IntervalLaw) -> bool:
    """Whether the parts that are noise agree."""
    largest = max(map(abs, (*needed.laplace, *needed.polytope)), default=0.0)
    return all(
        len(one) == len(other) and all(same(a, b, largest) for a, b in zip(one, other, strict=True))
        for one, other in ((stated.laplace, needed.laplace), (stated.polytope, needed.polytope))
    )
