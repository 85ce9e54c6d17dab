"""Second stages: feature maps, linear and neural heads, and how one record moves them."""

from torchdpcate.second_stage.features import (
    FEATURE_MAPS,
    FeatureMap,
    Fourier,
    Identity,
    Legendre,
    Products,
    Representation,
    conditions_of,
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
from torchdpcate.second_stage.normal_equations import NormalEquations
from torchdpcate.second_stage.nystrom import Nystrom
from torchdpcate.second_stage.recipes import (
    LinearSecondStage,
    NeuralSecondStage,
    RidgeSecondStage,
    SecondStage,
    ThresholdPurchase,
)
from torchdpcate.second_stage.safe_features import UserFeatures, from_config, on_domain, to_config
from torchdpcate.second_stage.stage import (
    FittedStage,
    LinearStage,
    NeuralStage,
    ParametricStage,
    Regression,
    RKHSStage,
    SecondStageBlock,
)
from torchdpcate.second_stage.tangent import Tangent, TangentSecondStage

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
    "NormalEquations",
    "Nystrom",
    "ParametricStage",
    "Products",
    "RKHSStage",
    "Regression",
    "Representation",
    "RidgeSecondStage",
    "SecondStage",
    "SecondStageBlock",
    "Tangent",
    "TangentSecondStage",
    "ThresholdPurchase",
    "UserFeatures",
    "conditions_of",
    "fit_neural_head",
    "from_config",
    "huber_sensitivity",
    "on_domain",
    "sensitivity",
    "solve",
    "solve_tilted",
    "squared_sensitivity",
    "to_config",
]
