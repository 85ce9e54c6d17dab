"""Public candidate policies: deterministic maps from covariates to actions, given before the records are read."""

from torchdpcate.candidates.constants import Constants
from torchdpcate.candidates.family import PolicyFamily, check_actions
from torchdpcate.candidates.functions import FunctionPolicies
from torchdpcate.candidates.library import POLICY_FAMILIES, PolicyLibrary, policy_family
from torchdpcate.candidates.linear import LinearPolicies
from torchdpcate.candidates.thresholds import Thresholds
from torchdpcate.candidates.trees import TreePolicies

__all__ = [
    "POLICY_FAMILIES",
    "Constants",
    "FunctionPolicies",
    "LinearPolicies",
    "PolicyFamily",
    "PolicyLibrary",
    "Thresholds",
    "TreePolicies",
    "check_actions",
    "policy_family",
]
