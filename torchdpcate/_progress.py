"""Bars of long steps that no Trainer counts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SHOWN = ContextVar("shown", default=False)


@contextmanager
def progress(shown: bool) -> Iterator[None]:
    """Show the bars of the block's steps, or none.

    Args:
        shown: Whether to.
    """
    token = _SHOWN.set(shown)
    try:
        yield
    finally:
        _SHOWN.reset(token)


@contextmanager
def bar(name: str) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs, where ``progress`` has them shown, and give what counts a part of the step.

    Args:
        name: What is done.

    Example:
        >>> with progress(False), bar("Kernel ridge") as count:
        ...     count()
    """
    if not _SHOWN.get():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns) as shown:
        task = shown.add_task(name, total=None)
        yield lambda: shown.advance(task)
        shown.update(task, total=max(1, shown.tasks[task].completed), completed=max(1, shown.tasks[task].completed))
