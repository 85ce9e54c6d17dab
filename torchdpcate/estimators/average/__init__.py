"""Average effects with intervals."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "automatic": ("AverageEffect",),
        "composed": ("ComposedAverageEffect",),
        "covariate_balancing": ("CovariateBalancingEffect",),
        "difference_in_means": ("DifferenceInMeansEffect",),
        "doubly_robust": ("DoublyRobustEffect",),
        "horvitz_thompson": ("HorvitzThompsonEffect",),
        "known_propensity": ("KnownPropensityEffect",),
        "learner": ("AverageEffectLearner",),
        "subsample_aggregate": ("SubsampleAggregateEffect",),
    },
)
