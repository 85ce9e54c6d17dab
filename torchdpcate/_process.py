"""What a process runs on: signals that end it, CPU threads, its cache, a GPU's memory, torchrun."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, Self

from torchdpcate.errors import InputError

BATCH = 4_096
"""Records that are worked on at once: what is made of them stays in a processor's cache."""
# Below this many parameters a step is shorter than waking a second thread, and on a busy machine the
# threads wait for each other: two threads were measured 7 times slower than one there.
_SMALL = 100_000


class Terminated(SystemExit):
    """The process was asked to end; if it is not caught, the process ends with the code that shells use for SIGTERM."""

    CODE = 128 + int(signal.SIGTERM)

    def __init__(self) -> None:
        super().__init__(self.CODE)


@contextmanager
def terminable() -> Iterator[None]:
    """Raise ``Terminated`` on SIGTERM while the block runs; not where the signal is handled or ignored already.

    Example:
        >>> import os
        >>> try:
        ...     with terminable():
        ...         os.kill(os.getpid(), signal.SIGTERM)
        ... except Terminated as end:
        ...     print(end.code)
        143
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class HeldSignals:
    """Let Ctrl-C and SIGTERM wait for `deliver`, which is called where nothing is half done.

    Python runs a signal's handler between any two instructions. What it raises in a destructor is dropped, and what it
    raises while a lock is taken or given back may leave the lock held. A signal that comes again while it waits is
    handled at once. Signals whose handler is not a function, and those of threads other than the main one, are left
    alone: a job in the background, which is started with Ctrl-C ignored, goes on ignoring it.

    Example:
        >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
        >>> with HeldSignals() as held:
        ...     signal.raise_signal(signal.SIGINT)
        ...     try:
        ...         held.deliver()
        ...     except KeyboardInterrupt:
        ...         print("now")
        now
        >>> signal.signal(signal.SIGINT, before) is signal.default_int_handler
        True
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if callable(before):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:  # Lightning ignores Ctrl-C while it ends a fit
                signal.signal(number, before)

    def deliver(self) -> None:
        """Call the handlers of the signals that have come, in their order; one that raises leaves the later waiting."""
        while self._waiting:
            number = self._waiting.pop(0)
            self._before[number](number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._waiting:
            self._before[number](number, frame)
        else:
            self._waiting.append(number)


def _raise(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows settles the ledger
    raise Terminated


def imported(name: str) -> ModuleType:
    """Import a module without collecting garbage: what imports make stays, and later collections pass over it.

    Args:
        name: Of the module.

    Example:
        >>> imported("json").dumps([1])
        '[1]'
    """
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.enable()
        gc.freeze()


@contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """Run the block on one CPU thread if the network is small, as before otherwise.

    Args:
        parameters: Number of the network's parameters.
    """
    import torch

    before = torch.get_num_threads()
    try:
        if parameters < _SMALL:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def gpu_memory(what: str, remedy: str) -> Iterator[None]:
    """Make a GPU's lack of memory an error that names the setting to lower.

    What was charged stays charged: the ledger is not touched.

    Args:
        what: What was being done.
        remedy: Which settings to lower, in the imperative.

    Raises:
        InputError: In place of ``torch.OutOfMemoryError``.

    Example:
        >>> import torch
        >>> with gpu_memory("fit", "lower n"):
        ...     raise torch.OutOfMemoryError("CUDA out of memory")
        Traceback (most recent call last):
        torchdpcate.errors.InputError: fit: the GPU has too little memory; lower n, or use trainer.accelerator=cpu
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        raise InputError(f"{what}: the GPU has too little memory; {remedy}, or use trainer.accelerator=cpu") from None


def refuse_torchrun() -> None:
    """Refuse to be one of several processes that torchrun has started with the same words.

    Raises:
        InputError: It is; each would charge the budget and release something of its own.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and count != "1":
        raise InputError(
            f"torchrun: each of its {count} processes would fit, charge and release on its own; start one process"
        )
