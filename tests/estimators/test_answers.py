"""What a learner answers by itself: its one release, paid for once, by the names of scikit-learn and EconML."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from tests.estimators.test_base import BUDGET, DOMAIN, ESTIMATORS, A, X, Y
from tests.registered import (
    AverageEffect,
    ComposedAverageEffect,
    CovariateBalancingEffect,
    DRLearner,
    EffectRule,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    SubgroupEffects,
)
from torchdpcate import Domain, estimators
from torchdpcate.candidates.kinds import Constants
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import Answering
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.privacy.budget import PrivacyBudget

KNOWN = Domain(
    [0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, names=["age", "height"], propensity=0.5, better="higher"
)
QUERIES = X[:5]
EFFECTS, DECISIONS, AVERAGES = ("effect", "predict", "ate"), ("decide", "predict"), ("ate", "ate_interval")
INTERVALS = ("effect_interval", "ate_interval")
ASKED = {
    "composed": (lambda: RLearner(KNOWN, BUDGET), (*EFFECTS, *INTERVALS)),
    "doubly robust": (lambda: DRLearner(KNOWN, BUDGET), EFFECTS),
    "effects": (lambda: ESTIMATORS["effects"](BUDGET), EFFECTS),
    "outcome weighted": (lambda: OutcomeWeightedLearner(KNOWN, BUDGET), DECISIONS),
    "rule": (lambda: ESTIMATORS["rule"](BUDGET), DECISIONS),
    "effect rule": (lambda: EffectRule(KNOWN, BUDGET), (*DECISIONS, "effect", "ate")),
    "selection": (lambda: ESTIMATORS["selection"](BUDGET), DECISIONS),
    "composed selection": (
        lambda: PolicySelector(DOMAIN, BUDGET, policies=[Constants([0, 1])], nuisance_guarantee="composed"),
        DECISIONS,
    ),
    "average effect": (lambda: AverageEffect(KNOWN, BUDGET), AVERAGES),
    "difference in means": (lambda: ESTIMATORS["average effect"](BUDGET), AVERAGES),
    "known propensity": (lambda: KnownPropensityEffect(KNOWN, BUDGET), AVERAGES),
    "covariate balancing": (lambda: CovariateBalancingEffect(DOMAIN, BUDGET), AVERAGES),
    "composed average": (lambda: ComposedAverageEffect(DOMAIN, BUDGET), AVERAGES),
    "subgroups": (lambda: SubgroupEffects(KNOWN, BUDGET, subgroups=[{"age": [0.5]}]), ("table",)),
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


def below(kind: type) -> Iterator[type]:
    for own in kind.__subclasses__():
        yield own
        yield from below(own)


def requested(learner, question: str):
    return getattr(learner, question)(*() if question == "table" else (QUERIES,))


def spent(learner) -> float | None:
    return learner.ledger_.spent()["total"]["epsilon"]


@cache
def fitted(name: str):
    """A learner that several tests ask; none of them spends more than it has spent."""
    return ASKED[name][0]().fit(X, A, Y)


@pytest.mark.parametrize("name", ASKED)
def test_all_questions_are_one_release_within_the_budget_of_one_fit(name: str) -> None:
    learner, questions = fitted(name), ASKED[name][1]
    answers = {question: requested(learner, question) for question in questions}
    entries = len(learner.ledger_.entries)
    paid = spent(learner)
    assert paid is None or paid <= BUDGET.epsilon * (1 + 1e-9)  # of research alone nothing is known
    for question, answer in answers.items():
        assert np.array_equal(requested(learner, question), answer)
    release = learner.release()  # what was requested first, and paid for
    question = questions[0]
    own = release.estimate if question == "ate" else requested(release, question)
    assert np.array_equal(own, answers[question])
    for field in ("theta", "estimate", "numbers", "action"):
        assert repr(getattr(release, field, None)) == repr(getattr(learner.release(), field, None))
    with pytest.raises(InputError, match=rf"fit: this {type(learner).__name__} is fitted.*clone"):
        learner.fit(X, A, -Y)
    assert np.array_equal(requested(learner, question), answers[question])
    assert len(learner.ledger_.entries) == entries
    assert spent(learner) == paid


def test_all_learners_of_the_library_are_asked() -> None:
    for module in pkgutil.walk_packages(estimators.__path__, "torchdpcate.estimators."):
        importlib.import_module(module.name)
    abstract = {"CATELearner", "RuleLearner", "AverageEffectLearner"}
    own = {kind for kind in below(Answering) if kind.__module__.startswith("torchdpcate.")}
    known = {kind for kind in own if issubclass(kind, PrivateEstimator | AverageEffect)} - {PrivateEstimator}
    assert {kind.__name__ for kind in known} - abstract == {type(make()).__name__ for make, _ in ASKED.values()}
    for make, questions in ASKED.values():
        missed = {name for name in (*EFFECTS, *INTERVALS, "decide", "table") if hasattr(make(), name)} - {*questions}
        assert missed <= {*INTERVALS, "predict"}


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


@pytest.mark.slow
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
