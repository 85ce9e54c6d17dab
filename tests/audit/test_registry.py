"""Nothing that draws noise is left out of the registry."""

import torchdpcate.learners
from torchdpcate.audit import registry
from torchdpcate.effects import AverageEffectLearner, DifferenceInMeansEffect
from torchdpcate.effects.fitter import Fitter
from torchdpcate.effects.readout import Readout
from torchdpcate.learners import MECHANISMS, CATELearner
from torchdpcate.nuisance import DPSGD
from torchdpcate.policy import ObjectiveRule, OutputRule, PrivateWeights, RuleLearner
from torchdpcate.policy.selection import PolicySelector
from torchdpcate.privacy import AdditiveMechanism, Level, PrivacyBudget, private_quantile
from torchdpcate.privacy.selection_mechanisms import SELECTIONS
from torchdpcate.release import Mechanism


def leaves(cls: type, package: str = "torchdpcate.") -> set[type]:
    """Every class of the package below this one that has none below it."""
    children = [child for child in cls.__subclasses__() if child.__module__.startswith(package)]
    return {leaf for child in children for leaf in leaves(child, package)} or {cls}


def test_every_mechanism_and_learner_is_attacked():
    attacked = {case.of for case in registry().values()}
    spending = {mechanism for mechanism in leaves(Mechanism) if not mechanism.free}
    assert leaves(AdditiveMechanism) | spending | leaves(CATELearner) | leaves(RuleLearner) <= attacked
    assert {DPSGD, PrivateWeights, PolicySelector, private_quantile, *SELECTIONS.values()} <= attacked
    # a difference in means is an outcome table with equal weights
    averages = leaves(AverageEffectLearner) - {DifferenceInMeansEffect}
    assert averages | leaves(Fitter) | leaves(Readout) <= attacked
    ways = {cls(kind).name for cls in (ObjectiveRule, OutputRule) for kind in cls.kinds}
    assert ways <= set(registry())
    assert {name for name, mechanism in MECHANISMS.items() if not mechanism.free} <= set(registry())
    assert torchdpcate.learners.RLearner in attacked


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
