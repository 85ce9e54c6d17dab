"""Verification: does a release's statement follow from its own event tree, and is the file as it was written?"""

import json
import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError, ReleaseFileError, VerificationError
from torchdpcate.nuisance.screening import SCREENING
from torchdpcate.privacy import DPSGDEvent, Level, event_from_dict
from torchdpcate.privacy.accounting import Charge
from torchdpcate.privacy.filters import stated_cost
from torchdpcate.release.account import CANDIDATE
from torchdpcate.release.digest import NO_SIGNATURE, SUMS_FILE, check_sums
from torchdpcate.release.file import ReleaseFile, read_release_file
from torchdpcate.release.plug_in import PlugIn
from torchdpcate.release.policy import GUESS
from torchdpcate.release.statement import ADJACENCY, UNIT, PrivacyStatement, claim_sentence
from torchdpcate.release.verify_average import average_problems
from torchdpcate.release.verify_policy import policy_problems

# Closed forms are good to the first, Fourier transforms of another machine to the second; another version of the
# accountant may discretise otherwise.
_CLOSED, _CONVOLVED, _OTHER_VERSION = 1e-9, 1e-6, 1e-3
# More than any run, and at most about half a minute: a sampled event takes most of a second.
_MOST_EVENTS, _MOST_CHARGES, _MOST_SAMPLED = 10**7, 1000, 16
# Settings of a rule that cost something, and how their charge begins.
_BOUGHT = (
    ("weights", "private", "weights: private"),
    ("outcome", "bought_residual", "outcome: "),
    ("guess", "bought", GUESS),
)
_LEVELS = list(Level)  # from the strongest to the weakest


def verify_release(path: str | Path) -> list[tuple[str, str]]:
    """Check a release file against itself; whether the mechanisms did what it says is for audits to ask.

    Recomputed are the cost of every block from its events, the total over the blocks, the level, the sentence of
    the claim, and the checksums of the file and of a ``SHA256SUMS`` beside it. A checksum is no signature: a file
    that was made up as a whole passes.

    Args:
        path: Release file.

    Returns:
        What was checked and what came out, for people to read.

    Raises:
        ReleaseFileError: No such file, a damaged one, one of a newer format, or not a release.
        VerificationError: The file was changed, or does not agree with itself; says where.
    """
    file = read_release_file(path)
    problems: list[str] = [] if file.fault is None else [file.fault]
    try:
        release = file.build()
    except ReleaseFileError:
        if not problems:
            raise
        raise VerificationError(f"{file.path}: changed or damaged: {problems[0]}") from None
    privacy = release.privacy
    stated, wrong = check_statement(privacy)
    kind = (*policy_problems(file, privacy), *average_problems(release))
    findings, problems = [_checksum(file), *stated], [*problems, *wrong, *_unpaid(file, privacy), *kind]
    if (file.path.parent / SUMS_FILE).is_file():
        beside, changed = _sums(file.path)
        findings.append(beside)
        problems += changed
    if problems:
        raise VerificationError(f"{file.path}: changed or inconsistent: {'; '.join(problems)}")
    return findings


def check_statement(privacy: PrivacyStatement) -> tuple[list[tuple[str, str]], list[str]]:
    """Work out anew what a statement says of itself.

    Returns:
        What was checked and what came out; and what does not agree, one sentence each.
    """
    findings, problems = _accounting(privacy)
    problems += [*_level(privacy), *_words(privacy), *_own_charge(privacy)]
    return [*findings, ("level", f"{privacy.headline}; no charge is weaker")], problems


def _checksum(file: ReleaseFile) -> tuple[str, str]:
    if file.stated_digest is None:
        return "checksum", f"none: a file of format version {file.version}, so a changed one cannot be told"
    return "checksum", f"matches ({NO_SIGNATURE}): {file.stated_digest}"


def _sums(path: Path) -> tuple[tuple[str, str], list[str]]:
    report = check_sums(path.parent)
    text = f"{len(report.matching)} files match"
    text += f"; not here: {', '.join(report.absent)}" if report.absent else ""
    text += f"; not listed: {', '.join(report.unlisted)}" if report.unlisted else ""
    return (SUMS_FILE, text), [f"{name} is not as in {SUMS_FILE}" for name in report.changed]


