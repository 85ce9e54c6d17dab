"""How many CPU threads a small network gets."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Below this many parameters a step is shorter than waking a second thread, and on a busy machine the
# threads wait for each other: two threads were measured 7 times slower than one there.
_SMALL = 100_000


@contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """Run the block on one CPU thread if the network is small, as before otherwise.

    Args:
        parameters: Number of the network's parameters.
    """
    before = torch.get_num_threads()
    try:
        if parameters < _SMALL:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)
