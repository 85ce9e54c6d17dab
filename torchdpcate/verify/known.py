"""What statements may say: mechanisms, each of which says what its own releases state, and words common to all.

Verification refuses whatever else a file says.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdpcate.estimators.average.centred_sums import CentredSums
from torchdpcate.estimators.average.clipped_scores import ClippedScores
from torchdpcate.estimators.average.difference_in_means import DifferenceInMeans
from torchdpcate.estimators.average.doubly_robust_plan import DoublyRobust
from torchdpcate.estimators.average.horvitz_thompson import HorvitzThompson
from torchdpcate.estimators.average.names import EFFECT_ESTIMATORS
from torchdpcate.estimators.average.plan import BalancingPlan
from torchdpcate.estimators.average.subsample_aggregate import SubsampleAggregate
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS
from torchdpcate.estimators.mechanism import ReleaseMechanism, Stated
from torchdpcate.estimators.rules.mechanisms import STATED_MECHANISMS
from torchdpcate.estimators.selection.recompute import CHOICES
from torchdpcate.estimators.subgroups.plan import SubgroupPlan
from torchdpcate.nuisance.trainer import GPU_ROUNDING
from torchdpcate.plan import PLANS, Plan
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.guarantee import Level, is_library_class
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.composed_rule import ComposedRule
from torchdpcate.release.policy import PolicyRelease
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.statement import TUNING
from torchdpcate.release.statistics import StatisticsRelease

FAMILIES: tuple[Mapping[str, ReleaseMechanism], ...] = (
    MECHANISMS,
    STATED_MECHANISMS,
    CHOICES,
)
"""Mechanisms by the names that statements give them, family by family."""


_PLANNED = (
    *(SubgroupPlan, CentredSums, ClippedScores, DifferenceInMeans),
    *(DoublyRobust, HorvitzThompson, SubsampleAggregate),
)  # whose modules have declared them


def mechanism_of(name: str) -> ReleaseMechanism | None:
    """Return the mechanism that statements call so; None if there is none."""
    return next((family[name] for family in FAMILIES if name in family), None)


def plan_of(name: str) -> type[Plan] | None:
    """Return the plan of the mechanism that statements call so; None if there is none."""
    assert all(plan.name in PLANS for plan in _PLANNED)
    return BalancingPlan if name in EFFECT_ESTIMATORS else PLANS.get(name)


def is_known(name: str) -> bool:
    """Whether statements may call a mechanism so; nothing is imported to answer."""
    return name in PLANS or name in EFFECT_ESTIMATORS or any(name in family for family in FAMILIES)


def stated(name: str) -> Stated | None:
    """Return what releases by the mechanism of this name may state; None if there is none: it may claim nothing.

    A mechanism that is no class of the library, registered from outside, is conditional at most.
    """
    plan = plan_of(name)
    mechanism: Any = plan or mechanism_of(name)
    if mechanism is None:
        return None
    if plan is not None:
        states = Stated(plan.level, plan.kinds, conditions=plan.rests_on)
        mechanism = EFFECT_ESTIMATORS.get(name, plan)  # a readout may be a user's
    else:
        states = mechanism.states
    own = is_library_class(mechanism if isinstance(mechanism, type) else type(mechanism))
    return states if own or states.highest == Level.HEURISTIC else replace(states, highest=Level.CONDITIONAL)


COMMON_CONDITIONS = (
    "estimand",
    "mechanism",
    "learner",
    "score",
    "feature map",
    "loss",
    "outcome",
    "matching",
    "residual model",
    "weights",
    "nuisances",
    "second stage",
    GPU_ROUNDING.name,
)
"""Names of conditions that any release may rest on: what a user brought in place of the library's, and where it ran."""

_EFFECT = (Purpose.NUISANCES, Purpose.SCREENING, Purpose.THRESHOLD, Purpose.TUNING, Purpose.RELEASE)
PURPOSES: Mapping[str, tuple[Purpose, ...]] = {
    **dict.fromkeys((FunctionRelease.kind, QueryRelease.kind, StatisticsRelease.kind), _EFFECT),
    **dict.fromkeys((ComposedRelease.kind, ComposedRule.kind), (Purpose.RELEASE,)),
    RuleRelease.kind: (
        *(Purpose.WEIGHTS, Purpose.OUTCOME, Purpose.RELEASE),
        *(Purpose.CANDIDATE, Purpose.CHOICE, Purpose.CROSS_VALIDATION),
    ),
    PolicyRelease.kind: (Purpose.NUISANCES, Purpose.OUTCOME, Purpose.RELEASE),
}
"""What charges are for, by kind of release."""

CONDITION_KEYS = frozenset(("name", "text", "holds"))
"""What a condition says."""


_SWEEP = (
    r"run [0-9]{1,9} \(counted from 0\) of a sweep over the same records: each run spends a budget of its own, what is "
    r"published of them adds up, and a choice among them by what they showed of these records is paid for nowhere"
)
_COST = r"epsilon = [0-9.e+-]{1,20}, delta = [0-9.e+-]{1,20}"
SHARED = (
    rf"run ([0-9]{{1,9}}) of a ledger over the same records: in all ({_COST}|not known) spent, of at most {_COST}, "
    r"also where a run was chosen by what others showed; runs beside that ledger are not counted"
)
"""What a shared ledger knows, with the number of the run and what was spent."""
_CANDIDATES = (
    r"([0-9]{1,9}) candidates were trained on disjoint parts of the records and one was chosen privately on another "
    r"part; all of it is in this ledger"
)
_CROSS_VALIDATION = "the ridge was chosen by cross-validation on the same records, which nothing paid for"


def is_tuning(tuning: Mapping[str, Any]) -> bool:
    """Whether the library says this of tuning."""
    runs, text = tuning.get("runs"), str(tuning.get("text"))
    if tuning.keys() != {"runs", "text"}:
        return False
    if runs is None:
        return re.fullmatch(_SWEEP, text) is not None
    if type(runs) is not int or runs < 1:
        return False
    found = re.fullmatch(_CANDIDATES, text) or re.fullmatch(SHARED, text)
    return tuning == TUNING or text == _CROSS_VALIDATION or (found is not None and int(found[1]) == runs)


def constants_problem(public: Mapping[str, Any], known: Stated) -> str | None:
    """Return what is wrong with the names of a mechanism's public constants; None if nothing is."""
    missing = known.needs - public.keys()
    if missing:
        return f"its public constants lack {', '.join(sorted(missing))}"
    strange = public.keys() - known.needs - known.may
    return f"its public constants hold {', '.join(map(repr, sorted(strange)))}, which none states" if strange else None
