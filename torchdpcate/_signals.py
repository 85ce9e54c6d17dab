"""SIGTERM as an exception, so that what is under way is settled before the process ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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


def _raise(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows settles the ledger
    raise Terminated
