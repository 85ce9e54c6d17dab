"""The curator's balance: by hand, perfect where the propensity is right, and of learners and averages alike."""

import pytest
import torch

from torchdpcate import AverageEffect, Domain, NoiseSource, PrivacyBudget, RLearner
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.balance import weighted_balance

DOMAIN = Domain([0.0, 0.0], [10.0, 1.0], -5.0, 5.0, overlap=0.1)


def records(n: int = 3_000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=random, dtype=torch.float64) * torch.tensor([10.0, 1.0])
    pi = 0.2 + 0.06 * x[:, 0]
    a = (torch.rand(n, generator=random, dtype=torch.float64) < pi).double()
    return x, a, x[:, 0] / 10 + a, pi


def test_by_hand():
    x = torch.tensor([[0.0, 1.0], [10.0, 1.0], [10.0, 1.0], [10.0, 1.0]]).double()
    a = torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    found = weighted_balance(DOMAIN, CausalData(x, a, a), torch.tensor([0.5, 0.75, 0.5, 0.5]).double())
    # values -1 and 1 three times: deviation sqrt(3)/2; controls weigh 2 and 4
    assert found.before == pytest.approx([1.0 / (3**0.5 / 2), 0.0])
    assert found.after == pytest.approx([(1 - (4 - 2) / 6) / (3**0.5 / 2), 0.0])
    assert found.unit == "standard deviations"


def test_a_constant_covariate_is_balanced():
    x, a, y, pi = records()
    x[:, 1] = 0.3
    found = weighted_balance(DOMAIN, CausalData(x, a, y), pi)
    assert found.before[1] == found.after[1] == 0.0


def test_the_true_propensity_balances():
    x, a, y, pi = records()
    found = weighted_balance(DOMAIN, CausalData(x, a, y), pi)
    assert found.before[0] > 0.3
    assert abs(found.after[0]) < 0.1 * 2  # five standard errors are .18


@pytest.mark.parametrize("learner", [AverageEffect, RLearner])
def test_learners_tell_the_curator(learner):
    x, a, y, _ = records()
    fitted = learner(DOMAIN, PrivacyBudget(4.0, 1e-5), noise=NoiseSource.fixed(0)).fit(x, a, y)
    found = fitted.nonprivate_balance()
    assert list(found.frame().columns) == ["before", "after"]
    assert abs(found.after[0]) < found.before[0]
