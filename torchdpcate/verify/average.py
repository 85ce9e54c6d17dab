"""Verification of a released average effect: was every number paid for, and does the estimate follow from them?"""

import math
from collections.abc import Iterator
from typing import Any

from torchdpcate.causal.estimand import ESTIMANDS, make_estimand
from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent, PureEvent
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.blocks import StatedCharge
from torchdpcate.release.holds_if import HOLDS_IF
from torchdpcate.release.release import Release
from torchdpcate.verify.average_facts import NUISANCE, RECORDS, AverageFacts
from torchdpcate.verify.average_law import READOUTS, TABLE
from torchdpcate.verify.average_parts import FITS, balance_problems, beside_problems, fit_problems

_PARTS = dict.fromkeys(TABLE, "table")
"""Which part of a readout buys a number, where it is not called like the number."""
_EPSILON = "epsilon_"
_FITTED = {"stage_one": FITS["weights"], "weights": FITS["weights"], "outcome_model": FITS["outcome_model"]}
_SHARED = 1e-6  # how well an epsilon and its charges agree: what was left to rounding, and to the accountant


def average_problems(release: Release) -> Iterator[str]:
    """Return what is wrong with a released average effect; nothing for other releases.

    Every number and coefficient needs its charge, each charge the epsilon that the statement tells, and each scale of
    noise is compared with what was paid for. Estimate and interval are computed anew from the numbers, and of balance
    and difference in means what follows from public facts. Not compared is what rests on facts that no statement tells:
    a constant centre of outcomes, ranges of the nuisances of AIPW, and settings such as slope_bound or groups, which
    anybody might have chosen; nor readouts and fitters of other makers.

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
        facts = AverageFacts(release, make_estimand(release.estimand, as_number(privacy.public["eta"])))
        yield from _blocks(release)
        yield from _prices(release)
        yield from fit_problems(facts)
        if privacy.mechanism in READOUTS:
            yield from READOUTS[privacy.mechanism][0](facts)
        yield from balance_problems(facts)
        yield from beside_problems(facts)
    except (InputError, ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError):
        yield "its public constants or its numbers are not those of its mechanism"


def _unpaid(release: AverageEffectRelease) -> Iterator[str]:
    """Problems of what no charge is for."""
    privacy = release.privacy
    charges = [charge.charge for charge in privacy.charges]
    for name in release.numbers:
        own = Charge(Purpose.RELEASE, privacy.mechanism, _PARTS.get(name, name))
        if own not in charges and not _is_public(release, name):
            yield f"it holds the number {name!r}, but no charge is for it"
    if privacy.mechanism in READOUTS:
        needed = set(READOUTS[privacy.mechanism][1])
        if privacy.mechanism == "aipw" and ESTIMANDS[release.estimand].public_size:
            needed.remove("size")
        if needed != set(release.numbers):
            yield f"its numbers are not those of {privacy.mechanism} for the {release.estimand}"
    held = {
        "weights": (release.weights is not None, FITS["weights"], None),
        "an outcome model": (release.outcome_theta is not None, FITS["outcome_model"], None),
        "balance statistics": (_bought(release), Purpose.RELEASE, "balance"),
        "a difference in means": (release.beside is not None, Purpose.RELEASE, "difference_in_means"),
    }
    for what, (there, purpose, part) in held.items():
        if there and not any(c.purpose is purpose and part in (None, c.part) for c in charges):
            yield f"it holds {what}, but no charge is for {'it' if what.startswith('a') else 'them'}"


def _bought(release: AverageEffectRelease) -> bool:
    return release.balance is not None and (release.balance.before is not None or release.balance.after is not None)


def _is_public(release: AverageEffectRelease, name: str) -> bool:
    """Whether a number is public: the size N where all records weigh the same."""
    if name != "size" or release.weights is None or release.privacy.mechanism != "balanced_difference":
        return False
    of = release.weights.estimand
    return of.symmetric and of.largest == of.smallest


def _settings(release: AverageEffectRelease) -> Iterator[str]:
    """Problems of settings that stand in several places: estimand, clip, loss and the centre of outcomes."""
    public = release.privacy.public
    if public.get("estimand") != release.estimand:
        yield f"it estimates the {release.estimand}, but its statement tells another estimand"
    if public.get(HOLDS_IF, release.holds_if) != release.holds_if:
        yield f"{HOLDS_IF} is not what its mechanism rests on"
    if release.weights is not None:
        of = release.weights.estimand
        if (of.name, of.overlap) != (public.get("estimand"), public.get("eta")):
            yield "its weights are not those of the statement's estimand and eta"
    if release.privacy.mechanism in ("balanced_difference", "outcome_table"):
        if public.get("loss") not in ("balancing", "logistic"):
            yield f"its weights are by the loss {public.get('loss')}, which is none"
        if release.weights is None:
            yield "it holds no weights, which its mechanism rests on"
    if (release.outcome_theta is not None) != _modelled(public.get("outcome_bounds")):
        yield "outcome model and outcome_bounds are not there together"


def _modelled(bounds: Any) -> bool:
    """Whether bounds leave an outcome model something to say; bounds that are none are told elsewhere."""
    if bounds is None:
        return False
    try:
        low, high = map(as_number, bounds)
    except (TypeError, ValueError):
        return True
    return 0 <= low < high <= 1


def _blocks(release: AverageEffectRelease) -> Iterator[str]:
    """Problems of who pays: the records for all of it, and those of the nuisances of AIPW for these."""
    privacy = release.privacy
    if privacy.mechanism not in READOUTS:
        return
    apart = privacy.mechanism == "aipw"
    if {block.name for block in privacy.blocks} != ({NUISANCE, RECORDS} if apart else {RECORDS}):
        yield f"its blocks of records are not those of {privacy.mechanism}"
    for block in privacy.blocks:
        if not block.charges or (apart and bool(block.of(Purpose.RELEASE)) is (block.name == NUISANCE)):
            yield f"the charges of block {block.name!r} are not those of {privacy.mechanism}"


def _prices(release: AverageEffectRelease) -> Iterator[str]:
    """Problems of the epsilons that a statement tells, against what was charged."""
    privacy = release.privacy
    charges = [(charge, block) for block in privacy.blocks for charge in block.charges]
    fits = sum(charge.purpose in FITS.values() for charge, _ in charges)
    for name, told in privacy.public.items():
        if not name.startswith(_EPSILON):
            continue
        part, epsilon = name.removeprefix(_EPSILON), as_number(told)
        paid = [
            _cost(charge, as_number(block.delta) / max(fits, 1))
            for charge, block in charges
            if charge.is_release(privacy.mechanism, part) or charge.purpose is _FITTED.get(part)
        ]
        if not paid and not _is_public(release, part):
            yield f"{name} is told, but no charge is for it"
        elif paid and not math.isclose(sum(paid), epsilon, rel_tol=_SHARED):
            yield f"{name} = {epsilon:.6g} is told, but {sum(paid):.6g} was charged"


def _cost(charge: StatedCharge, delta: float) -> float:
    """Return the epsilon of a charge, of Gaussian noise at a delta."""
    event, count = charge.event, charge.count
    if count is None or not isinstance(event, GaussianEvent | PureEvent | ApproximateEvent):
        raise ValueError("a charge of it has no epsilon")
    return compose([(event, count)], delta) if isinstance(event, GaussianEvent) else event.epsilon * count
