"""Estimators: treatment effects, rules, selection of a policy, average effects."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {},
)
