"""Balance of the arms, the curator's: differences of means by hand, and of learners and averages alike."""

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, FEATURES, arrays
from torchdpcate import AverageEffect, NoiseSource, PrivacyBudget, RLearner
from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.balance import exact_balance, names_of, weighted_balance
from torchdpcate.fit.feature_maps import Legendre, on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords

THETA = torch.tensor([[0.2, 1.0, -0.5, 0.3, 0.1]], dtype=torch.float64)


def test_differences_of_the_arms_are_those_of_their_means():
    x, z, y = arrays(4_000, 8)
    psi = FEATURES(x)
    found = exact_balance(StackedRecords(Batch(x, psi, z, y)), ATE(0.1), FEATURES, THETA)
    assert found.before == pytest.approx((x[z == 1].mean(0) - x[z == 0].mean(0)).tolist(), rel=1e-9)
    w = ATE(0.1).weights(psi @ THETA[0], z)
    after = ((2 * z - 1) * w) @ x / (w.sum() / 2)
    assert found.after == pytest.approx(after.tolist(), rel=1e-9)


def test_features_have_names():
    assert names_of(FEATURES) == list(DOMAIN.names)
    assert names_of(on_domain(Legendre(2), DOMAIN))[:2] == ["feature 1", "feature 2"]


def test_weighted_differences_by_hand_and_of_a_covariate_that_does_not_vary():
    domain = Domain([0.0, 0.0], [10.0, 1.0], -5.0, 5.0, overlap=0.1)
    x = torch.tensor([[0.0, 1.0], [10.0, 1.0], [10.0, 1.0], [10.0, 1.0]]).double()
    a = torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    found = weighted_balance(domain, CausalData(x, a, a), torch.tensor([0.5, 0.75, 0.5, 0.5]).double())
    # values -1 and 1 three times: deviation sqrt(3)/2; controls weigh 2 and 4
    assert found.before == pytest.approx([1.0 / (3**0.5 / 2), 0.0])
    assert found.after == pytest.approx([(1 - (4 - 2) / 6) / (3**0.5 / 2), 0.0])


@pytest.mark.parametrize("learner", [AverageEffect, RLearner])
def test_learners_tell_the_curator(learner):
    fitted = learner(DOMAIN, PrivacyBudget(8.0, 1e-5), noise=NoiseSource.fixed(0)).fit(*arrays(3_000, 8))
    found = fitted.nonprivate_balance()
    assert list(found.frame().columns) == ["before", "after"]
    assert max(map(abs, found.after)) < max(map(abs, found.before))
