"""What effects by a second stage were charged before it: nuisances, a threshold, choices; and their blocks."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.names import is_learner, score_of
from torchdpcate.estimators.cate.splits import FOLDS, NUISANCE, SECOND_STAGE
from torchdpcate.nuisance.convex_model import ConvexNuisances
from torchdpcate.nuisance.plan import batch_problems
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.charge import DP_SGD, JOINT, MEDIAN, SCREENING, Purpose
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.release.blocks import Block
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement

TWO_FOLDS = "two folds, cross-fitted"
"""How a statement says that there are two folds."""

_SPENT = 0.99  # of what the second stage costs, which the nuisances of as large a budget cost at least
_POINTS = 200  # of the public grid that private thresholds are chosen from, unless a user gave another
_DECADES = 3
_CLOSE = 1e-9
_WORDS = ("names", "origin", "propensity")  # of a domain, which nuisances need not repeat


def first_stage_problems(release: FunctionRelease | QueryRelease) -> Iterator[str]:
    """Return what is wrong with what a release was charged before it, and with the sizes of its blocks.

    Args:
        release: The release, as read from its file; it claims something.
    """
    privacy, facts = release.privacy, release.facts()
    try:
        yield from _unpaid(release, facts)
        yield from _order(privacy)
        yield from _sizes(privacy)
        yield from _domains(release, facts)
        yield from _first_stage(release, facts)
    except (InputError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        yield "its split, its blocks and its charges are not those of one release"


def _unpaid(release: FunctionRelease | QueryRelease, facts: Mapping[str, Any]) -> Iterator[str]:
    """Problems of released nuisances, and of chosen columns, that no charge covers."""
    charges = [charge.charge for charge in release.privacy.charges]
    held = any(name.startswith("nuisances.") for name in release.tensors())
    if held and not any(charge.purpose is Purpose.NUISANCES for charge in charges):
        yield "it holds nuisances, but no charge is for their training"
    if facts.get("columns") and SCREENING not in charges:
        yield "it uses chosen columns, but no charge is for choosing them"


def _order(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of the order of charges: what is trained or found first is charged first, and releases last."""
    for block in privacy.blocks:
        ranks = [list(Purpose).index(charge.purpose) for charge in block.charges]
        trained = [charge.charge for charge in block.of(Purpose.NUISANCES)]
        median_first = MEDIAN not in trained or JOINT not in trained or trained.index(MEDIAN) < trained.index(JOINT)
        if any(run.charge == JOINT and not getattr(run.event, "delta", 0.0) for run in block.charges):
            yield f"block {block.name!r} trained convex nuisances at delta = 0, which none are"
        if ranks != sorted(ranks) or not median_first:
            yield f"the charges of block {block.name!r} are not in the order in which they are made"


def _domains(release: FunctionRelease | QueryRelease, facts: Mapping[str, Any]) -> Iterator[str]:
    """Problems of the bounds that nuisances repeat: those of the columns that they see."""
    nuisances = facts.get("nuisances")
    if not nuisances:
        return
    columns = facts.get("columns") or (facts.get("head") or {}).get("columns")
    domain = release.domain if columns is None else release.domain.select(list(map(int, columns)))
    needed = {name: value for name, value in domain.to_dict().items() if name not in _WORDS}
    for config in nuisances.get("members", [nuisances]):
        stated = {name: value for name, value in config["domain"].items() if name not in _WORDS}
        if stated != needed:
            yield "its nuisances have other bounds than its schema"


