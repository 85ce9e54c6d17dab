"""Attacks in processes of their own, which end with the one that started them."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

import torch

from torchdpcate.audit.attack import AuditResult
from torchdpcate.errors import ProcessError


def in_processes(
    attack: Callable[[str], AuditResult],
    names: list[str],
    processes: int,
    on_done: Callable[[str, int, int], None],
) -> list[AuditResult]:
    """Attack mechanisms, each in the next process that is free, on one thread.

    Args:
        attack: Of a mechanism of this name; a function of a module, for processes are started anew.
        names: Of the mechanisms; the results are in their order.
        processes: How many.
        on_done: Called with (the last mechanism that was done, mechanisms done, mechanisms in all).

    Raises:
        ProcessError: A process was killed.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(min(processes, len(names)), get_context("spawn"), initializer=_begin)
    try:
        running = {pool.submit(attack, name): name for name in names}
        for done, one in enumerate(as_completed(running), 1):
            one.result()
            on_done(running[one], done, len(names))
        return [one.result() for one in running]
    except BrokenProcessPool:
        raise ProcessError(
            f"processes = {processes}: one of them was killed, perhaps for want of memory; give fewer, or 1"
        ) from None
    finally:
        for process in set(active_children()) - others:
            process.terminate()
        # The pool's thread waits for its processes too: who waited beside it could be told of one that was waited for.
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's, which ends the others
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
