"""What statements may say: mechanisms, each of which says what its own releases state, and words common to all.

Verification refuses whatever else a file says.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdpcate.estimators.average.balancing_plan import BalancingPlan
from torchdpcate.estimators.average.composed import ComposedScoresPlan
from torchdpcate.estimators.average.doubly_robust import DoublyRobust
from torchdpcate.estimators.average.known_propensity import DesignPlan
from torchdpcate.estimators.average.outcome_table import DifferenceInMeans
from torchdpcate.estimators.average.peers import HorvitzThompson, SubsampleAggregate
from torchdpcate.estimators.average.weighted import EFFECT_ESTIMATORS
from torchdpcate.estimators.cate.composition_plan import CompositionPlan
from torchdpcate.estimators.cate.effect_plan import EffectPlan
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS
from torchdpcate.estimators.rules.mechanisms import stated_mechanism
from torchdpcate.estimators.rules.plan import RulePlan
from torchdpcate.estimators.selection.policy_plan import PolicyPlan
from torchdpcate.estimators.subgroups.plan import SubgroupPlan
from torchdpcate.nuisance.trainer import GPU_ROUNDING
from torchdpcate.plan import PLANS, StatedPlan
from torchdpcate.privacy.guarantee import Level, is_library_class
from torchdpcate.release.statement import TUNING

# Classes whose modules have declared their plans.
_PLANNED = (
    *(SubgroupPlan, CompositionPlan, PolicyPlan, DesignPlan, ComposedScoresPlan, DifferenceInMeans),
    *(DoublyRobust, HorvitzThompson, SubsampleAggregate),
)


@dataclass(frozen=True)
class Known:
    """What releases by a mechanism may be.

    Attributes:
        highest: The strongest level that any of them has.
        kinds: Kinds of release that it makes.
        conditions: Names of the conditions that its own guarantee may rest on, beside ``COMMON_CONDITIONS``; None where
            its parts bring conditions of their own, under any name.
    """

    highest: Level
    kinds: tuple[str, ...]
    conditions: tuple[str, ...] | None = ()


def plan_of(name: str) -> type[StatedPlan] | None:
    """Return the plan of the mechanism that statements call so; None if there is none."""
    assert all(plan in PLANS.values() for plan in _PLANNED)
    if stated_mechanism(name) is not None:
        return RulePlan
    if name in EFFECT_ESTIMATORS:
        return BalancingPlan
    return PLANS.get(name) or (EffectPlan if name in MECHANISMS else None)


def is_known(name: str) -> bool:
    """Whether statements may call a mechanism so; nothing is imported to answer."""
    return plan_of(name) is not None


def stated(name: str) -> Known | None:
    """Return what releases by the mechanism of this name may be; None if there is none: it may claim nothing.

    A mechanism that is no class of the library, registered from outside, is conditional at most.
    """
    plan = plan_of(name)
    if plan is None:
        return None
    maker = EFFECT_ESTIMATORS.get(name) or stated_mechanism(name) or (MECHANISMS[name] if plan is EffectPlan else plan)
    says: Any = maker if plan is EffectPlan else plan
    own = is_library_class(maker if isinstance(maker, type) else type(maker))
    conditional = not own and says.level == Level.CERTIFIED
    return Known(Level.CONDITIONAL if conditional else says.level, says.kinds, says.rests_on)


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
