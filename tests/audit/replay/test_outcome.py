"""What is seen of a run's outcome: every number, nothing silently left out."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.tools.replay.check import compare, leaves
from torchdpcate.data.domain import Domain
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Level


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def test_leaves_reach_every_kind_of_part():
    module = torch.nn.Linear(2, 1)
    found = leaves(
        {
            "pair": Pair([1, 2.0], None),
            "array": np.arange(3.0),
            "number": np.float32(0.5),
            "level": Level.CERTIFIED,
            "domain": Domain([0.0], [1.0], -1.0, 2.0, better="higher"),
            "event": PureEvent(0.5),
            "module": module,
            "function": math.sqrt,
        }
    )
    assert found["result.pair.left[1]"] == 2.0
    assert found["result.pair.right"] is None
    assert found["result.array"].tolist() == [0.0, 1.0, 2.0]
    assert found["result.number"] == 0.5
    assert found["result.level"] == "certified"
    assert found["result.domain.outcome_high"] == 2.0
    assert found["result.event.epsilon"] == 0.5
    assert torch.equal(found["result.module.weight"], module.weight)
    assert found["result.function"] == "sqrt"


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
