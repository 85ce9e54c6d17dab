"""Private treatment rules: weights, weighted empirical risk and its releases."""

from torchdpcate.policy.cross_validation import CrossValidatedRule
from torchdpcate.policy.matching import MATCHINGS, AllPairs, CellPairs, GaussianPairs, Matching
from torchdpcate.policy.mechanisms import ObjectiveRule, OutputRule, RuleMechanism
from torchdpcate.policy.noise_report import NoiseReport, explain_noise
from torchdpcate.policy.outcome import OUTCOMES, BoughtResidual, Outcome, Shifted, SignedResidual
from torchdpcate.policy.owl import OutcomeWeightedLearner
from torchdpcate.policy.pairwise import PairwiseRule
from torchdpcate.policy.public_tuning import GammaChoice, tune_on_public
from torchdpcate.policy.ridge import default_gamma
from torchdpcate.policy.rule import RuleLearner
from torchdpcate.policy.selection import (
    CERTIFICATES,
    FixedNuisances,
    FrozenNuisances,
    LearnedNuisances,
    PolicySelector,
    PrivateNuisances,
    StableNuisances,
)
from torchdpcate.policy.tuning import PrivatelyTunedRule
from torchdpcate.policy.two_stage import TwoStageRule
from torchdpcate.policy.weighted_erm import WeightedERM
from torchdpcate.policy.weights import (
    WEIGHTS,
    ConstantWeights,
    KnownWeights,
    LogisticWeights,
    MMDWeights,
    PrivateWeights,
    TiltingWeights,
    WeightScheme,
)

__all__ = [
    "CERTIFICATES",
    "MATCHINGS",
    "OUTCOMES",
    "WEIGHTS",
    "AllPairs",
    "BoughtResidual",
    "CellPairs",
    "ConstantWeights",
    "CrossValidatedRule",
    "FixedNuisances",
    "FrozenNuisances",
    "GammaChoice",
    "GaussianPairs",
    "KnownWeights",
    "LearnedNuisances",
    "LogisticWeights",
    "MMDWeights",
    "Matching",
    "NoiseReport",
    "ObjectiveRule",
    "Outcome",
    "OutcomeWeightedLearner",
    "OutputRule",
    "PairwiseRule",
    "PolicySelector",
    "PrivateNuisances",
    "PrivateWeights",
    "PrivatelyTunedRule",
    "RuleLearner",
    "RuleMechanism",
    "Shifted",
    "SignedResidual",
    "StableNuisances",
    "TiltingWeights",
    "TwoStageRule",
    "WeightScheme",
    "WeightedERM",
    "default_gamma",
    "explain_noise",
    "tune_on_public",
]
