"""What of a choice by composed scores does not follow from its public facts: plan, charges, clip and range."""

import math
from collections.abc import Iterator

from torchdpcate.composition.summaries import LEAST_SCALE
from torchdpcate.estimators.recompute import CLOSE, requested_budget, same, share_problems, shown
from torchdpcate.estimators.selection.choice_plan import ChoicePlan
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.events import BoundedRangeEvent, PureEvent
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.selection_mechanisms import SELECTIONS, ExponentialMechanism
from torchdpcate.release.policy import PolicyRelease

FEWEST = 8
"""Records from which on a step of the scores' grid is 2^-48 of the largest score, above what float64 is off by."""

_RANGE = 1e-3  # likewise eta, which the accountant's rounding moves by 1e-4 at most


def clipped_range(n: int, clip: float) -> float:
    """Return the range sensitivity of n gains within [-clip, clip] that are rounded to the grid of their sums.

    One record moves two policies apart by 2 C; each of its gains before and after is rounded by half a step at most,
    for either policy, and a step is for the last places.

    Args:
        n: Number of records.
        clip: C.
    """
    return 2 * clip + 3 * sum_grid(max(n, FEWEST), clip)


def composed_problems(release: PolicyRelease) -> Iterator[str]:
    """Return problems of a choice by composed scores that claims something.

    The plan follows from n, domain, budget, the library's size and constants; every charge from the plan; the range of
    the choice from the clip. S and the clip are released numbers, of which their bounds are known.

    Args:
        release: The release.
    """
    privacy, public, domain = release.privacy, release.privacy.public, release.domain
    requested_budget(privacy.blocks[0], public["requested_epsilon"], public["requested_delta"])
    plan = ChoicePlan.from_facts(public, privacy.n, domain)
    facts = plan.facts()
    for name, value in facts.items():
        close = name == "bounded_range" and math.isclose(public[name], value, rel_tol=_RANGE)
        if public[name] != value and not close:
            yield f"{name} = {shown(public[name])} is stated, but the plan makes it {shown(value)}"
    yield from _charges(release, plan)
    scale, clip, y_range = public["residual_scale"], public["clip"], domain.outcome_range
    if plan.composed.binary:
        if not same(scale, y_range):
            yield "its scale is not the range of a binary outcome"
    elif not y_range * LEAST_SCALE * (1 - CLOSE) <= scale <= y_range / 2 * (1 + CLOSE):
        yield f"its scale {scale:.6g} is outside what its plan allows"
    first = plan.first_clip(scale)
    largest = plan.most if plan.clips_by_quantile else first
    if not first * (1 - _RANGE) <= clip <= largest * (1 + _RANGE):
        yield f"its scores are clipped at {clip:.6g}, outside what its plan allows"
    if not math.isclose(public["range_sensitivity"], clipped_range(privacy.n, clip), rel_tol=1e-9):
        yield "its range sensitivity does not follow from its clip"


def _charges(release: PolicyRelease, plan: ChoicePlan) -> Iterator[str]:
    """Problems of what each step was charged against its share, and of what the choice was."""
    (block,) = release.privacy.blocks
    kind_of_steps = (COMPOSED_SCORES.purpose, COMPOSED_SCORES.mechanism)
    steps = [c for c in block.charges if (c.charge.purpose, c.charge.mechanism) == kind_of_steps]
    needed = {step: shares.due(step) for shares in (plan.composed.shares, plan.shares) for step in shares.shares}
    yield from share_problems(steps, needed, plan.composed.shares.cost)
    bounded = issubclass(SELECTIONS[release.privacy.mechanism], ExponentialMechanism)
    kind = BoundedRangeEvent if bounded else PureEvent
    choices = [c.event for c in block.charges if c.is_release(release.privacy.mechanism)]
    if len(choices) != 1 or type(choices[0]) is not kind:
        yield "it was not charged for one choice"
    elif not math.isclose(choices[0].epsilon, plan.range(kind), rel_tol=_RANGE):
        yield "its choice was not charged what its plan leaves for it"
