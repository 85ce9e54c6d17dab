import math

import pytest
import torch

from torchdpcate.evaluation.comparison import decision_accuracy, pehe, policy_value

DECISION = torch.tensor([1, 0, 1, 1, 0])
A = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
Y = torch.tensor([2.0, -1.0, 5.0, 4.0, 9.0], dtype=torch.float64)
PI = torch.tensor([0.5, 0.2, 0.3, 0.8, 0.1], dtype=torch.float64)


def test_the_value_by_hand():
    # followed: records 0, 1 and 3, with propensities 1/2, 1 - 1/5 and 4/5
    expected = (2.0 / 0.5 - 1.0 / 0.8 + 4.0 / 0.8) / (1 / 0.5 + 1 / 0.8 + 1 / 0.8)
    assert policy_value(DECISION, A, Y, PI) == pytest.approx(expected, rel=1e-14)


def test_treat_all_and_treat_none_of_a_fair_coin_are_the_arms_means():
    half = torch.full_like(PI, 0.5)
    assert policy_value(torch.ones(5), A, Y, half) == pytest.approx(5.0)
    assert policy_value(torch.zeros(5), A, Y, half) == pytest.approx(2.0)


def test_a_rule_that_nobody_followed_has_no_value():
    assert math.isnan(policy_value(1 - A, A, Y, PI))


def test_accuracy_counts_the_best_decisions():
    effect = torch.tensor([1.0, -2.0, -0.1, 0.0, 3.0])
    assert decision_accuracy(DECISION, effect) == pytest.approx(2 / 5)  # an effect of zero is not worth a treatment


def test_pehe_is_the_root_mean_squared_error():
    assert pehe(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0])) == pytest.approx(math.sqrt(4.5), rel=1e-12)
