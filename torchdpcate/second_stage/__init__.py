"""Second stages: feature maps, linear and neural heads, and how one record moves them."""

from torchdpcate.second_stage.features import (
    FEATURE_MAPS,
    FeatureMap,
    Fourier,
    Identity,
    Legendre,
    Representation,
)
from torchdpcate.second_stage.kernel import KernelSecondStage, KernelStage
from torchdpcate.second_stage.linear import (
    LinearFit,
    LinearProblem,
    huber_sensitivity,
    sensitivity,
    solve,
    solve_tilted,
    squared_sensitivity,
)
from torchdpcate.second_stage.neural import NeuralFit, NeuralHead, fit_neural_head
from torchdpcate.second_stage.recipes import (
    LinearSecondStage,
    NeuralSecondStage,
    RidgeSecondStage,
    SecondStage,
    ThresholdPurchase,
)
from torchdpcate.second_stage.stage import (
    FittedStage,
    LinearStage,
    NeuralStage,
    ParametricStage,
    Regression,
    RKHSStage,
    SecondStageBlock,
)

__all__ = [
    "FEATURE_MAPS",
    "FeatureMap",
    "FittedStage",
    "Fourier",
    "Identity",
    "KernelSecondStage",
    "KernelStage",
    "Legendre",
    "LinearFit",
    "LinearProblem",
    "LinearSecondStage",
    "LinearStage",
    "NeuralFit",
    "NeuralHead",
    "NeuralSecondStage",
    "NeuralStage",
    "ParametricStage",
    "RKHSStage",
    "Regression",
    "Representation",
    "RidgeSecondStage",
    "SecondStage",
    "SecondStageBlock",
    "ThresholdPurchase",
    "fit_neural_head",
    "huber_sensitivity",
    "sensitivity",
    "solve",
    "solve_tilted",
    "squared_sensitivity",
]
