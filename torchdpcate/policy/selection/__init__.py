"""Private choice of one policy from a public library, by doubly robust scores."""

from torchdpcate.policy.selection.certificates import CERTIFICATES, make_nuisances
from torchdpcate.policy.selection.fixed import FixedNuisances
from torchdpcate.policy.selection.frozen import FrozenNuisances
from torchdpcate.policy.selection.learned import LearnedNuisances
from torchdpcate.policy.selection.nuisances import (
    CertifiedNuisances,
    FittedNuisances,
    Purse,
    ScoreNuisances,
    SelectionFacts,
)
from torchdpcate.policy.selection.plan import RegretBound, SelectionPlan, regret_bound
from torchdpcate.policy.selection.private import PrivateNuisances
from torchdpcate.policy.selection.scores import dr_scores, project_to_floor
from torchdpcate.policy.selection.selector import PolicySelector
from torchdpcate.policy.selection.stable import StableNuisances

__all__ = [
    "CERTIFICATES",
    "CertifiedNuisances",
    "FittedNuisances",
    "FixedNuisances",
    "FrozenNuisances",
    "LearnedNuisances",
    "PolicySelector",
    "PrivateNuisances",
    "Purse",
    "RegretBound",
    "ScoreNuisances",
    "SelectionFacts",
    "SelectionPlan",
    "StableNuisances",
    "dr_scores",
    "make_nuisances",
    "project_to_floor",
    "regret_bound",
]
