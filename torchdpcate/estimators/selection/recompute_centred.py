"""What of a choice by scores about a private centre does not follow from its public facts: cost, clip and range."""

import math
from collections.abc import Iterator

from torchdpcate.estimators.recompute import requested_budget
from torchdpcate.estimators.selection.recompute_composed import FEWEST
from torchdpcate.nuisance.arms.centred import CentrePlan, centred_range, centres, clips, on_grid
from torchdpcate.privacy.charge import OUTCOME
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.release.policy import PolicyRelease

_COST = 1e-9


def score_step(n: int, outcome_range: float, overlap: float) -> float:
    """Return the grid of the sums of n scores within R (1/2 + 1/zeta) of the middle of the outcome's bounds.

    Args:
        n: Number of records.
        outcome_range: R.
        overlap: zeta.
    """
    return sum_grid(max(n, FEWEST), outcome_range * (0.5 + 1 / overlap))


def centred_problems(release: PolicyRelease) -> Iterator[str]:
    """Return problems of a choice by centred scores that claims something.

    Its cost follows from n and epsilon; centre and clip are released numbers of public grids; the range follows from
    the clip and the known propensity.

    Args:
        release: The release.
    """
    privacy, public, domain = release.privacy, release.privacy.public, release.domain
    (block,) = privacy.blocks
    budget = requested_budget(block, public["requested_epsilon"], 0.0)
    plan = CentrePlan(privacy.n, budget.epsilon)
    paid = [charge.event for charge in block.charges if charge.charge == OUTCOME]
    if len(paid) != 1 or not isinstance(paid[0], PureEvent):
        yield "its centre was not charged once, as a pure event"
    elif not math.isclose(paid[0].epsilon, plan.cost, rel_tol=_COST):
        yield "its centre was not charged what n and epsilon make it cost"
    if not on_grid(public["centre"], centres(domain)):
        yield "its centre is none of the public candidates"
    if not on_grid(public["clip"], clips(domain) if plan.clip else clips(domain)[:1]):
        yield "its clip is none that n, epsilon and the outcome's range allow"
    known = domain.known_propensity
    if known is None:
        yield "its domain knows no propensity"
        return
    needed = centred_range(public["clip"], known.of_arms.min().item())
    needed += 3 * score_step(privacy.n, domain.outcome_range, public["overlap"])
    if not math.isclose(public["range_sensitivity"], needed, rel_tol=1e-9):
        yield "its range sensitivity does not follow from its clip"
