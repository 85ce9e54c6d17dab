"""What all estimators share: scikit-learn's manners, and guards of what leaves them."""

import subprocess
import sys

import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from tests.registered import CovariateBalancingEffect, PolicySelector, RLearner, TwoStageRule
from torchdpcate.candidates.kinds import Constants
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget

DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, names=["age", "height"], better="higher")
BUDGET = PrivacyBudget(8.0, 1e-5)
X = torch.rand(600, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
A = torch.arange(600) % 2
Y = (2 * A - 1) * (X[:, 0] - X[:, 1])

ESTIMATORS = {
    "effects": lambda budget: RLearner(
        DOMAIN, budget, nuisance=ConvexNuisanceConfig(degree=1), second_stage=LinearSecondStage()
    ),
    "rule": lambda budget: TwoStageRule(DOMAIN, budget),
    "selection": lambda budget: PolicySelector(
        DOMAIN, budget, policies=[Constants([0, 1])], nuisance_guarantee="fixed"
    ),
    "average effect": lambda budget: CovariateBalancingEffect(DOMAIN, budget),
}


@pytest.fixture(params=ESTIMATORS)
def name(request):
    return request.param


def test_it_has_the_manners_of_scikit_learn(name):
    estimator = ESTIMATORS[name](BUDGET)
    assert isinstance(estimator, PrivateEstimator)
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    assert estimator.fit(X, A, Y) is estimator
    check_is_fitted(estimator)
    assert estimator.n_features_in_ == 2
    assert estimator.feature_names_in_.tolist() == ["age", "height"]
    assert estimator.sizes_
    fresh = clone(estimator)
    assert vars(fresh).keys() == vars(ESTIMATORS[name](BUDGET)).keys()


def test_parameters_are_read_and_set_by_name():
    learner = ESTIMATORS["effects"](BUDGET)
    assert learner.set_params(split=0.25, seed=2) is learner
    assert (learner.seed, learner.get_params()["split"]) == (2, 0.25)
    assert repr(learner).startswith("RLearner(domain=")
    with pytest.raises(InputError, match="colour: RLearner has no such parameter"):
        learner.set_params(colour="red")


@pytest.mark.slow
def test_an_import_loads_nothing_heavy_and_a_fit_neither_scikit_learn_nor_pandas():
    code = (
        "import sys, torchdpcate; print([name for name in ('lightning', 'opacus', 'pandas', 'matplotlib', 'sklearn', "
        "'dp_accounting', 'opendp', 'hydra', 'pyarrow') if name in sys.modules]); "
        "import torch; from torchdpcate import Domain, EffectRule, PrivacyBudget; "
        "x = torch.rand(200, 1).double(); a = (torch.arange(200) % 2).double(); "
        "domain = Domain([0.0], [1.0], 0.0, 1.0, overlap=0.3, better='higher'); "
        "EffectRule(domain, PrivacyBudget(1.0, 1e-5)).fit(x, a, x[:, 0]).release(); "
        "print([name for name in ('sklearn', 'pandas', 'scipy.stats') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["[]", "[]"]


def test_nothing_is_released_before_a_fit_or_without_a_budget(name):
    estimator = ESTIMATORS[name](BUDGET)
    with pytest.raises(InputError, match="not fitted"):
        estimator.release()
    open_fit = ESTIMATORS[name](None).fit(X, A, Y)
    assert open_fit.ledger_ is None
    with pytest.raises(InputError, match="fitted without privacy and releases nothing"):
        open_fit.release()


def test_a_fit_that_is_refused_leaves_nothing_to_release(name):
    estimator = ESTIMATORS[name](BUDGET)
    estimator.set_params(budget=None).fit(X, A, Y).set_params(budget=BUDGET)
    with pytest.raises(InputError):
        estimator.fit(X, A, 100 * Y)
    with pytest.raises(InputError, match="not fitted"):
        estimator.release()


def test_settings_are_given_by_name(name):
    with pytest.raises(TypeError, match="positional"):
        type(ESTIMATORS[name](BUDGET))(DOMAIN, BUDGET, 1)


def test_effects_are_released_in_the_way_that_is_asked_for():
    learner = ESTIMATORS["effects"](BUDGET).fit(X, A, Y)
    part = PrivacyBudget(2.0, 2e-6)
    assert learner.release(budget=part).kind == "function"
    assert learner.release("queries", X[:3], budget=part).effect(X[:3]).shape == (3,)
    with pytest.raises(InputError, match="choose one of function, queries, online"):
        learner.release("everything")


def test_plans_spend_nothing():
    learner = ESTIMATORS["effects"](BUDGET).fit(X, A, Y)
    before = learner.ledger_.spent()
    assert learner.expected_noise(600).value > 0
    assert learner.ledger_.spent() == before
    assert PolicySelector(DOMAIN, BUDGET, policies=[Constants([0, 1])]).plan(600)
    assert ESTIMATORS["average effect"](BUDGET).plan(600)
    assert ESTIMATORS["rule"](BUDGET).fit(X, A, Y).plan()


@pytest.mark.parametrize("kind", [RLearner, TwoStageRule, PolicySelector, CovariateBalancingEffect])
def test_a_subclass_of_the_users_is_never_certified(kind, monkeypatch):
    own = type("Own", (kind,), {"__module__": __name__})
    name = {RLearner: "effects", TwoStageRule: "rule", PolicySelector: "selection"}.get(kind, "average effect")
    monkeypatch.setitem(globals(), kind.__name__, own)
    privacy = ESTIMATORS[name](BUDGET).fit(X, A, Y).release().privacy
    assert privacy.level == "conditional"
    assert [c["name"] for c in privacy.conditions] == ["learner"]
    assert {charge.level for charge in privacy.charges} <= {"conditional"}
