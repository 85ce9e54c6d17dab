"""What is seen of a run's outcome: every number, nothing silently left out."""

import math

import pytest
import torch

from tests.tools.replay.check import compare


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (1.0, 1.0, True),
        (1.0, math.nextafter(1.0, 2.0), False),
        (math.nan, math.nan, True),
        (1, True, False),
        (1, 1.0, False),
        (torch.zeros(2), torch.zeros(2), True),
        (torch.zeros(2), -torch.zeros(2), False),
        (torch.zeros(2), torch.zeros(2).double(), False),
        (torch.zeros(2), torch.zeros(1, 2), False),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), True),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.zeros(1), 0.0, False),
    ],
)
def test_values_are_the_same_bit_for_bit_or_not(before, after, same):
    assert (compare({"v": before}, {"v": after}, "result") == []) is same
