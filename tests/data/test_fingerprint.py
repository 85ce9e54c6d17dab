import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.data.checked import fingerprint
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

RNG = np.random.default_rng(0)
X, A, Y = RNG.integers(0, 3, (50, 3)).astype(float), RNG.permutation(np.arange(50) % 2), RNG.normal(size=50)
OWN = fingerprint(X, A, Y)


def test_the_same_records_in_any_form_and_order():
    order = RNG.permutation(50)
    records = CausalData.from_arrays(X, A, Y)
    assert len(OWN) == 64
    assert set(OWN) <= set("0123456789abcdef")
    assert fingerprint(X[order], A[order], Y[order]) == OWN
    assert fingerprint(records.x, records.a, records.y) == OWN
    assert fingerprint(X.astype("f4"), A.astype(bool), pd.Series(Y.astype("f4"))) == OWN
    assert fingerprint(X, A + 1, Y) == OWN
    assert fingerprint(torch.from_numpy(X).float(), A, Y[:, None]) == OWN
    assert fingerprint(np.where(X == 0, -0.0, X), A, Y) == OWN
    domain = Domain([0.0] * 3, [2.0] * 3, -9.0, 9.0, names=["u", "v", "w"])
    frame = pd.DataFrame(X, columns=["u", "v", "w"])[["w", "u", "v"]]
    assert fingerprint(frame, A, Y, TableSchema.from_domain(domain)) == OWN


def test_a_frame_is_encoded_by_its_schema():
    facts = {
        "treatment": "t",
        "outcome": {"name": "y", "low": 0, "high": 1},
        "covariates": {"age": {"low": 0, "high": 9}, "arm": {"categories": ["a", "b", "c"]}},
    }
    schema = TableSchema.from_dict(facts)
    frame = pd.DataFrame({"arm": ["a", "c"], "age": [1.0, 2.0]})
    assert fingerprint(frame, [0, 1], [0.0, 1.0], schema) == fingerprint(schema.matrix(frame), [0, 1], [0.0, 1.0])
    with pytest.raises(InputError, match="give schema"):
        fingerprint(frame, [0, 1], [0.0, 1.0])


def test_any_other_records():
    others = [(X.copy(), A.copy(), Y.copy()) for _ in range(3)]
    others[0][0][7, 1] += 1
    others[1][1][7] = 1 - A[7]
    others[2][2][7] = Y[7] + 1e-3
    others += [(X[1:], A[1:], Y[1:]), (X[:, ::-1].copy(), A, Y), (X, A, Y[::-1].copy()), (X.reshape(-1, 1)[:50], A, Y)]
    found = [fingerprint(*other) for other in others]
    assert len({OWN, *found}) == len(others) + 1
    assert fingerprint([[0.0], [0.0]], [0, 0], [0, 0]) != fingerprint([[0.0] * 4], [0], [0])


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match="X, A and Y have 50, 49 and 50 records"):
        fingerprint(X, A[1:], Y)
    with pytest.raises(InputError, match="outcome must be numbers"):
        fingerprint(X, A, ["a"] * 50)


def test_missing_values_are_records_too_in_whatever_order() -> None:
    a, y = A.astype(float), Y.copy()
    a[[0, 3]], y[[1, 3]] = np.nan, np.nan
    own = fingerprint(X, a, y)
    order = np.random.default_rng(1).permutation(len(X))
    assert fingerprint(X[order], a[order], y[order]) == own
    assert fingerprint(X, a + 1, y) == own
    assert fingerprint(X, A, Y) != own
