"""Average effects with intervals."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "covariate_balancing": ("CovariateBalancingEffect",),
        "known_propensity": ("KnownPropensityEffect",),
        "learner": ("AverageEffectLearner",),
        "lines": ("AverageEffect",),
    },
)
