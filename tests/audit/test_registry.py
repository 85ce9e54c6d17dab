"""Nothing that draws noise is left out of the registry."""

import pkgutil
from importlib import import_module

import torchdpcate
from torchdpcate.audit.report import registry
from torchdpcate.composition.lines import LineSums, Squares
from torchdpcate.composition.records import fit_composition
from torchdpcate.composition.remainders import Remainders
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.cate.learner import CATELearner, RLearner
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS, Mechanism
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.weighted_erm import ObjectiveRule, OutputRule
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.linear_fits import ObjectiveFit
from torchdpcate.fit.weights import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.mechanisms import AdditiveMechanism
from torchdpcate.privacy.selection import SELECTIONS, private_quantile

for _module in pkgutil.walk_packages(
    torchdpcate.__path__, "torchdpcate."
):  # a class not imported is none below its base
    of_an_extra = _module.name.startswith(("torchdpcate.pages", "torchdpcate.cli.flower_apps"))
    if not _module.name.endswith("__main__") and not of_an_extra:
        import_module(_module.name)


def leaves(cls: type, package: str = "torchdpcate.") -> set[type]:
    """Every class of the package below this one that has none below it."""
    children = [child for child in cls.__subclasses__() if child.__module__.startswith(package)]
    return {leaf for child in children for leaf in leaves(child, package)} or {cls}


def test_every_mechanism_and_learner_is_attacked():
    attacked = {case.of for case in registry().values()}
    spending = {mechanism for mechanism in leaves(Mechanism) if not mechanism.free}
    fitted = leaves(CATELearner) - {AverageEffect} | {fit_composition, LineSums, Squares, Remainders}
    assert leaves(AdditiveMechanism) | spending | fitted | leaves(RuleLearner) <= attacked
    assert {DPSGD, PrivateWeights, PolicySelector, private_quantile, *SELECTIONS.values()} <= attacked
    assert leaves(AverageEffectLearner) | {ObjectiveFit} <= attacked
    ways = {cls(kind).name for cls in (ObjectiveRule, OutputRule) for kind in cls.kinds}
    assert ways <= set(registry())
    assert {name for name, mechanism in MECHANISMS.items() if not mechanism.free} <= set(registry())
    assert RLearner in attacked


def test_a_class_that_is_not_declared_would_be_missed():
    attacked = {case.of for case in registry().values()}

    class New(CATELearner):
        __module__ = "elsewhere.new"

    assert leaves(CATELearner, "elsewhere.") == {New}
    assert New not in attacked


def test_pure_mechanisms_claim_no_delta():
    budget = PrivacyBudget(1.0, 1e-5)
    for name in ("laplace", "k_norm", "quantile"):
        guarantee = registry()[name].make(budget).guarantee
        assert guarantee.level is Level.CERTIFIED
        assert guarantee.budget == PrivacyBudget(1.0, 0.0)