def _accounting(privacy: PrivacyStatement) -> tuple[list[tuple[str, str]], list[str]]:
    """Findings and problems of the costs."""
    if not privacy.claims:
        return [("accounting", "nothing is claimed, so there is nothing to recompute")], list(_unclaimed(privacy))
    findings, problems = [], []
    same = privacy.versions.get("dp-accounting") == version("dp-accounting")
    for block in privacy.blocks:
        finding, wrong = _block(block, same)
        findings.append((f"block {block['name']}", finding))
        problems += wrong
    for name, stated in (("epsilon", privacy.epsilon), ("delta", privacy.delta)):
        values = [block.get(name) for block in privacy.blocks]
        largest = max((v for v in values if v is not None), default=0.0)
        if None not in values and stated is not None and not math.isclose(stated, largest, rel_tol=_CLOSED):
            problems.append(f"{name} = {stated:.10g} is claimed, but the largest of a block is {largest:.10g}")
    if not privacy.blocks:
        problems.append("a claim without any block of records")
    findings.append(
        ("total", f"the largest of the blocks: epsilon = {privacy.epsilon:.6g} at delta = {privacy.delta:g}")
    )
    return findings, problems


def _unclaimed(privacy: PrivacyStatement) -> Iterator[str]:
    """What would read like a claim where there is none."""
    numbers = ("epsilon", "delta", "naive_epsilon")
    if any(block.get(name) is not None for block in privacy.blocks for name in numbers):
        yield "no epsilon is claimed, yet there are numbers that read like a claim"
    if any("event" in charge for block in privacy.blocks for charge in block["charges"]):
        yield "no epsilon is claimed, yet there are events to compose"


def _block(block: dict[str, Any], same: bool) -> tuple[str, list[str]]:
    """Finding and problems of one block: its events composed anew at its delta."""
    name, delta = block["name"], block.get("delta")
    if any("event" not in charge or "count" not in charge for charge in block["charges"]):
        return "", [f"block {name!r} has a charge without event or count"]
    if delta is None or block.get("epsilon") is None or block.get("naive_epsilon") is None:
        return "", [f"block {name!r} does not say what it cost"]
    charges = [(event_from_dict(charge["event"]), charge["count"]) for charge in block["charges"]]
    sampled = {event for event, _ in charges if isinstance(event, DPSGDEvent)}
    counted = sum(count for _, count in charges)
    if counted > _MOST_EVENTS or len(charges) > _MOST_CHARGES or len(sampled) > _MOST_SAMPLED:
        return "", [f"block {name!r} counts more events than can be composed"]
    try:
        found = dict(zip(("epsilon", "naive_epsilon"), stated_cost(block["charges"], delta), strict=True))
    except (InputError, ArithmeticError, ValueError, MemoryError) as error:
        return "", [f"block {name!r} has events that do not compose ({error})"]
    problems = []
    for key, cost in found.items():
        problem = _compare(block[key], cost, _tolerance(charges, same), same)
        if problem:
            problems.append(f"block {name!r} claims {key} = {block[key]:.10g} at delta = {delta:g}, {problem}")
    weakest = max((charge["level"] for charge in block["charges"] if charge["count"]), key=_rank, default="certified")
    if _rank(block.get("level", weakest)) < _rank(weakest):
        problems.append(f"block {name!r} is called {block['level']}, but one of its charges is {weakest}")
    by = "" if same else "; made with another version of the accountant"
    events = ", ".join(f"{count:,} x {event.kind}" for event, count in charges)
    return f"epsilon = {found['epsilon']:.6g} at delta = {delta:g} recomputed from {events or 'no event'}{by}", problems


def _tolerance(charges: Sequence[Charge], same: bool) -> float:
    if not same:
        return _OTHER_VERSION
    return _CONVOLVED if len(charges) > 1 or any(isinstance(e, DPSGDEvent) or n > 1 for e, n in charges) else _CLOSED


