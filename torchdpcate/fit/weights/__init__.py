"""Weights of records for treatment rules: known, private, or with a certified indirect sensitivity."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "balancing": (
            "LogisticWeights",
            "TiltingWeights",
        ),
        "mmd": ("MMDWeights",),
        "private": ("PrivateWeights",),
        "scheme": (
            "ConstantWeights",
            "KnownWeights",
            "WEIGHTS",
            "WeightScheme",
        ),
    },
)
