import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

X = [[0.1, 1.0], [0.2, 2.0], [0.3, 3.0]]


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor, pd.DataFrame])
def test_from_arrays_takes_numpy_torch_and_pandas(convert) -> None:
    records = CausalData.from_arrays(convert(X), np.array([0, 1, 1]), pd.Series([1.0, 2.0, 3.0]))
    assert records.n == len(records) == 3
    assert records.x.dtype == records.a.dtype == records.y.dtype == torch.float64
    torch.testing.assert_close(records.x, torch.tensor(X, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("x", "a", "y", "words"),
    [
        ([1.0, 2.0, 3.0], [0, 1, 1], [0, 0, 0], "X has shape"),
        (X, [0, 1], [0, 0, 0], "3, 2 and 3 records"),
        (X, [0, 1, 2], [0, 0, 0], "treatment has 1 value other than 0 and 1"),
        (X, [0, 0, 0], [0, 0, 0], "no record with value 1"),
        (X, [0, np.nan, 1], [0, 0, 0], "treatment has 1 missing"),
        (X, [0, 1, 1], [0, np.inf, 0], "outcome has 1 missing or infinite"),
        (X, [0, 1, 1], ["a", "b", "c"], "outcome must be numbers"),
        ([[0.1, np.nan], [np.nan, np.nan], [0.1, 1]], [0, 1, 1], [0, 0, 0], "column 'x1' has 2 missing"),
        (pd.DataFrame({"w": [1, 2, 3], "v": ["p", "q", "r"]}), [0, 1, 1], [0, 0, 0], "column 'v' must be"),
        (pd.DataFrame({"w": [1, None, 3]}), [0, 1, 1], [0, 0, 0], "column 'w' has 1 missing"),
    ],
)
def test_bad_records_are_refused_in_one_line(x, a, y, words) -> None:
    with pytest.raises(InputError, match=words) as caught:
        CausalData.from_arrays(x, a, y)
    assert "\n" not in str(caught.value)


def test_labels_that_pair_other_rows_than_positions_are_refused() -> None:
    x, a, y = pd.DataFrame(X, columns=["x0", "x1"]), pd.Series([0, 1, 1]), pd.Series([0.0, 0.5, 1.0])
    schema = TableSchema.of(Domain([0, 0], [5, 5], 0, 1, better="higher"))
    turned = y.iloc[[2, 0, 1]]
    words = r"^X and Y have different indexes: .*\.loc\[X\.index\].*reset_index\(drop=True\)"
    for build in (schema.records, CausalData.from_arrays):
        with pytest.raises(InputError, match=words):
            build(x, a, turned)
        with pytest.raises(InputError, match="X and A have different indexes"):
            build(x, a.iloc[::-1], y)
        with pytest.raises(InputError, match="A and Y have different indexes"):
            build(x.to_numpy(), a, turned)
        with pytest.raises(InputError, match="3, 3 and 2 records"):
            build(x, a, y[:2])
        assert build(x.iloc[[2, 0, 1]], a.iloc[[2, 0, 1]], turned).y.tolist() == [1.0, 0.0, 0.5]
        assert build(x.iloc[[2, 0, 1]], a.iloc[[2, 0, 1]], [1.0, 0.0, 0.5]).n == 3  # no labels, no quarrel
        assert build(x, a.to_numpy(), turned.reset_index(drop=True)).n == 3
