"""What a reader must never do: run code, hang, take all memory, or fail with anything but an error of ours."""

import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from torchdpcate.errors import TorchDPCateError

SECONDS = 120  # no timing: only so that a hang ends
MEMORY = 2 << 30


@contextmanager
def nothing_unpickled() -> Iterator[None]:
    """Fail the test if anything is unpickled."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("something was unpickled")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("load", "loads", "Unpickler"):
            patch.setattr(pickle, name, refuse)
        patch.setattr(torch, "load", refuse)
        yield


@contextmanager
def bounded(seconds: int = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """End a hang by an error, and refuse memory beyond what the process has by ``memory`` bytes."""

    def hung(*_: Any) -> None:
        raise AssertionError(f"no answer within {seconds} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hung)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


class Touch:
    """Something whose unpickling makes a folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def refusal(call: Callable[[], object]) -> TorchDPCateError | None:
    """Return the error of ours by which the call refused, None if it answered; any other error passes through."""
    with bounded():
        try:
            call()
        except TorchDPCateError as error:
            return error
    return None


def answered(call: Callable[[], object]) -> bool:
    """Tell whether the call answered rather than refused."""
    return refusal(call) is None
