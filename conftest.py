"""What every test needs of the process, and in which tier it runs (the markers of ``pyproject.toml``)."""

import gc
import importlib.util
import os
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import absl.logging
import pytest
from hypothesis import settings

# The tests' tensors are small: threads cost more than they give. Before torch is imported, and for processes started.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# EconML imports Ray, which looks for these once: without a token a cluster of its own would be refused.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

# Where the shell says to write no bytecode, each of hundreds of processes would compile the package anew.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(__file__).parent / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
# Runs note which files they are on in the user's state: not in that of who runs the tests. Also of processes started.
_state = tempfile.TemporaryDirectory(prefix="torchdpcate-tests-")
os.environ["XDG_STATE_HOME"] = _state.name

# The same examples on every run, and no clock: a busy machine is no failure.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# absl (which dp_accounting imports) closes the stream it found as stderr whenever logging is configured anew, as Hydra
# does; under pytest that stream is the capture's own file. It never closes the process's real one.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

TESTS = Path(__file__).parent / "tests"
PACKAGE = TESTS.parent / "torchdpcate"
EXTRAS = {PACKAGE / "pages" / "explore.py": "nicegui", PACKAGE / "cli" / "flower_apps.py": "flwr"}
"""Modules that import a library of an extra."""
FOLDERS = {TESTS / "faults": "faults", TESTS / "experiments": "studies"}
"""Tiers of whole folders."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Look for examples in the package and not in what the tests use: importing that may start a training."""
    if collection_path in EXTRAS and importlib.util.find_spec(EXTRAS[collection_path]) is None:
        return True
    helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if helper and collection_path.is_relative_to(TESTS) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among modules and tests, of which none is: neither while they are read nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the folders that are a tier, and what ``first(n)`` leaves to the slow one."""
    seen: Counter[str] = Counter()
    for item in items:
        for folder, tier in FOLDERS.items():
            if item.path.is_relative_to(folder):
                item.add_marker(tier)
        if (first := item.get_closest_marker("first")) is not None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > first.args[0]:
                item.add_marker("slow")
