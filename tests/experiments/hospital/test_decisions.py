"""Regrets of decisions: the best has none, a coin has one."""

import pytest
import torch

from experiments.defaults.hospital_laws import hospital_case
from experiments.hospital import decisions


def test_regrets_are_over_those_of_chance():
    case = hospital_case("interaction", 3, 300)
    gain = case.truth - case.average
    assert decisions._rule_regret(gain > 0, case) == 0
    assert decisions._rule_regret(gain <= 0, case) == pytest.approx(2)
    lost = decisions._policy_regrets(case)
    assert lost.shape == (4,)
    assert lost.min() == 0
    assert torch.allclose(lost[0] - lost[1], gain.mean())
