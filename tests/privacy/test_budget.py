import pytest

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget


@pytest.mark.parametrize("epsilon", [0, -1.0, float("inf"), float("nan"), "much", None])
def test_epsilon_is_positive_and_finite(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        PrivacyBudget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2, float("nan")])
def test_delta_is_a_probability_below_one(delta):
    with pytest.raises(InputError, match="delta"):
        PrivacyBudget(1.0, delta)


def test_budget_is_frozen_equal_by_value_and_round_trips():
    budget = PrivacyBudget(1, 0)
    assert budget == PrivacyBudget(1.0, 0.0)
    assert PrivacyBudget.from_dict(budget.to_dict()) == budget
    with pytest.raises(AttributeError):
        budget.epsilon = 2.0
    with pytest.raises(InputError, match="keys"):
        PrivacyBudget.from_dict({"epsilon": 1.0})
