"""Numbers of simple laws, in float64, from uniformly random bytes: what noise that no library draws is made of."""

import math
from collections.abc import Callable

import numpy as np

Bytes = Callable[[int], bytes]
"""Gives so many uniformly random bytes, others at each call."""

_WORD = 2.0**-64


def words(take: Bytes, count: int) -> np.ndarray:
    """Return random words of 64 bits, uint64 [count]."""
    return np.frombuffer(take(8 * count), dtype="<u8")


def uniforms(take: Bytes, count: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), each of the 2^53 multiples of 2^-53 equally likely, float64 [count]."""
    return (words(take, count) >> np.uint64(11)) * 2.0**-53


def fractions(take: Bytes, count: int) -> np.ndarray:
    r"""Return uniform numbers in (0, 1], 128 bits rounded to float64, which small ones have 53 bits of too; [count].

    Example:
        >>> fractions(bytes, 1).tolist() == [2.0**-129], fractions(lambda count: b"\xff" * count, 1).tolist()
        (True, [1.0])
    """
    high, low = words(take, 2 * count).reshape(2, count)
    return (high + (low + 0.5) * _WORD) * _WORD


def exponentials(take: Bytes, count: int) -> np.ndarray:
    """Return exponential numbers of mean 1, -ln(1 - u) of uniform u, float64 [count].

    1 - u is drawn instead of u, so that large numbers are as fine as small ones. None is beyond 129 ln 2 = 89.4, which
    has the probability 2^-129; each is within 2^-51 (1 + its size) of a draw of the exact law.
    """
    return -np.log(fractions(take, count))


def normals(take: Bytes, count: int) -> np.ndarray:
    """Return standard normal numbers, float64 [count], by Box & Muller (1958); none is beyond 13.4."""
    pairs = (count + 1) // 2
    length, angle = np.sqrt(2 * exponentials(take, pairs)), 2 * math.pi * uniforms(take, pairs)
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]


def coins(take: Bytes, count: int, probability: float) -> np.ndarray:
    """Return coins that show heads with a probability rounded down to a multiple of 2^-64, bool [count].

    The first 16 bits of a coin's word decide nearly always, so the others are drawn only where they do not.
    """
    threshold = math.floor(math.ldexp(probability, 64))
    top, rest = threshold >> 48, threshold & (2**48 - 1)
    first = np.frombuffer(take(2 * count), dtype="<u2")
    heads = first < top
    undecided = np.flatnonzero(first == top)
    heads[undecided] = words(take, len(undecided)) >> np.uint64(16) < rest
    return heads