def _sizes(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of names and sizes of blocks against the split that the statement has."""
    sizes, split = {block.name: block.n for block in privacy.blocks}, privacy.public["split"]
    pair = FOLDS if split == TWO_FOLDS else (NUISANCE, SECOND_STAGE)
    if any(n < 1 for n in sizes.values()):
        yield "a block holds no record"
    if tuple(sizes) != pair:
        yield f"its blocks are not {' and '.join(pair)}, as its split and mechanism say"
        return
    share = 0.5 if split == TWO_FOLDS else as_number(split)
    if not 0 < share < 1 or sizes[pair[0]] != round(share * privacy.n):
        yield f"its blocks do not hold {share:g} and {1 - share:g} of n = {privacy.n} records, as its split says"


def _first_stage(release: FunctionRelease | QueryRelease, facts: Mapping[str, Any]) -> Iterator[str]:
    """Problems of what the nuisances of effects cost: each fold's training and, where it is private, the threshold."""
    privacy = release.privacy
    folds = FOLDS if privacy.public["split"] == TWO_FOLDS else (NUISANCE,)
    blocks = [block for block in privacy.blocks if block.name in folds]
    stated = facts.get("nuisances", {})
    members = stated.get("members", [stated]) if stated else [None] * len(blocks)
    if len(members) != len(blocks):
        yield "it does not hold nuisances of each block that trained some"
        return
    for block, config in zip(blocks, members, strict=True):
        yield from _trained(block, None if config is None else config.get("kind"), config is not None)
    private = [block.of(Purpose.THRESHOLD) for block in blocks]
    if not all(private) and (any(private) or _is_private(release)):
        yield "its threshold is a private one, but no charge is for it"
    elif private and all(private) and not _may_be_chosen(release):
        yield "its threshold was charged, but is outside the grid that its bounds give"
    yield from _cheaper(privacy)


def _trained(block: Block, kind: str | None, held: bool) -> Iterator[str]:
    """Problems of the training of one block's nuisances.

    Args:
        block: The block.
        kind: Of the nuisances, as the file has it; None for networks, or where none are held.
        held: Whether the file holds them.
    """
    trained = block.of(Purpose.NUISANCES)
    charges = [charge.charge for charge in trained]
    convex = charges.count(MEDIAN) == charges.count(JOINT) == 1
    if not trained:
        yield f"block {block.name!r} trained nuisances, but no charge is for their training"
    elif held and kind == ConvexNuisances.kind and not convex:
        yield f"block {block.name!r} trained convex nuisances, but was not charged for median and objective"
    elif held and kind is None and charges.count(DP_SGD) != 1:
        yield f"block {block.name!r} trained networks, but was not charged for one run of DP-SGD"
    for run in trained:
        if run.charge != DP_SGD:
            continue
        if not isinstance(run.event, DPSGDEvent) or run.count is None:
            raise ValueError("networks are trained by DP-SGD")
        yield from batch_problems("its nuisances", run.event.sampling_rate, block.n)
        if run.count < 1 or run.count % round(1 / run.event.sampling_rate):
            yield f"block {block.name!r} was charged for {run.count} steps, which are no full epochs"


def _may_be_chosen(release: FunctionRelease | QueryRelease) -> bool:
    """Whether the threshold is one that a private choice may give, from a grid of any number of points."""
    stated, learner = release.privacy.public.get("threshold"), release.privacy.public.get("learner")
    if not isinstance(stated, float) or not is_learner(learner):
        return True
    target = score_of(str(learner)).bounds(release.domain).target
    return 10.0**-_DECADES * (1 - _CLOSE) <= stated / target <= 1 + _CLOSE


def _is_private(release: FunctionRelease | QueryRelease) -> bool:
    """Whether the threshold is one of the grid of private ones; its last point might be a user's choice too."""
    stated, learner = release.privacy.public.get("threshold"), release.privacy.public.get("learner")
    if not isinstance(stated, float) or not is_learner(learner):
        return False
    target = score_of(str(learner)).bounds(release.schema.domain).target
    place = (math.log10(stated / target) / _DECADES + 1) * (_POINTS - 1)
    return -0.5 < place < _POINTS - 1.5 and abs(place - round(place)) <= _POINTS * _CLOSE


def _cheaper(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of what nuisances cost: they spend all of a budget of which the other block spends at most all."""
    spent = {block.name: as_number(block.epsilon) for block in privacy.blocks}
    for other in spent.keys() & {SECOND_STAGE}:
        if NUISANCE in spent and spent[NUISANCE] < _SPENT * spent[other]:
            yield (
                f"block {NUISANCE!r} cost epsilon = {spent[NUISANCE]:.6g} and block {other!r} "
                f"{spent[other]:.6g}, but nuisances spend all of a block's budget"
            )
