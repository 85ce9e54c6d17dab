"""Verification of a statement's words and names: those of the library for this mechanism, and nothing else."""

import re
from collections.abc import Iterator

from torchdpcate.data.domain import Domain
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.statement import (
    ASSUMPTIONS,
    LIBRARIES,
    NOT_PROTECTED,
    PrivacyStatement,
    accountant_of,
    bounds_of,
)
from torchdpcate.verify.known import (
    COMMON_CONDITIONS,
    CONDITION_KEYS,
    is_known,
    is_tuning,
    stated,
)

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,40}")
_LEVELS = list(Level)


def statement_problems(privacy: PrivacyStatement, kind: str, domain: Domain) -> Iterator[str]:
    """Return what a statement says that no release of its kind and mechanism does.

    Args:
        privacy: The statement.
        kind: Kind of release.
        domain: The release's, whose bounds and their origin a statement repeats.
    """
    yield from _mechanism(privacy, kind)
    yield from _names(privacy)
    yield from _conditions(privacy)
    yield from _texts(privacy, domain)


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
    if not privacy.private_noise and privacy.public:
        yield "the noise had a fixed seed, yet it states constants"
    yield from _purposes(privacy)


def _purposes(privacy: PrivacyStatement) -> Iterator[str]:
    for charge in dict.fromkeys(charge.charge for charge in privacy.charges):
        if charge.purpose is Purpose.OTHER:
            yield f"the charge {charge.words!r} is none that a release of the library makes"
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
    names = [condition["name"] for condition in privacy.conditions]
    weak = [charge for charge in privacy.charges if charge.level is Level.CONDITIONAL]
    # another release from the same records may have made the total conditional; it states its conditions itself
    own = [c for c in weak if c.purpose is not Purpose.RELEASE or c.is_release(privacy.mechanism)]
    if privacy.claims and not names and (own or (privacy.level == Level.CONDITIONAL and not weak)):
        yield "the level is conditional, but no condition is stated"
    if privacy.claims and names and privacy.level == Level.CERTIFIED:
        yield "the level is certified, but a condition is stated"
    known = stated(privacy.mechanism)
    if known is None or known.conditions is None:
        return
    allowed = (*known.conditions, *COMMON_CONDITIONS)
    for name in names:
        if name not in allowed:
            yield f"the condition {name!r} is none that mechanism {privacy.mechanism!r} rests on"


def _texts(privacy: PrivacyStatement, domain: Domain) -> Iterator[str]:
    """Problems of assumptions, of what is not protected, of tuning, versions, accountant and origin of the bounds."""
    if set(privacy.versions) != set(LIBRARIES) or not all(map(_VERSION.fullmatch, privacy.versions.values())):
        yield "its versions are not those of the libraries that make releases"
    if privacy.assumptions != (list(ASSUMPTIONS) if privacy.private_noise else []):
        yield "its assumptions are not those that every release rests on"
    if privacy.not_protected != list(NOT_PROTECTED):
        yield "what it calls not protected is not what no release protects"
    made_by = accountant_of(privacy.versions.get("dp-accounting", "")) if privacy.claims else {}
    if privacy.accountant != made_by:
        yield "its accountant is not the one that composes charges"
    if not is_tuning(privacy.tuning):
        yield "what it says of tuning is nothing that a ledger knows"
    if privacy.bounds_origin != domain.origin:
        yield "where it says that its bounds come from is not where its schema does"
    if privacy.bounds != bounds_of(domain):
        yield "the bounds of outcome and overlap that it states are not those of its schema"
