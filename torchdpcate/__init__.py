"""Private treatment effects: from a table of records to a release that is safe to publish.

Names are imported when they are first used, so that ``import torchdpcate`` costs little.
"""

from typing import TYPE_CHECKING, Any

from torchdpcate._lazy import exports

if TYPE_CHECKING:
    from torchdpcate.candidates.library import PolicyLibrary as PolicyLibrary
    from torchdpcate.data.domain import Domain as Domain
    from torchdpcate.data.effect_generators import Confounded as Confounded
    from torchdpcate.data.generators import Dataset1 as Dataset1
    from torchdpcate.data.generators import Dataset2 as Dataset2
    from torchdpcate.data.hospital import Hospital as Hospital
    from torchdpcate.data.niu import Niu as Niu
    from torchdpcate.data.records import CausalData as CausalData
    from torchdpcate.data.rule_generators import ITR as ITR
    from torchdpcate.data.rule_generators import OWL as OWL
    from torchdpcate.data.schema import TableSchema as TableSchema
    from torchdpcate.data.semi_synthetic import SemiSynthetic as SemiSynthetic
    from torchdpcate.data.table import Table as Table
    from torchdpcate.data.table_stream import TableStream as TableStream
    from torchdpcate.estimators.average.automatic import AverageEffect as AverageEffect
    from torchdpcate.estimators.average.composed import ComposedAverageEffect as ComposedAverageEffect
    from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect as CovariateBalancingEffect
    from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect as DoublyRobustEffect
    from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect as KnownPropensityEffect
    from torchdpcate.estimators.average.outcome_table import DifferenceInMeansEffect as DifferenceInMeansEffect
    from torchdpcate.estimators.average.peers import HorvitzThompsonEffect as HorvitzThompsonEffect
    from torchdpcate.estimators.average.peers import SubsampleAggregateEffect as SubsampleAggregateEffect
    from torchdpcate.estimators.cate.learner import DRLearner as DRLearner
    from torchdpcate.estimators.cate.learner import RLearner as RLearner
    from torchdpcate.estimators.cate.online.service import OnlineService as OnlineService
    from torchdpcate.estimators.cate.splits import CrossFit as CrossFit
    from torchdpcate.estimators.cate.splits import DisjointSplit as DisjointSplit
    from torchdpcate.estimators.cate.tuning import Tuning as Tuning
    from torchdpcate.estimators.rules.effect_rule import EffectRule as EffectRule
    from torchdpcate.estimators.rules.outcome import Shifted as Shifted
    from torchdpcate.estimators.rules.outcome import SignedResidual as SignedResidual
    from torchdpcate.estimators.rules.owl import OutcomeWeightedLearner as OutcomeWeightedLearner
    from torchdpcate.estimators.rules.pairwise import PairwiseRule as PairwiseRule
    from torchdpcate.estimators.rules.public_tuning import tune_on_public as tune_on_public
    from torchdpcate.estimators.rules.tuning import PrivatelyTunedRule as PrivatelyTunedRule
    from torchdpcate.estimators.rules.two_stage import TwoStageRule as TwoStageRule
    from torchdpcate.estimators.selection.selector import PolicySelector as PolicySelector
    from torchdpcate.estimators.subgroups.learner import SubgroupEffects as SubgroupEffects
    from torchdpcate.evaluation.metrics import PEHE as PEHE
    from torchdpcate.evaluation.rules import DecisionAccuracy as DecisionAccuracy
    from torchdpcate.evaluation.rules import PolicyValue as PolicyValue
    from torchdpcate.nuisance.config import NuisanceConfig as NuisanceConfig
    from torchdpcate.nuisance.convex import ConvexNuisanceConfig as ConvexNuisanceConfig
    from torchdpcate.nuisance.dp_sgd import DPSGD as DPSGD
    from torchdpcate.nuisance.screening import Screening as Screening
    from torchdpcate.nuisance.weights.known import KnownWeights as KnownWeights
    from torchdpcate.nuisance.weights.private import PrivateWeights as PrivateWeights
    from torchdpcate.privacy.budget import PrivacyBudget as PrivacyBudget
    from torchdpcate.privacy.ledger import Ledger as Ledger
    from torchdpcate.privacy.noise import NoiseSource as NoiseSource
    from torchdpcate.privacy.shared_ledger import SharedLedger as SharedLedger
    from torchdpcate.privacy.unit import PrivacyUnit as PrivacyUnit
    from torchdpcate.release.average_effect import AverageEffectRelease as AverageEffectRelease
    from torchdpcate.release.file import load_release as load_release
    from torchdpcate.release.policy import PolicyRelease as PolicyRelease
    from torchdpcate.release.release import FunctionRelease as FunctionRelease
    from torchdpcate.release.release import QueryRelease as QueryRelease
    from torchdpcate.release.rule import RuleRelease as RuleRelease
    from torchdpcate.release.subgroups import SubgroupRelease as SubgroupRelease
    from torchdpcate.second_stage.kernel import KernelSecondStage as KernelSecondStage
    from torchdpcate.second_stage.recipes import LinearSecondStage as LinearSecondStage
    from torchdpcate.second_stage.recipes import NeuralSecondStage as NeuralSecondStage
    from torchdpcate.second_stage.tangent import TangentSecondStage as TangentSecondStage

    __version__: str