def _compare(stated: float, found: float, tolerance: float, same: bool) -> str | None:
    """What is wrong with a stated cost; an accountant of another version may have found it a little larger."""
    if not math.isfinite(found) or stated < found * (1 - tolerance):
        return f"but its events cost {found:.10g}"
    if stated > found * (1 + tolerance) and same:
        return f"but its events cost only {found:.10g}"
    return None


def _level(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of the level: never stronger than a charge, nor than the conditions allow."""
    charges = [(charge["level"], charge["label"]) for block in privacy.blocks for charge in block["charges"]]
    weakest, label = max(charges, key=lambda charge: _rank(charge[0]), default=(privacy.level, ""))
    fails = any(condition["holds"] is False for condition in privacy.conditions)
    # a conditional mechanism whose condition fails is charged as a heuristic, and claims nothing
    excused = privacy.level == Level.CONDITIONAL and fails and not privacy.claims
    if _rank(privacy.level) < _rank(weakest) and not excused:
        yield f"the level is {privacy.level}, but the charge {label!r} is {weakest}"
    if privacy.level == Level.CERTIFIED and any(c["holds"] is not True for c in privacy.conditions):
        yield "the level is certified, but a condition is open or fails"
    if privacy.claims and privacy.level == Level.HEURISTIC:
        yield "the level is heuristic, yet epsilon is claimed"
    if privacy.claims and fails:
        yield "a condition fails, yet epsilon is claimed"
    if not privacy.private_noise and (privacy.claims or privacy.level != Level.HEURISTIC):
        yield "the noise had a fixed seed, yet something is claimed"


def _own_charge(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of what should have been charged: the mechanism's own run, and nothing that never happened."""
    if not privacy.claims:
        return
    charges = [charge for block in privacy.blocks for charge in block["charges"]]
    paid = (f"release by {privacy.mechanism}", f"{CANDIDATE} ")
    own = any(charge["label"].startswith(paid) for charge in charges)
    if not own and privacy.mechanism != PlugIn.name:
        yield f"no charge is for a release by {privacy.mechanism}"
    yield from (f"the charge {c['label']!r} is stated with a count of 0" for c in charges if c.get("count") == 0)


def _unpaid(file: ReleaseFile, privacy: PrivacyStatement) -> Iterator[str]:
    """Released nuisances, and chosen columns, that no charge paid for."""
    charges = [charge for block in privacy.blocks for charge in block["charges"]]
    dp_sgd = any(charge.get("event", {}).get("kind") == "dp_sgd" for charge in charges)
    labels = [charge["label"] for charge in charges]
    fitted = dp_sgd or any(label.startswith("nuisances:") for label in labels)
    if privacy.claims and any(name.startswith("nuisances.") for name in file.tensors) and not fitted:
        yield "it holds nuisances, but no charge is for their training"
    if privacy.claims and json.loads(file.metadata["facts"]).get("columns") and SCREENING not in labels:
        yield "it uses chosen columns, but no charge is for choosing them"
    for name, value, label in _BOUGHT:
        paid = any(charged.startswith((label, f"{CANDIDATE} ")) for charged in labels)
        if privacy.claims and privacy.public.get(name) == value and not paid:
            yield f"its {name} are called {value}, but no charge is for them"
    if privacy.mechanism == PlugIn.name and bool(file.tensors["theta"].any()):
        yield "it is called a plug-in, which has no coefficients of its own, but holds some"


def _words(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of the sentences and of n."""
    if privacy.epsilon is None or privacy.delta is None:
        denies = "no privacy guarantee" in privacy.claim or privacy.claim.startswith("NOT PRIVATE")
        if not denies or ")-differentially private" in privacy.claim:
            yield f"nothing is claimed, but the sentence is {privacy.claim!r}"
    elif privacy.claim != claim_sentence(privacy.epsilon, privacy.delta, privacy.level):
        yield f"the sentence {privacy.claim!r} does not say the epsilon, delta and level beside it"
    if privacy.n != sum(block["n"] for block in privacy.blocks):
        yield f"n = {privacy.n}, but the blocks do not add up to it"
    if (privacy.adjacency, privacy.unit) != (ADJACENCY, UNIT):
        yield "adjacency or unit of privacy is not that of the accountant (replace one record)"


def _rank(level: str) -> int:
    return _LEVELS.index(Level(level))
