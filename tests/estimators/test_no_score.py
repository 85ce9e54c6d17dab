"""scikit-learn's searches and cross-validation by no score of one's own are refused before the first fit spends."""

import numpy as np
import pytest
from sklearn import model_selection
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tests.estimators.test_answers import ASKED
from tests.estimators.test_base import A, X, Y
from torchdpcate.errors import InputError

SEARCHES = {
    "cross_val_score": lambda made, x, y: model_selection.cross_val_score(made, x, y, cv=3),
    "cross_validate": lambda made, x, y: model_selection.cross_validate(made, x, y, cv=3),
    "learning_curve": lambda made, x, y: model_selection.learning_curve(made, x, y, cv=3),
    "validation_curve": lambda made, x, y: model_selection.validation_curve(
        made, x, y, param_name="ledger_path", param_range=[None], cv=3
    ),
    "permutation_test_score": lambda made, x, y: model_selection.permutation_test_score(made, x, y, cv=3),
    "GridSearchCV": lambda made, x, y: model_selection.GridSearchCV(made, {"ledger_path": [None]}, cv=3).fit(x, y),
    "RandomizedSearchCV": lambda made, x, y: model_selection.RandomizedSearchCV(
        made, {"ledger_path": [None]}, n_iter=1, cv=3
    ).fit(x, y),
}


@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_fitted_for_a_score_that_is_none(name, monkeypatch):
    learner = ASKED[name][0]()
    fits = []
    monkeypatch.setattr(type(learner), "fit", lambda self, *given, **named: fits.append(given) or self)
    for search in SEARCHES.values():
        with pytest.raises(TypeError, match="If no scoring is specified, the estimator passed should have a 'score'"):
            search(learner, X.numpy(), Y.numpy())
    assert not fits
    assert not hasattr(learner, "score")
    with pytest.raises(InputError, match=r"score: .*scoring=FUNCTION"):
        _ = learner.score


def test_a_pipeline_has_none_either():
    pipeline = make_pipeline(FunctionTransformer(), ASKED["composed"][0]())
    with pytest.raises(TypeError, match="If no scoring is specified"):
        model_selection.cross_val_score(pipeline, X.numpy(), Y.numpy(), cv=3)


def test_with_a_score_of_one_s_own_it_is_done():
    """The way that the messages name; the budget is each fold's."""

    def error(learner, x, y) -> float:
        return -float(np.square(learner.predict(x) - 0.3).mean())

    made, params = ASKED["composed"][0](), {"treatment": A.numpy()}
    found = model_selection.cross_val_score(made, X.numpy(), Y.numpy(), cv=2, scoring=error, params=params)
    assert np.isfinite(found).all()
