"""Public random numbers: seeded, independent of the records, and apart for each purpose."""

import zlib

import numpy as np
import torch
from torch import LongTensor, Tensor

from torchdpcate.errors import InputError


def public_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator seeded by ``seed``, on a stream of its own for each ``purpose``.

    For public choices only (splits, subsamples, simulated records): never for privacy noise.

    Raises:
        InputError: ``seed`` is not an integer of 0 or more.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed is {seed!r}; give an integer of 0 or more")
    sequence = np.random.SeedSequence(int(seed), spawn_key=(zlib.crc32(purpose.encode()),))
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def public_permutation(n: int, seed: int, purpose: str) -> Tensor:
    """Return a seeded permutation of 0 ... n - 1 (int64)."""
    return torch.randperm(n, generator=public_generator(seed, purpose))


def public_split(n: int, fraction: float, seed: int, purpose: str = "split") -> tuple[LongTensor, LongTensor]:
    """Split record positions in two by a seeded permutation that never looks at the records.

    Args:
        n: Number of records.
        fraction: Share of the first part, between 0 and 1, both excluded.
        seed: Public seed.
        purpose: Splits of different purposes use independent streams of one seed.

    Returns:
        Indices (int64) of the first part, ``round(fraction * n)`` of them, and of the second.

    Raises:
        InputError: ``fraction`` is outside (0, 1), or n is too small for both parts to hold a record.

    Example:
        >>> first, second = public_split(10, 0.3, seed=0)
        >>> len(first), sorted(torch.cat([first, second]).tolist()) == list(range(10))
        (3, True)
    """
    size, _ = split_sizes(n, fraction)
    order = public_permutation(n, seed, purpose)
    return order[:size], order[size:]  # type: ignore[return-value]


def split_sizes(n: int, fraction: float) -> tuple[int, int]:
    """Return the sizes of the two parts of ``public_split``, for any n.

    Raises:
        InputError: See ``public_split``.

    Example:
        >>> split_sizes(10**9, 0.3)
        (300000000, 700000000)
    """
    if not 0.0 < fraction < 1.0:
        raise InputError(f"split fraction is {fraction}; it must lie between 0 and 1, both excluded")
    size = round(fraction * n)
    if not 0 < size < n:
        raise InputError(f"n = {n} records are too few to split {fraction:g} / {1 - fraction:g}; bring more")
    return size, n - size
