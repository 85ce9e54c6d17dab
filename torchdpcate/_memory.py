"""What is said where a GPU has too little memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchdpcate.errors import InputError


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
        >>> with gpu_memory("training", "lower batch_size"):
        ...     raise torch.OutOfMemoryError("CUDA out of memory")
        Traceback (most recent call last):
        torchdpcate.errors.InputError: training: the GPU has too little memory; lower batch_size, or use trainer=cpu
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise InputError(f"{what}: the GPU has too little memory; {remedy}, or use trainer=cpu") from None