_find, __dir__, __all__ = exports(
    __name__,
    {
        "candidates.library": ("PolicyLibrary",),
        "data.domain": ("Domain",),
        "data.effect_generators": ("Confounded",),
        "data.generators": ("Dataset1", "Dataset2"),
        "data.hospital": ("Hospital",),
        "data.niu": ("Niu",),
        "data.records": ("CausalData",),
        "data.rule_generators": ("ITR", "OWL"),
        "data.schema": ("TableSchema",),
        "data.semi_synthetic": ("SemiSynthetic",),
        "data.table": ("Table",),
        "data.table_stream": ("TableStream",),
        "estimators.average.automatic": ("AverageEffect",),
        "estimators.average.composed": ("ComposedAverageEffect",),
        "estimators.average.covariate_balancing": ("CovariateBalancingEffect",),
        "estimators.average.doubly_robust": ("DoublyRobustEffect",),
        "estimators.average.known_propensity": ("KnownPropensityEffect",),
        "estimators.average.outcome_table": ("DifferenceInMeansEffect",),
        "estimators.average.peers": ("HorvitzThompsonEffect", "SubsampleAggregateEffect"),
        "estimators.cate.learner": ("DRLearner", "RLearner"),
        "estimators.cate.online.service": ("OnlineService",),
        "estimators.cate.splits": ("CrossFit", "DisjointSplit"),
        "estimators.cate.tuning": ("Tuning",),
        "estimators.rules.effect_rule": ("EffectRule",),
        "estimators.rules.outcome": ("Shifted", "SignedResidual"),
        "estimators.rules.owl": ("OutcomeWeightedLearner",),
        "estimators.rules.pairwise": ("PairwiseRule",),
        "estimators.rules.public_tuning": ("tune_on_public",),
        "estimators.rules.tuning": ("PrivatelyTunedRule",),
        "estimators.rules.two_stage": ("TwoStageRule",),
        "estimators.selection.selector": ("PolicySelector",),
        "estimators.subgroups.learner": ("SubgroupEffects",),
        "evaluation.metrics": ("PEHE",),
        "evaluation.rules": ("DecisionAccuracy", "PolicyValue"),
        "nuisance.config": ("NuisanceConfig",),
        "nuisance.convex": ("ConvexNuisanceConfig",),
        "nuisance.dp_sgd": ("DPSGD",),
        "nuisance.screening": ("Screening",),
        "nuisance.weights.known": ("KnownWeights",),
        "nuisance.weights.private": ("PrivateWeights",),
        "privacy.budget": ("PrivacyBudget",),
        "privacy.ledger": ("Ledger",),
        "privacy.noise": ("NoiseSource",),
        "privacy.shared_ledger": ("SharedLedger",),
        "privacy.unit": ("PrivacyUnit",),
        "release.average_effect": ("AverageEffectRelease",),
        "release.file": ("load_release",),
        "release.policy": ("PolicyRelease",),
        "release.release": ("FunctionRelease", "QueryRelease"),
        "release.rule": ("RuleRelease",),
        "release.subgroups": ("SubgroupRelease",),
        "second_stage.kernel": ("KernelSecondStage",),
        "second_stage.recipes": ("LinearSecondStage", "NeuralSecondStage"),
        "second_stage.tangent": ("TangentSecondStage",),
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from torchdpcate._version import version

        return version()
    return _find(name)
