"""Names of the package, by the modules that define them; ``__init__.py`` imports each when it is first used."""

from torchdpcate.candidates.library import PolicyLibrary as PolicyLibrary
from torchdpcate.data.domain import Domain as Domain
from torchdpcate.data.records import CausalData as CausalData
from torchdpcate.data.schema import TableSchema as TableSchema
from torchdpcate.data.table import Table as Table
from torchdpcate.data.table_stream import TableStream as TableStream
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect as CovariateBalancingEffect
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect as KnownPropensityEffect
from torchdpcate.estimators.average.lines import AverageEffect as AverageEffect
from torchdpcate.estimators.cate.learner import DRLearner as DRLearner
from torchdpcate.estimators.cate.learner import RLearner as RLearner
from torchdpcate.estimators.rules.effect_rule import EffectRule as EffectRule
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner as OutcomeWeightedLearner
from torchdpcate.estimators.rules.learner import TwoStageRule as TwoStageRule
from torchdpcate.estimators.selection.selector import PolicySelector as PolicySelector
from torchdpcate.estimators.subgroups.learner import SubgroupEffects as SubgroupEffects
from torchdpcate.fit.dp_sgd import DPSGD as DPSGD
from torchdpcate.fit.nuisance_config import NuisanceConfig as NuisanceConfig
from torchdpcate.fit.weights import KnownWeights as KnownWeights
from torchdpcate.fit.weights import PrivateWeights as PrivateWeights
from torchdpcate.heads.kernel import KernelSecondStage as KernelSecondStage
from torchdpcate.heads.recipes import LinearSecondStage as LinearSecondStage
from torchdpcate.heads.recipes import NeuralSecondStage as NeuralSecondStage
from torchdpcate.papers.confounded import Confounded as Confounded
from torchdpcate.papers.oprescu import Dataset1 as Dataset1
from torchdpcate.papers.oprescu import Dataset2 as Dataset2
from torchdpcate.papers.rules import OWL as OWL
from torchdpcate.privacy.budget import PrivacyBudget as PrivacyBudget
from torchdpcate.privacy.ledger import Ledger as Ledger
from torchdpcate.privacy.noise import NoiseSource as NoiseSource
from torchdpcate.privacy.shared_ledger import SharedLedger as SharedLedger
from torchdpcate.privacy.unit import PrivacyUnit as PrivacyUnit
from torchdpcate.release.combination import combine as combine
from torchdpcate.release.file import load_release as load_release

__version__: str
