"""Sums over records, batch by batch: each number goes through few additions, so that rounding stays small."""

import math
from collections.abc import Callable, Iterable

from torch import Tensor

BATCH = 4_096
"""Records that are summed at once: what is worked out of them stays in a processor's cache."""


def added(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of parts, one after the other, of which there is at least one."""
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total + part
    assert total is not None
    return total


def summed(terms: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """Return the sum over records of what ``terms`` sums over some, of ``BATCH`` of them at once.

    Args:
        terms: Of rows of the columns.
        columns: [n, ...] each.

    Example:
        >>> import torch
        >>> summed(lambda x: x.sum(0), torch.ones(10_000, 2)).tolist()
        [10000.0, 10000.0]
    """
    return added(terms(*rows) for rows in zip(*(column.split(BATCH) for column in columns), strict=True))


def most_additions(n: int, batch: int | None) -> int:
    """Return how many additions a number goes through at most until it is part of a sum of n.

    Args:
        n: Numbers.
        batch: How many are summed at once, in any order; the sums of batches are added one by one. None: nothing is
            known of the order.

    Example:
        >>> most_additions(10_000_000, BATCH), most_additions(1_000, None)
        (6538, 1000)
    """
    return n if batch is None else min(batch, n) + math.ceil(n / batch)
