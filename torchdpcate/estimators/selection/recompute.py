"""What a statement of a chosen policy may say, and whether it names who pays and its constants agree."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchdpcate.candidates.functions import FunctionPolicies
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.estimators.selection.composed import AutoScores, ComposedScores
from torchdpcate.estimators.selection.recompute_centred import centred_problems
from torchdpcate.estimators.selection.recompute_composed import composed_problems
from torchdpcate.nuisance.arms.base import ScoreSource
from torchdpcate.nuisance.arms.by_name import GUARANTEES
from torchdpcate.nuisance.arms.centred import CentredNuisances
from torchdpcate.privacy.charge import ARMS, Charge, Purpose
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.selection_mechanisms import SELECTIONS
from torchdpcate.release.policy import NUISANCE, SCORING, PolicyRelease
from torchdpcate.release.release import Release

_NEEDS = ("learner", "nuisance_guarantee", "policies", "actions", "overlap", "range_sensitivity")

_LAST_PLACES = 1e-12  # of a product


@dataclass(frozen=True)
class PolicyChoice:
    """The choice of a policy by a mechanism of selection, as verification sees it.

    Attributes:
        name: Name of the mechanism.
    """

    name: str

    @property
    def states(self) -> Stated:
        """What statements of its releases may say."""
        own = {name for guarantee in GUARANTEES.values() for name in guarantee.states}
        return Stated(
            Level.CERTIFIED,
            (PolicyRelease.kind,),
            frozenset(_NEEDS),
            frozenset(("split", "seed", *own)),
            ("row by row", "public nuisances"),
            SELECTIONS[self.name].formula,
        )

    def recompute(self, release: Release) -> Iterator[str]:
        """Return what does not follow from public facts; see ``ReleaseMechanism``."""
        assert isinstance(release, PolicyRelease)
        public = release.privacy.public
        name = public["nuisance_guarantee"]
        if name not in GUARANTEES or name == AutoScores.guarantee:
            yield f"its nuisance guarantee is called {name}, which is none"
            return
        guarantee = GUARANTEES[name]
        yield from _payments(release, guarantee)
        if public["actions"] != list(release.actions):
            yield "its actions are not those of the statement"
            return
        yield from _constants(release)
        if name == ComposedScores.guarantee:
            yield from composed_problems(release)
        if name == CentredNuisances.guarantee:
            yield from centred_problems(release)
        functions = isinstance(release.policy, FunctionPolicies) or guarantee.level != Level.CERTIFIED
        if functions and release.privacy.level == Level.CERTIFIED:
            yield "it rests on Python functions, which nobody can prove to look at one record at a time"


def _payments(release: PolicyRelease, guarantee: type[ScoreSource]) -> Iterator[str]:
    privacy, blocks = release.privacy, (NUISANCE, SCORING) if guarantee.trains else (SCORING,)
    charges = {block.name: block.charges for block in privacy.blocks}
    if set(charges) != set(blocks):
        yield f"its blocks are not those of nuisance_guarantee = {guarantee.guarantee}"
        return
    own = Charge(Purpose.RELEASE, privacy.mechanism)
    paid = {name: [(c.event, c.count) for c in charges[name] if c.charge == own] for name in blocks}
    if any(len(charges) > 1 or any(count != 1 for _, count in charges) for charges in paid.values()) or (
        any(c.purpose is Purpose.RELEASE and c.charge != own for block in charges.values() for c in block)
    ):
        yield "it was charged for more than one choice"
    if not paid[SCORING] or (guarantee.moves_all_scores and not _pays_share(paid, _choice_share(privacy.public))):
        yield "a block whose records move the choice did not pay for it"
    purposes = {charge.purpose for block in charges.values() for charge in block}
    if guarantee is not CentredNuisances and Purpose.OUTCOME in purposes:
        yield "it was charged for a centre of the outcome, which its scores do not have"
    if guarantee is ComposedScores:
        return
    fitted = any(c.purpose is Purpose.NUISANCES and c.charge != ARMS for c in charges.get(NUISANCE, ()))
    if guarantee.trains and not guarantee.moves_all_scores and not fitted:
        yield "its nuisances are called private, but no charge is for their training"


def _choice_share(public: Mapping[str, Any]) -> float:
    """Return what the training block pays over what the scoring block pays: as much where none is stated."""
    share = public.get("choice_share", 1.0)
    return float(share) if isinstance(share, int | float) and 0 < share <= 1 else math.nan


def _pays_share(paid: Mapping[str, list[tuple[Event | None, int | None]]], share: float) -> bool:
    """Return whether the training block paid a share of what the scoring block paid, event by event."""
    pairs = list(zip(paid[NUISANCE], paid[SCORING], strict=False))
    return len(paid[NUISANCE]) == len(paid[SCORING]) and all(
        isinstance(mine, PureEvent)
        and isinstance(other, PureEvent)
        and count == others
        and mine.epsilon >= share * other.epsilon * (1 - _LAST_PLACES)
        for (mine, count), (other, others) in pairs
    )


def _constants(release: PolicyRelease) -> Iterator[str]:
    public, domain = release.privacy.public, release.domain
    if public["overlap"] != domain.least_propensity and public["overlap"] != domain.overlap:
        yield "its overlap is not that of its schema"
    lists = [value for key, value in public.items() if isinstance(value, list) and key != "constants"]
    if any(len(value) > len(release.actions) for value in lists):
        yield "its public constants hold a list of more than a number for each action"
    names = ("range_sensitivity", "score_spread", "indirect_sensitivity", "policies")
    numbers = [public.get(name, 0.0) for name in names]
    if not all(isinstance(number, int | float) for number in numbers):
        yield "its constants are no numbers"
        return
    range_sensitivity, own, indirect, policies = numbers
    share = _choice_share(public)
    if not range_sensitivity >= max(2 * own, indirect / share) or not range_sensitivity > 0:
        yield "its range sensitivity is below what its own constants need"
    if policies < 1:
        yield "it was chosen among no policies"


CHOICES = {name: PolicyChoice(name) for name in SELECTIONS}
"""Choices of a policy by the name of their mechanism."""
