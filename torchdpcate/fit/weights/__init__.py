"""Weights of records for treatment rules: by a known or a private propensity, or equal."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "private": ("PrivateWeights",),
        "scheme": (
            "ConstantWeights",
            "KnownWeights",
            "WEIGHTS",
            "WeightScheme",
        ),
    },
)
