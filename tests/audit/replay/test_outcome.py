"""What is seen of a run's outcome: every number, nothing silently left out."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.tools.replay.check import compare, leaves, outcome, rows_moved
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
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


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match=r"result\.a is a SimpleNamespace"):
        leaves({"a": SimpleNamespace(theta=1.0)})
    with pytest.raises(InputError, match="result is a object"):
        outcome(object())


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


def test_a_difference_shows_the_first_number_or_the_shape_or_what_is_absent():
    one, two = torch.zeros(2, 3), torch.zeros(2, 3)
    two[1, 0] = 4.0
    (difference,) = compare({"t": one}, {"t": two}, "result")
    assert (difference.on_d, difference.on_neighbour) == ("0.0, the first of 1 of 6 numbers", "4.0")
    (difference,) = compare({"t": one}, {"t": torch.zeros(3)}, "result")
    assert difference.on_neighbour == "(3,) torch.float32"
    (difference,) = compare({"t": 1.0}, {}, "result")
    assert difference.on_neighbour == "absent"
    (difference,) = compare({"t": "x" * 500}, {"t": ""}, "result")
    assert len(difference.on_d) == 200


def test_rows_are_counted_once_however_many_parts_changed():
    x, y = torch.zeros(5, 2), torch.zeros(5)
    other = x.clone(), y.clone()
    other[0][1], other[1][1], other[1][3] = 1.0, 1.0, 1.0
    assert rows_moved((x, y), other) == 2
    assert rows_moved((x, y), (x[:4], y[:4])) == 5


def test_a_folder_is_read_by_contents(tmp_path):
    from safetensors.torch import save_file

    for name, flip in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        metadata = {"x": '{"k": 1}', "y": "text"}
        metadata = dict(reversed(metadata.items())) if flip else metadata
        save_file({"t": torch.ones(2)}, tmp_path / name / "f.safetensors", metadata=metadata)
        (tmp_path / name / "note.md").write_text("the same")
        (tmp_path / name / "facts.json").write_text('{"n": 3}' if flip else '{ "n": 3 }')
    first, second = (outcome(SimpleNamespace(folder=tmp_path / name)) for name in "ab")
    assert compare(first, second, "result") == []
    assert first["folder/f.safetensors.x.k"] == 1
    assert first["folder/f.safetensors.tensors.t"].tolist() == [1.0, 1.0]
    (tmp_path / "b" / "note.md").write_text("another")
    (difference,) = compare(first, outcome(SimpleNamespace(folder=tmp_path / "b")), "result")
    assert difference.place == "folder/note.md"


def test_plain_results_are_seen_as_they_are():
    assert outcome({"budget": PrivacyBudget(1.0, 0.0)})["result.budget.epsilon"] == 1.0
    assert outcome(None) == {"result": None}
