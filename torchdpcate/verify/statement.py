"""Verification of a privacy statement: its names and words, and its costs worked out anew from its event tree.

What statements may say is here: mechanisms, each of which says what its own releases state, and words common to all.
Verification refuses whatever else a file says.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.effect_plan import EffectPlan
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS
from torchdpcate.estimators.rules.plan import RulePlan
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS, stated_mechanism
from torchdpcate.plan import PLANS, StatedPlan
from torchdpcate.privacy.accounting import EventCount
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.filters import stated_cost
from torchdpcate.privacy.guarantee import Level, is_library_class
from torchdpcate.registry import modules_with
from torchdpcate.release.blocks import Block
from torchdpcate.release.combination import COMBINED
from torchdpcate.release.combined import SitesRelease
from torchdpcate.release.statement import (
    ASSUMPTIONS,
    LIBRARIES,
    NOT_PROTECTED,
    PrivacyStatement,
    accountant_of,
    adjacency_of,
    bounds_of,
    claim_sentence,
    unit_words,
)


@dataclass(frozen=True)
class Known:
    """What releases by a mechanism may be.

    Attributes:
        highest: The strongest level that any of them has.
        kinds: Kinds of release that it makes.
    """

    highest: Level
    kinds: tuple[str, ...]


@cache
def _import_plans() -> None:
    """Import the modules of estimators that declare a plan, which makes it known by its name."""
    for module in modules_with(r"^class \w+\(\w*Plan\b", "torchdpcate.estimators"):
        import_module(module)


def plan_of(name: str) -> type[StatedPlan[Any]] | None:
    """Return the plan of the mechanism that statements call so; None if there is none."""
    _import_plans()
    if stated_mechanism(name) is not None:
        return RulePlan
    return PLANS.get(name) or (EffectPlan if name in MECHANISMS else None)


def plan_names() -> tuple[str, ...]:
    """Return all names by which statements call mechanisms of the library."""
    _import_plans()
    rules = (f"{way}_{kind}" for way, mechanism in RULE_MECHANISMS.items() for kind in mechanism.kinds)
    plans = (name for name, plan in PLANS.items() if is_library_class(plan))
    return tuple(dict.fromkeys([*plans, *MECHANISMS, *rules]))


def stated(name: str) -> Known | None:
    """Return what releases by the mechanism of this name may be; None if there is none: it may claim nothing.

    A mechanism that is no class of the library, registered from outside, is conditional at most.
    """
    if name == COMBINED:
        return Known(Level.CERTIFIED, (SitesRelease.kind,))
    plan = plan_of(name)
    if plan is None:
        return None
    maker = stated_mechanism(name) or (MECHANISMS[name] if plan is EffectPlan else plan)
    says: Any = maker if plan is EffectPlan else plan
    own = is_library_class(maker if isinstance(maker, type) else type(maker))
    conditional = not own and says.level == Level.CERTIFIED
    return Known(Level.CONDITIONAL if conditional else says.level, says.kinds)


_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,40}")
_LEVELS = list(Level)


def statement_problems(privacy: PrivacyStatement, kind: str, domain: Domain) -> Iterator[str]:
    """Return what is wrong in a statement whose costs fit together, by what every release of the library says.

    Args:
        privacy: The statement.
        kind: Kind of its release.
        domain: Of the release's schema.
    """
    known = stated(privacy.mechanism)
    if known is None:
        if privacy.claims or privacy.level != Level.HEURISTIC:
            yield f"mechanism {privacy.mechanism!r} is none of the library's, so it may claim nothing"
    else:
        if kind not in known.kinds:
            yield f"mechanism {privacy.mechanism!r} makes no release of {kind}"
        if _rank(privacy.level) < _rank(known.highest):
            yield f"mechanism {privacy.mechanism!r} is {known.highest} at most, but the level is {privacy.level}"
        if not privacy.private_noise and privacy.public:
            yield "the noise had a fixed seed, yet it states constants"
    weak = [charge for charge in privacy.charges if charge.level is Level.CONDITIONAL]
    # another release from the same records may have made the total conditional; it states its conditions itself
    own = [c for c in weak if c.purpose is not Purpose.RELEASE or c.is_release(privacy.mechanism)]
    if privacy.claims and not privacy.conditions and (own or (privacy.level == Level.CONDITIONAL and not weak)):
        yield "the level is conditional, but no condition is stated"
    if privacy.claims and privacy.conditions and privacy.level == Level.CERTIFIED:
        yield "the level is certified, but a condition is stated"
    if set(privacy.versions) != set(LIBRARIES) or not all(map(_VERSION.fullmatch, privacy.versions.values())):
        yield "its versions are not those of the libraries that make releases"
    needed = {
        "assumptions": list(ASSUMPTIONS) if privacy.private_noise else [],
        "not_protected": list(NOT_PROTECTED),
        "accountant": accountant_of(privacy.versions.get("dp-accounting", "")) if privacy.claims else {},
        "bounds_origin": domain.origin,
        "bounds": bounds_of(domain),
    }
    for name, words in needed.items():
        if getattr(privacy, name) != words:
            yield f"its {name.replace('_', ' ')} is not what a release of the library says"


# Closed forms are good to the first, Fourier transforms of another machine to the second.
_CLOSED, _CONVOLVED = 1e-9, 1e-6
# More than any run or combination has, and at most about half a minute: a sampled event takes half a second.
_MOST_EVENTS, _MOST_CHARGES, _MOST_SAMPLED = 10**7, 1000, 16  # of one block
_MOST_IN_ALL, _MOST_SAMPLED_IN_ALL = 4000, 32


def size_problems(statements: Sequence[PrivacyStatement]) -> list[str]:
    """Return why the costs of statements are more than is worked out, before any of them is.

    Args:
        statements: That of a release, or those of all sites of a combination.
    """
    blocks = [block for privacy in statements for block in privacy.blocks]
    charges = sum(len(block.charges) for block in blocks)
    sampled = sum(len({c.event for c in block.charges if isinstance(c.event, DPSGDEvent)}) for block in blocks)
    if charges <= _MOST_IN_ALL and sampled <= _MOST_SAMPLED_IN_ALL:
        return []
    return [
        f"its blocks count {charges:,} charges and {sampled:,} different sampled events; at most {_MOST_IN_ALL:,} and "
        f"{_MOST_SAMPLED_IN_ALL} are worked out"
    ]


def check_statement(privacy: PrivacyStatement) -> tuple[list[tuple[str, str]], list[str]]:
    """Work out anew what a statement says of itself.

    Returns:
        What was checked and what came out; and what does not agree, one sentence each.
    """
    findings, problems = _accounting(privacy)
    problems += [*_level(privacy), *_words(privacy)]
    return [*findings, ("level", f"{privacy.headline}; no charge is weaker")], problems


def _accounting(privacy: PrivacyStatement) -> tuple[list[tuple[str, str]], list[str]]:
    """Findings and problems of the costs."""
    if not privacy.claims:
        return [("accounting", "nothing is claimed, so there is nothing to recompute")], list(_unclaimed(privacy))
    if problems := size_problems([privacy]):
        return [], problems
    findings, problems = [], []
    for block in privacy.blocks:
        finding, wrong = _block(block)
        findings.append((f"block {block.name}", finding))
        problems += wrong
    largest = {
        name: max((v for v in (getattr(block, name) for block in privacy.blocks) if v is not None), default=0.0)
        for name in ("epsilon", "delta")
    }
    unit = privacy.protected
    needed = unit.cost(largest["epsilon"], largest["delta"])
    by = f" is, for the {unit.records} records of a {unit.name}," if unit.is_person else " is"
    for (name, value), stated in zip(zip(largest, needed, strict=True), (privacy.epsilon, privacy.delta), strict=True):
        complete = all(getattr(block, name) is not None for block in privacy.blocks)
        if complete and stated is not None and not math.isclose(stated, value, rel_tol=_CLOSED):
            problems.append(f"{name} = {stated:.10g} is claimed, but the largest of a block{by} {value:.10g}")
    if not privacy.blocks:
        problems.append("a claim without any block of records")
    total = f"the largest of the blocks: epsilon = {largest['epsilon']:.6g} at delta = {largest['delta']:g}"
    if unit.is_person:
        total += f" by record; by {unit.name} with {unit.records}: {privacy.epsilon:.6g} at {privacy.delta:g}"
    findings.append(("total", total))
    return findings, problems


def _unclaimed(privacy: PrivacyStatement) -> Iterator[str]:
    """What would read like a claim where there is none."""
    numbers = ("epsilon", "delta", "naive_epsilon")
    if any(getattr(block, name) is not None for block in privacy.blocks for name in numbers):
        yield "no epsilon is claimed, yet there are numbers that read like a claim"
    if any(charge.event is not None for charge in privacy.charges):
        yield "no epsilon is claimed, yet there are events to compose"


def _block(block: Block) -> tuple[str, list[str]]:
    """Finding and problems of one block: its events composed anew at its delta."""
    name, delta = block.name, block.delta
    events = [(c.event, c.count, c.later) for c in block.charges if c.event is not None and c.count is not None]
    if len(events) < len(block.charges):
        return "", [f"block {name!r} has a charge without event or count"]
    if delta is None or block.epsilon is None or block.naive_epsilon is None:
        return "", [f"block {name!r} does not say what it cost"]
    charges = [(event, count) for event, count, _ in events]
    sampled = {event for event, _ in charges if isinstance(event, DPSGDEvent)}
    counted = sum(count for _, count in charges)
    if counted > _MOST_EVENTS or len(charges) > _MOST_CHARGES or len(sampled) > _MOST_SAMPLED:
        return "", [f"block {name!r} counts more events than can be composed"]
    try:
        found = dict(zip(("epsilon", "naive_epsilon"), stated_cost(events, delta), strict=True))
    except (InputError, ArithmeticError, ValueError, MemoryError) as error:
        return "", [f"block {name!r} has events that do not compose ({error})"]
    problems = []
    for key, cost in found.items():
        stated = getattr(block, key)
        problem = _compare(stated, cost, _tolerance(charges))
        if problem:
            problems.append(f"block {name!r} claims {key} = {stated:.10g} at delta = {delta:g}, {problem}")
    weakest = max((c.level for c in block.charges if c.count), key=_rank, default=Level.CERTIFIED)
    if block.level is not None and block.level != weakest:
        problems.append(f"block {name!r} is called {block.level}, but its weakest charge is {weakest}")
    tree = ", ".join(f"{count:,} x {event.kind}" for event, count in charges)
    return f"epsilon = {found['epsilon']:.6g} at delta = {delta:g} recomputed from {tree or 'no event'}", problems


def _tolerance(charges: Sequence[EventCount]) -> float:
    return _CONVOLVED if len(charges) > 1 or any(isinstance(e, DPSGDEvent) or n > 1 for e, n in charges) else _CLOSED


def _compare(stated: float, found: float, tolerance: float) -> str | None:
    """What is wrong with a stated cost."""
    if not math.isfinite(found) or stated < found * (1 - tolerance):
        return f"but its events cost {found:.10g}"
    if stated > found * (1 + tolerance):
        return f"but its events cost only {found:.10g}"
    return None


def _level(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of the level: never stronger than a charge, nor than the conditions allow."""
    charges = [(charge.level, charge.words) for charge in privacy.charges]
    weakest, label = max(charges, key=lambda charge: _rank(charge[0]), default=(Level(privacy.level), ""))
    fails = any(condition["holds"] is False for condition in privacy.conditions)
    # a conditional mechanism whose condition fails is charged as a heuristic, and claims nothing
    excused = privacy.level == Level.CONDITIONAL and fails and not privacy.claims
    if _rank(privacy.level) < _rank(weakest) and not excused:
        yield f"the level is {privacy.level}, but the charge {label!r} is {weakest}"
    if privacy.claims and charges and not privacy.conditions and _rank(privacy.level) > _rank(weakest):
        yield f"the level is {privacy.level}, but no charge is weaker than {weakest}, and no condition is stated"
    if privacy.level == Level.CERTIFIED and any(c["holds"] is not True for c in privacy.conditions):
        yield "the level is certified, but a condition is open or fails"
    if privacy.claims and privacy.level == Level.HEURISTIC:
        yield "the level is heuristic, yet epsilon is claimed"
    if privacy.claims and fails:
        yield "a condition fails, yet epsilon is claimed"
    if privacy.claims:
        yield from (f"the charge {c.words!r} is stated with a count of 0" for c in privacy.charges if c.count == 0)
    if not privacy.private_noise and (privacy.claims or privacy.level != Level.HEURISTIC):
        yield "the noise had a fixed seed, yet something is claimed"


def _words(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of the sentences and of n."""
    if privacy.epsilon is None or privacy.delta is None:
        denies = "no privacy guarantee" in privacy.claim or privacy.claim.startswith("NOT PRIVATE")
        if not denies or ")-differentially private" in privacy.claim:
            yield f"nothing is claimed, but the sentence is {privacy.claim!r}"
    elif privacy.claim != claim_sentence(privacy.epsilon, privacy.delta, privacy.level, privacy.protected):
        yield f"the sentence {privacy.claim!r} does not say the epsilon, delta and level beside it"
    if privacy.n != sum(block.n for block in privacy.blocks):
        yield f"n = {privacy.n}, but the blocks do not add up to it"
    unit = privacy.protected
    if (privacy.adjacency, privacy.unit) != (adjacency_of(unit), unit_words(unit)):
        yield f"adjacency or unit of privacy is not that of the accountant (replace one {unit.name})"
    if privacy.n % unit.records:
        yield f"n = {privacy.n} is no multiple of the {unit.records} records that each {unit.name} has"


def _rank(level: str) -> int:
    return _LEVELS.index(Level(level))
