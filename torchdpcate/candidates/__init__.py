"""Public candidate policies: deterministic maps from covariates to actions, given before the records are read."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "kinds": ("Constants", "LinearPolicies", "Thresholds", "PolicyFamily", "check_actions"),
        "library": ("FunctionPolicies", "POLICY_FAMILIES", "PolicyLibrary", "policy_family"),
    },
)
