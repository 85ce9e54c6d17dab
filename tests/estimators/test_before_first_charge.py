"""What a fit can refuse by public facts it refuses before its first charge; else fit and release keep to the budget."""

import warnings

import numpy as np
import pytest

from tests.registered import (
    ComposedAverageEffect,
    CovariateBalancingEffect,
    DRLearner,
    EffectRule,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    SubgroupEffects,
    TwoStageRule,
)
from torchdpcate.candidates.kinds import Constants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.linear_fits import NoisyGradient
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget


def steps(budget):
    """A fitter of few steps where it has a delta: the default beyond 30 features takes hundreds."""
    return NoisyGradient(steps=4) if budget.delta else None


FAMILIES = {
    "effect": RLearner,
    "doubly robust": DRLearner,
    "rule": EffectRule,
    "composed average": ComposedAverageEffect,
    "balancing": lambda d, b: CovariateBalancingEffect(d, b, fitter=steps(b)),
    "objective": lambda d, b: CovariateBalancingEffect(d, b, fitter="objective"),
    "selection": lambda d, b: PolicySelector(d, b, policies=[Constants([0, 1])]),
    "intervals": lambda d, b: RLearner(d, b, second_stage=AdaptiveSecondStage(intervals=True)),
    "subgroups": lambda d, b: SubgroupEffects(d, b, subgroups=[{"x0": [0.5]}]),
    "known propensity": KnownPropensityEffect,
    "outcome weighted": OutcomeWeightedLearner,
    "two stages": TwoStageRule,
}
EPSILONS = (1e-9, 1e-3, 0.03, 1.0, 30.0, 700.0)


def kept(make, n, covariates, epsilon, delta, known):
    """Fit and release; return whether it was refused, with nothing charged."""
    domain = Domain(
        [0.0] * covariates,
        [1.0] * covariates,
        0.0,
        1.0,
        overlap=0.1,
        propensity=0.5 if known else None,
        better="higher",
    )
    random = np.random.default_rng(0)
    x, a, y = random.random((n, covariates)), np.arange(n) % 2, random.random(n)
    learner, refused = None, ""
    try:
        learner = make(domain, PrivacyBudget(epsilon, delta))
        learner.fit(x, a, y)
        learner.release_function() if type(learner) in (RLearner, DRLearner) else learner.release()
    except InputError as error:
        refused = str(error)
    if refused:
        ledger = getattr(learner, "ledger_", None)
        assert ledger is None or not ledger.entries, f"{len(ledger.entries)} charges before it was refused: {refused}"
        assert "\n" not in refused
        return True
    for spent in learner.ledger_.spent().values():
        assert spent["epsilon"] <= epsilon * (1 + 1e-9)
        assert spent["delta"] <= delta * (1 + 1e-9)
    return False


@pytest.mark.first(20)
@pytest.mark.parametrize("name", [*FAMILIES][:9])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-9, 0.0), (1e-3, 0.0), (1e-9, 1e-5), (1.0, LEAST_DELTA), (0.1, 1e-5)]
)
def test_a_fit_is_refused_before_it_is_charged_or_keeps_to_its_budget(name, epsilon, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept(FAMILIES[name], 60, 1, epsilon, delta, known=False)


def test_that_walk_sees_fits_that_succeed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not kept(RLearner, 60, 1, 1.0, 1e-5, known=False)
        assert not kept(EffectRule, 60, 31, 30.0, 0.0, known=True)
        assert not kept(FAMILIES["balancing"], 60, 1, 0.1, 1e-5, known=False)


@pytest.mark.slow
@pytest.mark.parametrize(("covariates", "known"), [(1, True), (31, False)])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_at_all_borders(name, covariates, known):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for delta in (0.0, LEAST_DELTA, 1e-5):
            for epsilon in EPSILONS:
                for n in (60, 2_000) if epsilon == 1.0 else (60,):
                    kept(FAMILIES[name], n, covariates, epsilon, delta, known)
