"""Private treatment effects: from a table of records to a release that is safe to publish.

Names are imported when they are first used, so that ``import torchdpcate`` costs little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdpcate.candidates import PolicyLibrary
    from torchdpcate.data import (
        ITR,
        OWL,
        CausalData,
        Confounded,
        Dataset1,
        Dataset2,
        Domain,
        SemiSynthetic,
        Table,
        TableSchema,
        TableStream,
    )
    from torchdpcate.effects import (
        CovariateBalancingEffect,
        DifferenceInMeansEffect,
        DoublyRobustEffect,
        HorvitzThompsonEffect,
        SubsampleAggregateEffect,
    )
    from torchdpcate.evaluation import PEHE, DecisionAccuracy, PolicyValue
    from torchdpcate.learners import CrossFit, DisjointSplit, DRLearner, RLearner, Tuning
    from torchdpcate.nuisance import DPSGD, ConvexNuisanceConfig, NuisanceConfig, Screening
    from torchdpcate.policy import (
        KnownWeights,
        OutcomeWeightedLearner,
        PairwiseRule,
        PolicySelector,
        PrivatelyTunedRule,
        PrivateWeights,
        Shifted,
        SignedResidual,
        TwoStageRule,
        tune_on_public,
    )
    from torchdpcate.privacy import Ledger, NoiseSource, PrivacyBudget
    from torchdpcate.release import (
        AverageEffectRelease,
        FunctionRelease,
        OnlineService,
        PolicyRelease,
        QueryRelease,
        RuleRelease,
        load_release,
    )
    from torchdpcate.second_stage import KernelSecondStage, LinearSecondStage, NeuralSecondStage, TangentSecondStage

__version__ = "0.1.0"

_ROOMS = {
    "candidates": ("PolicyLibrary",),
    "data": (
        "ITR",
        "OWL",
        "CausalData",
        "Confounded",
        "Dataset1",
        "Dataset2",
        "Domain",
        "SemiSynthetic",
        "Table",
        "TableSchema",
        "TableStream",
    ),
    "effects": (
        "CovariateBalancingEffect",
        "DifferenceInMeansEffect",
        "DoublyRobustEffect",
        "HorvitzThompsonEffect",
        "SubsampleAggregateEffect",
    ),
    "evaluation": ("PEHE", "DecisionAccuracy", "PolicyValue"),
    "learners": ("CrossFit", "DRLearner", "DisjointSplit", "RLearner", "Tuning"),
    "nuisance": ("DPSGD", "ConvexNuisanceConfig", "NuisanceConfig", "Screening"),
    "policy": (
        "KnownWeights",
        "OutcomeWeightedLearner",
        "PairwiseRule",
        "PolicySelector",
        "PrivateWeights",
        "PrivatelyTunedRule",
        "Shifted",
        "SignedResidual",
        "TwoStageRule",
        "tune_on_public",
    ),
    "privacy": ("Ledger", "NoiseSource", "PrivacyBudget"),
    "release": (
        "AverageEffectRelease",
        "FunctionRelease",
        "OnlineService",
        "PolicyRelease",
        "QueryRelease",
        "RuleRelease",
        "load_release",
    ),
    "second_stage": ("KernelSecondStage", "LinearSecondStage", "NeuralSecondStage", "TangentSecondStage"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "DPSGD",
    "ITR",
    "OWL",
    "PEHE",
    "AverageEffectRelease",
    "CausalData",
    "Confounded",
    "ConvexNuisanceConfig",
    "CovariateBalancingEffect",
    "CrossFit",
    "DRLearner",
    "Dataset1",
    "Dataset2",
    "DecisionAccuracy",
    "DifferenceInMeansEffect",
    "DisjointSplit",
    "Domain",
    "DoublyRobustEffect",
    "FunctionRelease",
    "HorvitzThompsonEffect",
    "KernelSecondStage",
    "KnownWeights",
    "Ledger",
    "LinearSecondStage",
    "NeuralSecondStage",
    "NoiseSource",
    "NuisanceConfig",
    "OnlineService",
    "OutcomeWeightedLearner",
    "PairwiseRule",
    "PolicyLibrary",
    "PolicyRelease",
    "PolicySelector",
    "PolicyValue",
    "PrivacyBudget",
    "PrivateWeights",
    "PrivatelyTunedRule",
    "QueryRelease",
    "RLearner",
    "RuleRelease",
    "Screening",
    "SemiSynthetic",
    "Shifted",
    "SignedResidual",
    "SubsampleAggregateEffect",
    "Table",
    "TableSchema",
    "TableStream",
    "TangentSecondStage",
    "Tuning",
    "TwoStageRule",
    "load_release",
    "tune_on_public",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchdpcate' has no attribute {name!r}")
    return getattr(import_module(f"torchdpcate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
