"""What a learner answers by itself: its one release, paid for once, by the names of scikit-learn and EconML."""

import importlib
import pkgutil
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from sklearn import model_selection
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from tests.estimators.families import BUDGET, FAMILIES, OBSERVED, TRIAL, A, X, Y, made
from tests.registered import AverageEffect, RLearner
from torchdpcate import estimators
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import Answering
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.privacy.budget import PrivacyBudget

QUERIES = X[:5]
EFFECTS, DECISIONS, AVERAGES = ("effect", "predict", "ate"), ("decide", "predict"), ("ate", "ate_interval")
INTERVALS = ("effect_interval", "ate_interval")
ASKED = {
    "effect": (*EFFECTS, *INTERVALS),
    **dict.fromkeys(("doubly robust", "two blocks"), EFFECTS),
    **dict.fromkeys(("weighted rule", "two stages", "fixed policies", "policies"), DECISIONS),
    "rule": (*DECISIONS, "effect", "ate"),
    **dict.fromkeys(("average of a trial", "balancing"), AVERAGES),
    **dict.fromkeys(("average", "line subgroups"), (*EFFECTS, "ate_interval")),
    "subgroups": ("lines",),
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


def asked(name: str):
    """Return the learner of a trial, but for families that estimate its propensity."""
    return made(name, OBSERVED if name in ("balancing", "policies") else TRIAL)


def requested(learner, question: str):
    return getattr(learner, question)(*() if question == "lines" else (QUERIES,))


def spent(learner) -> float | None:
    return learner.ledger_.spent()["total"]["epsilon"]


@pytest.mark.parametrize("name", ASKED)
def test_all_questions_are_one_release_within_the_budget_of_one_fit(name: str) -> None:
    learner, questions = asked(name).fit(X, A, Y), ASKED[name]
    answers = {question: requested(learner, question) for question in questions}
    entries = len(learner.ledger_.entries)
    paid = spent(learner)
    assert paid is None or paid <= BUDGET.epsilon * (1 + 1e-9)  # of research alone nothing is known
    for question, answer in answers.items():
        assert np.array_equal(requested(learner, question), answer)
    release = learner.release()  # what was requested first, and paid for
    question = questions[0]
    own = release.estimate[0] if question == "ate" else requested(release, question)
    assert np.array_equal(own, answers[question])
    for field in ("theta", "estimate", "numbers", "action"):
        assert repr(getattr(release, field, None)) == repr(getattr(learner.release(), field, None))
    with pytest.raises(InputError, match=rf"fit: this {type(learner).__name__} is fitted.*clone"):
        learner.fit(X, A, -Y)
    assert np.array_equal(requested(learner, question), answers[question])
    assert len(learner.ledger_.entries) == entries
    assert spent(learner) == paid


def below(kind: type) -> Iterator[type]:
    for own in kind.__subclasses__():
        yield own
        yield from below(own)


def test_all_learners_of_the_library_are_asked() -> None:
    for module in pkgutil.walk_packages(estimators.__path__, "torchdpcate.estimators."):
        importlib.import_module(module.name)
    abstract = {"CATELearner", "RuleLearner", "AverageEffectLearner"}
    own = {kind for kind in below(Answering) if kind.__module__.startswith("torchdpcate.")}
    known = {kind for kind in own if issubclass(kind, PrivateEstimator | AverageEffect)} - {PrivateEstimator}
    assert {kind.__name__ for kind in known} - abstract == {kind.__name__ for kind, _ in FAMILIES.values()}
    assert ASKED.keys() == FAMILIES.keys()
    for name, questions in ASKED.items():
        learner = asked(name)
        missed = {name for name in (*EFFECTS, *INTERVALS, "decide", "lines") if hasattr(learner, name)} - {*questions}
        assert missed <= {*INTERVALS, "predict"}
        assert not hasattr(learner, "score")


def test_they_are_the_release_s_own_answers() -> None:
    learner = asked("effect").fit(X, A, Y)
    release = learner.release_function()
    assert np.array_equal(learner.effect(QUERIES), release.effect(QUERIES))
    assert learner.ate(QUERIES) == release.effect(QUERIES).mean()
    low, high = learner.effect_interval(QUERIES, alpha=0.1)
    assert np.array_equal(np.stack([low, high], 1), release.interval(QUERIES, 0.9))
    assert learner.ate_interval(QUERIES) == tuple(release.mean_interval(QUERIES)[0])


def test_a_release_made_before_answers_and_what_has_no_intervals() -> None:
    learner = made("two blocks").fit(X, A, Y)
    release = learner.release(budget=PrivacyBudget(2.0, 2e-6))
    paid = spent(learner)
    assert np.array_equal(learner.effect(QUERIES), release.effect(QUERIES))
    with pytest.raises(InputError, match="ate_interval: a release by objective has no confidence intervals"):
        learner.ate_interval(QUERIES)
    assert spent(learner) == paid


def test_a_pipeline_hands_treatment_and_outcome_on() -> None:
    frame = pd.DataFrame(X.numpy(), columns=["age", "height"])
    steps = [("same", FunctionTransformer()), ("effects", asked("effect"))]
    pipeline = Pipeline(steps).fit(frame, Y.numpy(), effects__treatment=A.numpy())
    assert pipeline.predict(frame).shape == (600,)
    assert pipeline.set_params(effects__budget=PrivacyBudget(2.0, 1e-5)).get_params()["effects__budget"].epsilon == 2
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(pipeline["effects"]))


@pytest.mark.parametrize("name", ["effect", "two stages", "policies", "balancing", "average"])
def test_scikit_learn_s_checks(name: str) -> None:
    for check in CHECKS:
        getattr(estimator_checks, check)(name, asked(name))


SEARCHES = {
    "cross_val_score": lambda made, x, y: model_selection.cross_val_score(made, x, y, cv=3),
    "learning_curve": lambda made, x, y: model_selection.learning_curve(made, x, y, cv=3),
    "permutation_test_score": lambda made, x, y: model_selection.permutation_test_score(made, x, y, cv=3),
    "GridSearchCV": lambda made, x, y: model_selection.GridSearchCV(made, {"ledger_path": [None]}, cv=3).fit(x, y),
    "pipeline": lambda made, x, y: model_selection.cross_val_score(make_pipeline(FunctionTransformer(), made), x, y),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_nothing_is_fitted_for_a_score_that_is_none(search, monkeypatch) -> None:
    """scikit-learn's searches by no score of one's own are refused before the first fit spends."""
    learner, fits = asked("effect"), []
    monkeypatch.setattr(RLearner, "fit", lambda self, *given, **named: fits.append(given) or self)
    with pytest.raises(TypeError, match="If no scoring is specified"):
        SEARCHES[search](learner, X.numpy(), Y.numpy())
    assert not fits
    with pytest.raises(InputError, match=r"score: .*scoring=FUNCTION"):
        _ = learner.score


def test_with_a_score_of_one_s_own_it_is_done() -> None:
    """The way that the messages name; the budget is each fold's."""

    def error(learner, x, y) -> float:
        return -float(np.square(learner.predict(x) - 0.3).mean())

    given = {"cv": 2, "scoring": error, "params": {"treatment": A.numpy()}}
    assert np.isfinite(model_selection.cross_val_score(asked("effect"), X.numpy(), Y.numpy(), **given)).all()
