"""What all estimators share: scikit-learn's manners, and guards of what leaves them."""

import subprocess
import sys

import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from tests.estimators.families import BUDGET, FAMILIES, OBSERVED, A, X, Y, made
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget


@pytest.fixture(params=["two blocks", "two stages", "fixed policies", "balancing"])
def name(request):
    return request.param


def test_it_has_the_manners_of_scikit_learn(name):
    estimator = made(name)
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    assert estimator.fit(X, A, Y) is estimator
    check_is_fitted(estimator)
    assert estimator.n_features_in_ == 2
    assert estimator.feature_names_in_.tolist() == ["age", "height"]
    assert estimator.sizes_
    assert vars(clone(estimator)).keys() == vars(made(name)).keys()
    with pytest.raises(TypeError, match="positional"):
        type(estimator)(OBSERVED, BUDGET, 1)


def test_parameters_are_read_and_set_by_name():
    learner = made("two blocks")
    assert learner.set_params(filter="gaussian", seed=2) is learner
    assert (learner.seed, learner.get_params()["filter"]) == (2, "gaussian")
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
    with pytest.raises(InputError, match="not fitted"):
        made(name).release()
    open_fit = made(name, budget=None).fit(X, A, Y)
    assert open_fit.ledger_ is None
    with pytest.raises(InputError, match="fitted without privacy and releases nothing"):
        open_fit.release()
    open_fit.set_params(budget=BUDGET)
    with pytest.raises(InputError):
        open_fit.fit(X, A, 100 * Y)
    with pytest.raises(InputError, match="not fitted"):
        open_fit.release()


def test_a_release_is_of_the_settings_of_the_fit_whatever_is_set_since(name):
    privacy = made(name).fit(X, A, Y).set_params(budget=PrivacyBudget(99.0, 1e-5)).release().privacy
    assert privacy.epsilon <= BUDGET.epsilon * (1 + 1e-9)


def test_effects_are_released_in_the_way_that_is_asked_for():
    learner, part = made("two blocks").fit(X, A, Y), PrivacyBudget(2.0, 2e-6)
    before = learner.ledger_.spent()
    assert learner.expected_noise(600).value > 0
    assert learner.ledger_.spent() == before
    assert learner.release(budget=part).kind == "function"
    assert learner.release("queries", X[:3], budget=part).effect(X[:3]).shape == (3,)
    with pytest.raises(InputError, match="choose one of function, queries, online"):
        learner.release("everything")


def test_a_subclass_of_the_users_is_never_certified(name):
    own = type("Own", (FAMILIES[name][0],), {"__module__": __name__})
    privacy = made(name, kind=own).fit(X, A, Y).release().privacy
    assert privacy.level == "conditional"
    assert [c["name"] for c in privacy.conditions] == ["learner"]
    assert {charge.level for charge in privacy.charges} <= {"conditional"}
