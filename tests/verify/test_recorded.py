import math
from functools import cache
from typing import Any

import pytest
import torch

from tests.verify import recorded
from tests.verify.kinds import DEFAULT

CLOSE = 1e-6
"""Of a number, or of the largest of its tensor: a processor's own order of additions moves the last digits alone."""


@cache
def before() -> dict[str, Any]:
    return recorded.recorded()


def differences(found: Any, expected: Any, where: str) -> list[str]:
    """Return where two values of plain types differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if found.keys() != expected.keys():
            return [f"{where}: {sorted(found.keys() ^ expected.keys())} is in one of both"]
        return [said for name in expected for said in differences(found[name], expected[name], f"{where}.{name}")]
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return [f"{where}: {len(found)} entries in place of {len(expected)}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [said for place, (one, other) in pairs for said in differences(one, other, f"{where}[{place}]")]
    alike = found == expected
    if isinstance(expected, float) and isinstance(found, float):
        alike = alike or math.isclose(found, expected, rel_tol=CLOSE)
    return [] if alike else [f"{where}: {found!r} in place of {expected!r}"]


def test_every_kind_is_recorded():
    assert set(before()) == set(recorded.kinds())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [kind if kind in DEFAULT else pytest.param(kind, marks=pytest.mark.slow) for kind in recorded.kinds()]
)
def test_a_release_has_its_numbers(kind):
    (tensors, facts), (needed, stated) = recorded.numbers(kind), before()[kind]
    facts["public"] = {name: value for name, value in facts["public"].items() if name in stated["public"]}
    assert differences(facts, stated, "file") == []  # settings that were not stated then may be by now
    assert tensors.keys() == needed.keys()
    for name, expected in needed.items():
        size = float(expected.abs().max()) if expected.numel() else 0.0
        torch.testing.assert_close(
            tensors[name], expected, rtol=CLOSE, atol=CLOSE * size, msg=lambda m, n=name: f"{n}: {m}"
        )
