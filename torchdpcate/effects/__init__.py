"""Average effects: weights, outcome models, sums with noise, estimates with intervals."""

from torchdpcate.effects.covariate_balancing import CovariateBalancingEffect
from torchdpcate.effects.difference_in_means import DifferenceInMeansEffect
from torchdpcate.effects.doubly_robust import DoublyRobustEffect
from torchdpcate.effects.horvitz_thompson import HorvitzThompsonEffect
from torchdpcate.effects.learner import AverageEffectLearner
from torchdpcate.effects.subsample_aggregate import SubsampleAggregateEffect

__all__ = [
    "AverageEffectLearner",
    "CovariateBalancingEffect",
    "DifferenceInMeansEffect",
    "DoublyRobustEffect",
    "HorvitzThompsonEffect",
    "SubsampleAggregateEffect",
]
