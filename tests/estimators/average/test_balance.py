"""Balance of the arms, the curator's."""

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, FEATURES, arrays
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.balance import exact_balance, names_of
from torchdpcate.fit.feature_maps import Legendre, on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords

THETA = torch.tensor([[0.2, 1.0, -0.5, 0.3, 0.1]], dtype=torch.float64)


def _records(n: int) -> StackedRecords:
    x, z, y = arrays(n, 8)
    return StackedRecords(Batch(x, FEATURES(x), z, y))


def test_differences_of_the_arms_are_those_of_their_means():
    records = _records(4_000)
    x, z, psi = records.batch.x, records.batch.z, records.batch.psi
    found = exact_balance(records, ATE(0.1), FEATURES, THETA)
    assert found.before == pytest.approx((x[z == 1].mean(0) - x[z == 0].mean(0)).tolist(), rel=1e-9)
    w = ATE(0.1).weights(psi @ THETA[0], z)
    after = ((2 * z - 1) * w) @ x / (w.sum() / 2)
    assert found.after == pytest.approx(after.tolist(), rel=1e-9)


def test_features_have_names():
    assert names_of(FEATURES) == list(DOMAIN.names)
    assert names_of(on_domain(Legendre(2), DOMAIN))[:2] == ["feature 1", "feature 2"]
