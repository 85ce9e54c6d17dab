import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.pages.releases import SCHEMA, composed
from torchdpcate import PrivacyBudget, RLearner
from torchdpcate.data._arrays import as_frame
from torchdpcate.errors import InputError

ROWS = pd.DataFrame({"age": [30.0, 70.0], "site": ["a", "b"]})


def test_a_table_is_the_same_in_pandas_arrow_and_a_dict():
    for table in (pa.table(ROWS.to_dict("list")), ROWS.to_dict("list"), ROWS):
        pd.testing.assert_frame_equal(as_frame(table), ROWS)


def test_a_polars_frame_is_the_same_table():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    pd.testing.assert_frame_equal(as_frame(polars.DataFrame(ROWS.to_dict("list"))), ROWS)
    pd.testing.assert_frame_equal(as_frame(polars.LazyFrame(ROWS.to_dict("list"))), ROWS)


def test_one_row_is_a_dict_or_a_named_series():
    for row in ({"age": 30.0, "site": "a"}, ROWS.iloc[0]):
        pd.testing.assert_frame_equal(as_frame(row), ROWS.iloc[:1])


def test_a_release_answers_each_of_them():
    release = composed()
    effects = release.effect(ROWS)
    for X in (pa.table(ROWS.to_dict("list")), ROWS.to_dict("list"), SCHEMA.encode(ROWS).numpy()):
        np.testing.assert_array_equal(release.predict(X), effects)
    assert release.effect({"age": 30.0, "site": "a"}).tolist() == effects[:1].tolist()
    assert release.ate(ROWS) == pytest.approx(effects.mean(), rel=1e-12)
    low, high = release.effect_interval(ROWS, alpha=0.1)
    np.testing.assert_array_equal(np.stack([low, high], 1), release.interval(ROWS, 0.9))


def test_no_rows_have_no_mean_effect():
    with pytest.raises(InputError, match="no rows"):
        composed().ate(ROWS.iloc[:0])


def test_outcomes_second_and_the_treatment_by_name_are_the_same_fit():
    from torchdpcate.privacy.noise import FixedNoise

    x = pd.DataFrame({"age": np.tile([30.0, 50.0, 70.0, 60.0], 50), "site": ["a", "b"] * 100})
    a, y = np.arange(200) // 2 % 2, np.linspace(0, 10, 200)
    learners = [RLearner(SCHEMA, PrivacyBudget(1.0, 1e-5), noise=FixedNoise(0)) for _ in range(2)]
    one, two = learners[0].fit(x, a, y), learners[1].fit(x.to_dict("list"), y, treatment=a)
    np.testing.assert_array_equal(*(learner.release_function().effect(ROWS) for learner in (one, two)))


@pytest.mark.parametrize("named", [{}, {"Y": [0.0], "treatment": [0]}])
def test_neither_or_both_ways_to_name_the_treatment_are_refused(named):
    learner = RLearner(SCHEMA, PrivacyBudget(1.0, 1e-5))
    with pytest.raises(InputError, match=r"call fit\(X, A, Y\) or fit\(X, Y, treatment=A\)"):
        learner.fit(ROWS, [0, 1], **named)
