import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.pages.releases import SCHEMA, composed
from torchdpcate.data._arrays import as_frame

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
