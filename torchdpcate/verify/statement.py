"""Verification of a statement's words and names: those of the library for this mechanism, and nothing else."""

import re
from collections.abc import Iterator
from importlib.metadata import version

from torchdpcate.estimators.mechanism import Stated
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.statement import ASSUMPTIONS, LIBRARIES, NOT_PROTECTED, PrivacyStatement, accountant_of
from torchdpcate.verify.known import (
    COMMON_CONDITIONS,
    CONDITION_KEYS,
    PURPOSES,
    constants_problem,
    is_known,
    is_tuning,
    stated,
)

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,40}")
_LEVELS = list(Level)
# Entries of a list among the public constants: the longest names candidates; those of average effects are ranges.
_LONGEST, _RANGE = 10_000, 2


def statement_problems(privacy: PrivacyStatement, kind: str, origin: str, complete: bool) -> Iterator[str]:
    """Return what a statement says that no release of its kind and mechanism does.

    Args:
        privacy: The statement.
        kind: Kind of release.
        origin: Where the release's schema says that its bounds come from.
        complete: Whether the file's format leaves no field out.
    """
    yield from _mechanism(privacy, kind)
    yield from _names(privacy)
    yield from _conditions(privacy)
    yield from _texts(privacy, origin, complete)


def _mechanism(privacy: PrivacyStatement, kind: str) -> Iterator[str]:
    """Problems of the mechanism: unknown, of another kind of release, or called stronger than it ever is."""
    known = stated(privacy.mechanism)
    if known is None:
        if privacy.claims or privacy.level != Level.HEURISTIC:
            yield f"mechanism {privacy.mechanism!r} is none of the library's, so it may claim nothing"
        return
    if kind not in known.kinds:
        yield f"mechanism {privacy.mechanism!r} makes no release of {kind}"
    if _LEVELS.index(Level(privacy.level)) < _LEVELS.index(known.highest):
        yield f"mechanism {privacy.mechanism!r} is {known.highest} at most, but the level is {privacy.level}"
    formulas = known.formula, *known.other_formulas
    if known.formula is not None and _current(privacy) and privacy.formula not in formulas:
        yield f"its formula is not that of mechanism {privacy.mechanism!r}"
    yield from _constants(privacy, known)
    yield from _purposes(privacy, kind)


def _constants(privacy: PrivacyStatement, known: Stated) -> Iterator[str]:
    if privacy.claims:
        problem = constants_problem(privacy.public, known)
        if problem:
            yield problem
    elif not privacy.private_noise and privacy.public:
        yield "the noise had a fixed seed, yet it states constants"
    longest = _RANGE if known.conditions is None else _LONGEST
    if any(isinstance(value, list) and len(value) > longest for value in privacy.public.values()):
        yield "its public constants hold a list that is longer than any"


def _purposes(privacy: PrivacyStatement, kind: str) -> Iterator[str]:
    for charge in dict.fromkeys(charge.charge for charge in privacy.charges):
        if charge.purpose not in PURPOSES.get(kind, ()):
            yield f"the charge {charge.words!r} is none that a release of {kind} makes"
        elif charge.purpose is Purpose.RELEASE and not is_known(charge.mechanism):
            yield f"the charge {charge.words!r} is for a mechanism that is none of the library's"


def _names(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of fields that no other check reads: in conditions, and in blocks of one name."""
    for condition in privacy.conditions:
        strange = condition.keys() - CONDITION_KEYS
        if strange:
            yield f"a condition holds {', '.join(map(repr, sorted(strange)))}, which none of the library's does"
    names = [block.name for block in privacy.blocks]
    if len(set(names)) < len(names):
        yield "two blocks have one name"


def _conditions(privacy: PrivacyStatement) -> Iterator[str]:
    for condition in privacy.conditions:
        if condition["name"] in COMMON_CONDITIONS and condition["holds"] is not None:
            yield f"the condition {condition['name']!r} is stated to hold or fail, which cannot be checked"
    known = stated(privacy.mechanism)
    if known is None or known.conditions is None:
        return
    allowed = (*known.conditions, *COMMON_CONDITIONS)
    names = [condition["name"] for condition in privacy.conditions]
    for name in names:
        if name not in allowed:
            yield f"the condition {name!r} is none that mechanism {privacy.mechanism!r} rests on"
    if privacy.claims and privacy.level == Level.CONDITIONAL and not names and not _conditional_part(privacy):
        yield "the level is conditional, but no condition is stated"


def _conditional_part(privacy: PrivacyStatement) -> bool:
    """Whether another release from the same records made the total conditional; it states its conditions itself."""
    return any(c.level is Level.CONDITIONAL and not c.is_release(privacy.mechanism) for c in privacy.charges)


def _texts(privacy: PrivacyStatement, origin: str, complete: bool) -> Iterator[str]:
    """Problems of assumptions, of what is not protected, of tuning, versions, accountant and origin of the bounds."""
    if set(privacy.versions) != set(LIBRARIES) or not all(map(_VERSION.fullmatch, privacy.versions.values())):
        yield "its versions are not those of the libraries that make releases"
    if _current(privacy):
        if privacy.assumptions != (list(ASSUMPTIONS) if privacy.private_noise else []):
            yield "its assumptions are not those that every release rests on"
        if privacy.not_protected != list(NOT_PROTECTED):
            yield "what it calls not protected is not what no release protects"
    elif not privacy.not_protected or bool(privacy.assumptions) is not privacy.private_noise:
        yield "it states no assumptions, or nothing that is not protected"
    made_by = accountant_of(privacy.versions.get("dp-accounting", "")) if privacy.claims else {}
    if privacy.accountant != made_by and (complete or privacy.accountant):
        yield "its accountant is not the one that composes charges"
    if not is_tuning(privacy.tuning) and (complete or privacy.tuning):
        yield "what it says of tuning is nothing that a ledger knows"
    if privacy.bounds_origin != origin and (complete or privacy.bounds_origin):
        yield "where it says that its bounds come from is not where its schema does"


def _current(privacy: PrivacyStatement) -> bool:
    """Whether this version of the library made it, whose words are known exactly."""
    return privacy.versions.get("torchdpcate") in (None, version("torchdpcate"))
