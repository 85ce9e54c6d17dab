"""Verification of a chosen policy: does its statement name who pays, and do its constants agree with each other?"""

import json
from collections.abc import Iterator
from typing import Any

from torchdpcate.candidates.functions import FunctionPolicies
from torchdpcate.privacy.charge import ARMS, Charge, Purpose
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.file import ReleaseFile
from torchdpcate.release.policy import NUISANCE, SCORING, PolicyRelease
from torchdpcate.release.statement import PrivacyStatement

_PAYERS = {
    "stability": ((NUISANCE, SCORING), (NUISANCE, SCORING)),
    "private_nuisances": ((NUISANCE, SCORING), (SCORING,)),
    "frozen": ((SCORING,), (SCORING,)),
    "fixed": ((SCORING,), (SCORING,)),
}
"""By certificate: which blocks there are, and which of them pay for the choice."""


def policy_problems(file: ReleaseFile, privacy: PrivacyStatement) -> Iterator[str]:
    """Return what is wrong with the statement of a chosen policy; nothing for other releases.

    Args:
        file: The release's file.
        privacy: Its statement.
    """
    if file.metadata["class"] != PolicyRelease.kind or not privacy.claims:
        return
    certificate = privacy.public.get("certificate")
    if certificate not in _PAYERS:
        yield f"its certificate is called {certificate}, which is none"
        return
    yield from _payments(privacy, certificate)
    facts = json.loads(file.metadata["facts"])
    if privacy.public.get("actions") != facts["actions"]:
        yield "its actions are not those of the statement"
        return
    yield from _constants(privacy.public)
    functions = facts["policy"].get("kind") == FunctionPolicies.kind or certificate == "frozen"
    if functions and privacy.level == Level.CERTIFIED:
        yield "it rests on Python functions, which nobody can prove to look at one record at a time"


def _payments(privacy: PrivacyStatement, certificate: str) -> Iterator[str]:
    blocks, payers = _PAYERS[certificate]
    charges = {block.name: block.charges for block in privacy.blocks}
    if set(charges) != set(blocks):
        yield f"its blocks are not those of certificate = {certificate}"
        return
    own = Charge(Purpose.RELEASE, privacy.mechanism)
    paid = [[(c.event, c.count) for c in charges[name] if c.charge == own] for name in payers]
    if not paid[0] or any(other != paid[0] for other in paid):
        yield "a block whose records move the choice did not pay for it"
    fitted = any(
        isinstance(c.event, DPSGDEvent) or (c.purpose is Purpose.NUISANCES and c.charge != ARMS)
        for c in charges.get(NUISANCE, ())
    )
    if certificate == "private_nuisances" and not fitted:
        yield "its nuisances are called private, but no charge is for their training"


def _constants(public: dict[str, Any]) -> Iterator[str]:
    lists = [value for value in public.values() if isinstance(value, list)]
    if any(len(value) > len(public["actions"]) for value in lists):
        yield "its public constants hold a list of more than a number for each action"
    numbers = [public.get(name, 0.0) for name in ("spread", "score_spread", "spill", "policies")]
    if not all(isinstance(number, int | float) for number in numbers):
        yield "its constants are no numbers"
        return
    spread, own, spill, policies = numbers
    if not spread >= max(2 * own, spill) or not spread > 0:
        yield "its spread is below what its own constants need"
    if policies < 1:
        yield "it was chosen among no policies"
