"""Weights of records for treatment rules: known, private, or with a certified indirect sensitivity."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "known": ("ConstantWeights", "KnownWeights"),
        "logistic": ("LogisticWeights",),
        "mmd": ("MMDWeights",),
        "private": ("PrivateWeights",),
        "scheme": ("WEIGHTS", "WeightScheme"),
        "tilting": ("TiltingWeights",),
    },
)
