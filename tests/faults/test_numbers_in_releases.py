"""Every number that a reader rebuilds a plan from has a bound: one beyond it costs neither time nor memory."""

import json
import resource
from typing import Any

import pytest

from tests.faults.guards import bounded
from tests.verify import forgeries as forge
from tests.verify.kinds import KINDS
from torchdpcate.errors import TorchDPCateError
from torchdpcate.verify.file import verify_release

CHOSEN = (
    *("objective", "queries", "fourier", "kernel", "private weights"),
    *("composed, chosen covariates", "composed, trial", "composed, pure", "composed, planned rule", "composed, rule"),
    *("subgroups, separate", "average, ATE", "policy, fixed"),
)
POISON: tuple[Any, ...] = (
    *(10**10, 2**63, 10**400, -1, 0, float("nan"), float("inf"), 1e308, 1e-308),
    *("x" * 100_000, [1.0] * 100_000, [[0]] * 1000),
)
MEMORY_MIB, SECONDS = 700, 60
PARTS = ("privacy", "facts", "schema")
SEEN: set = set()
"""Numbers that were tried in an earlier kind."""


def places(value: Any, path: tuple = ()):
    """Paths of the numbers in plain types, and of the lines that state a plan's constants; of a list the first one."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from places(entry, (*path, name))
    elif isinstance(value, list):
        whole = value if path[-1] == "constants" else value[:1]
        for place, entry in enumerate(whole):
            yield from places(entry, (*path, place))
    elif type(value) in (int, float) or (isinstance(value, str) and "constants" in path):
        yield path


def replaced(whole: Any, path: tuple, value: Any) -> None:
    for step in path[:-1]:
        whole = whole[step]
    old = whole[path[-1]]
    whole[path[-1]] = f"{old.split('=')[0]}={json.dumps(value)}" if isinstance(old, str) else value


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return forge.written(KINDS, tmp_path_factory.mktemp("numbers"))


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_number_beyond_any_is_refused_in_a_line(kind, written, tmp_path):
    honest = written(kind)
    verify_release(honest)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = forge.opened(honest)
    for part in PARTS:
        for path in list(places(getattr(first, part))):
            line = getattr(first, part)
            for step in path:
                line = line[step]
            key = (
                part,
                *(step for step in path if isinstance(step, str)),
                str(line).split("=")[0][:20] if isinstance(line, str) else "",
            )
            if key in SEEN:
                continue
            SEEN.add(key)
            for value in POISON:
                draft = forge.opened(honest)
                replaced(getattr(draft, part), path, value)
                with bounded(SECONDS, MEMORY_MIB << 20):
                    assert refused_or_read(draft, honest, tmp_path), (key, str(value)[:30])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def refused_or_read(draft, honest, folder) -> bool:
    """Whether the file verifies, or is refused in a short line for another reason than memory or time."""
    path = forge.forged(honest, lambda own: own.__dict__.update(draft.__dict__), folder / "release.safetensors")
    try:
        verify_release(path)
    except TorchDPCateError as error:
        cause = error.__cause__
        return not isinstance(cause, MemoryError | AssertionError) and "\n" not in str(error) and len(str(error)) < 5000
    return True
