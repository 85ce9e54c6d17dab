"""What a learner answers by itself: its one release, paid for once, by the names of scikit-learn and EconML."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from tests.estimators.test_base import BUDGET, DOMAIN, ESTIMATORS, A, X, Y
from torchdpcate import AverageEffect, Domain, EffectRule, RLearner, SubgroupEffects
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget

KNOWN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, names=["age", "height"], propensity=0.5)
QUERIES = X[:5]
ASKED = {
    "composed": (lambda: RLearner(KNOWN, BUDGET), ("effect", "predict", "effect_interval", "ate", "ate_interval")),
    "effects": (lambda: ESTIMATORS["effects"](BUDGET), ("effect", "predict", "ate")),
    "rule": (lambda: ESTIMATORS["rule"](BUDGET), ("decide", "predict")),
    "tuned rule": (lambda: ESTIMATORS["tuned rule"](BUDGET), ("decide", "predict")),
    "effect rule": (lambda: EffectRule(KNOWN, BUDGET), ("decide", "predict", "effect", "ate")),
    "selection": (lambda: ESTIMATORS["selection"](BUDGET), ("decide", "predict")),
    "average effect": (lambda: AverageEffect(KNOWN, BUDGET), ("ate", "ate_interval")),
    "difference in means": (lambda: ESTIMATORS["average effect"](BUDGET), ("ate", "ate_interval")),
}
# scikit-learn's checks that need no fit: the others fit on arrays without a treatment and beyond any public bounds
CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_no_attributes_set_in_init",
    "check_get_params_invariance",
    "check_set_params",
]


def spent(learner) -> float:
    return learner.ledger_.spent()["total"]["epsilon"]


@pytest.mark.parametrize("name", ASKED)
def test_all_questions_are_one_release_within_the_budget(name: str) -> None:
    make, questions = ASKED[name]
    learner = make().fit(X, A, Y)
    answers = {question: getattr(learner, question)(QUERIES) for question in questions}
    paid = spent(learner)
    assert paid <= BUDGET.epsilon * (1 + 1e-9)
    for question, answer in answers.items():
        again = getattr(learner, question)(QUERIES)
        assert np.array_equal(again, answer)
    assert spent(learner) == paid


def test_they_are_the_release_s_own_answers() -> None:
    learner = RLearner(KNOWN, BUDGET).fit(X, A, Y)
    release = learner.release_function()
    assert np.array_equal(learner.effect(QUERIES), release.effect(QUERIES))
    assert learner.ate(QUERIES) == release.effect(QUERIES).mean()
    low, high = learner.effect_interval(QUERIES, alpha=0.1)
    assert np.array_equal(np.stack([low, high], 1), release.interval(QUERIES, 0.9))
    assert learner.ate_interval(QUERIES) == tuple(release.mean_interval(QUERIES)[0])


def test_a_release_made_before_answers() -> None:
    learner = ESTIMATORS["effects"](BUDGET).fit(X, A, Y)
    release = learner.release(budget=PrivacyBudget(2.0, 2e-6))
    paid = spent(learner)
    assert np.array_equal(learner.effect(QUERIES), release.effect(QUERIES))
    assert spent(learner) == paid


def test_a_new_fit_forgets_the_old_release() -> None:
    learner = RLearner(KNOWN, BUDGET).fit(X, A, Y)
    learner.effect(QUERIES)
    with pytest.raises(InputError):
        learner.fit(X, A, 100 * Y)
    with pytest.raises(InputError, match="effect: RLearner is not fitted"):
        learner.effect(QUERIES)


def test_a_rule_decides_as_its_release_does() -> None:
    learner = EffectRule(KNOWN, BUDGET).fit(X, A, Y)
    assert np.array_equal(learner.predict(QUERIES), learner.release().decide(QUERIES))


def test_subgroups_are_a_table() -> None:
    learner = SubgroupEffects(KNOWN, BUDGET, subgroups=[{"age": [0.5]}]).fit(X, A, Y)
    assert learner.table().equals(learner.release_.table())


@pytest.mark.parametrize("question", ["effect_interval", "ate_interval"])
def test_effects_without_intervals_say_so(question: str) -> None:
    learner = ESTIMATORS["effects"](BUDGET).fit(X, A, Y)
    with pytest.raises(InputError, match=f"{question}: a release by objective has no confidence intervals"):
        getattr(learner, question)(QUERIES)


def test_a_pipeline_hands_treatment_and_outcome_on() -> None:
    frame = pd.DataFrame(X.numpy(), columns=["age", "height"])
    steps = [("same", FunctionTransformer()), ("effects", RLearner(KNOWN, BUDGET))]
    pipeline = Pipeline(steps).fit(frame, Y.numpy(), effects__treatment=A.numpy())
    assert pipeline.predict(frame).shape == (600,)
    assert pipeline.set_params(effects__budget=PrivacyBudget(2.0, 1e-5)).get_params()["effects__budget"].epsilon == 2
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(pipeline["effects"]))


def test_a_search_on_public_data_tunes_a_learner() -> None:
    def error(learner, x, y) -> float:
        return -float(np.square(learner.predict(x) - 2 * (x[:, 0] - x[:, 1])).mean())

    grid = {"budget": [PrivacyBudget(0.01, 1e-5), PrivacyBudget(100.0, 1e-5)]}
    search = GridSearchCV(RLearner(KNOWN, BUDGET), grid, scoring=error, cv=2, error_score="raise")
    search.fit(X.numpy(), Y.numpy(), treatment=A.numpy())
    assert search.best_params_["budget"].epsilon == 100.0


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["composed", "rule", "selection", "difference in means", "average effect"])
def test_scikit_learn_s_checks(name: str, check: str) -> None:
    getattr(estimator_checks, check)(name, ASKED[name][0]())


def test_nested_parameters_are_set() -> None:
    rule = ESTIMATORS["tuned rule"](BUDGET)
    rule.set_params(learner__ridge=4.0)
    assert clone(rule).learner.ridge == 4.0
    assert torch.is_tensor(DOMAIN.covariate_low)
