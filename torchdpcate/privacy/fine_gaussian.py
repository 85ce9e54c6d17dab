r"""Discrete Gaussian numbers on a grid so fine that its effect is negligible, many at a time.

What is drawn is a half-integer x with probability proportional to exp(-x^2 / (2 m^2)), by rejection: the half-line is
cut into cells of W = 2^e integers, a 64th to a 128th of m wide; a cell is drawn with the weight of its inner end, an
integer within it uniformly, and kept with the probability that makes up the difference, at least 0.53.
"""

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from torchdpcate.privacy.draws import Bytes, below, split, uniforms, words

REACH = 40
"""Deviations up to which there is noise; what lies beyond has the probability 10^-349."""

_DIGITS = 80  # of products, so that weights have 72
_SEEN = 20  # deviations of which the weights' sums differ in so many digits
_DEEP_BITS, _DEEP_DIGITS = 1344, 500  # of a cell that 128 bits leave open
_BLOCK = 1 << 14  # numbers at once, so that they stay in the processor's cache


def half_integers(take: Bytes, count: int, deviation: float) -> np.ndarray:
    r"""Return independent half-integers x of law proportional to exp(-x^2 / (2 m^2)), |x| < 40 m; float64 [count].

    Every probability is right to a factor 1 +- 2^-50: cells have 128 bits, and 1,344 where these leave one open, and
    weights of 72 digits. Float64 enters with the last acceptance alone, whose exponent is at most 0.64. See
    docs/guarantees/dp_sgd.md.

    Args:
        take: Random bytes.
        count: How many.
        deviation: m, from 2^7 to 2^42.
    """
    found, done = np.empty(count), 0
    while done < count:
        kept = _proposed(take, min(count - done, _BLOCK), deviation)
        found[done : done + len(kept)] = kept
        done += len(kept)
    return found


def _proposed(take: Bytes, count: int, deviation: float) -> np.ndarray:
    """Return what is kept of so many proposals."""
    shift = math.frexp(deviation)[1] - 7
    start = _cell(take, count, deviation) * float(1 << shift)
    # one word holds the sign, the place in the cell and the first bits of the coin
    word, bits = words(take, count), 63 - shift
    within = (word >> np.uint64(1) & np.uint64((1 << shift) - 1)).view(np.int64) + 0.5
    found = start + within
    exponent = np.add(start, found, out=start)
    exponent *= within
    exponent *= -0.5 / deviation**2
    chance = np.exp(exponent, out=exponent)
    chance *= 2.0**bits
    chance -= (word >> np.uint64(64 - bits)).view(np.int64)  # exact: both are multiples of a 2^53rd of the larger
    keep = chance >= 1
    undecided = np.flatnonzero((chance > 0) ^ keep)
    keep[undecided] = uniforms(take, len(undecided)) < chance[undecided]
    return np.copysign(found, (word << np.uint64(63)).view(np.float64), out=found)[keep]


def _cell(take: Bytes, count: int, deviation: float) -> np.ndarray:
    """Return positions of cells, drawn by 128 bits; all but the first 16 only where these do not decide."""
    first = np.frombuffer(take(2 * count), dtype="<u2")
    cell = _cells(deviation).take(first)
    open_ = np.flatnonzero(cell < 0)
    high = first[open_].astype(np.uint64) << np.uint64(48) | words(take, len(open_)) >> np.uint64(16)
    cell[open_] = below(take, high, *_ends(deviation), partial(_deeper, take, deviation))
    return cell


@lru_cache(maxsize=16)
def _cells(deviation: float) -> np.ndarray:
    """Return the cell of all words that begin with the same 16 bits, by these; -1 where a cell ends among them."""
    top, _ = _ends(deviation)
    ends = np.bincount((top >> np.uint64(48)).view(np.int64), minlength=2**16)
    return np.where(ends, -1, np.cumsum(ends))


@lru_cache(maxsize=16)
def _ends(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return where the cells end in [0, 2^128), as words of 64 bits; the last stands for all that end later.

    What falls on an end, or behind all of them, is open: ``_deeper`` decides.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        sums = list(accumulate(_weights(deviation, _SEEN)))
        unit = 2**128 / sums[-1]
        ends = [int(end * unit) for end in sums]
    return split([end for end in ends if end < 2**128 - 1])


def _deeper(take: Bytes, deviation: float, word: int) -> int:
    """Return the cell of a number that begins with these 128 bits, by 1,216 further ones; once in 2^116 numbers."""
    more = _DEEP_BITS - 128
    number, cell = word << more | int.from_bytes(take(more // 8), "little"), 0
    with localcontext() as context:
        context.prec = _DEEP_DIGITS
        sums = list(accumulate(_weights(deviation, REACH)))
        unit = 2**_DEEP_BITS / sums[-1]
        while cell < len(sums) - 1 and number >= int(sums[cell] * unit):
            cell += 1
    return cell


def _weights(deviation: float, reach: int) -> Iterator[Decimal]:
    """Yield the weights exp(-(j w)^2 / 2) of the cells within so many deviations, in the digits of the context.

    They come by products: each is the one before times a ratio, and exp(-w^2) takes a ratio to the next. With 80 digits
    a product is rounded by 5 10^-80 of itself at most; the weight of cell j is made of fewer than 3 (j^2 + j) such
    roundings, j < 2,560, hence right to 10^-72 of itself.
    """
    width = Decimal(2) ** (math.frexp(deviation)[1] - 7) / Decimal(deviation)
    ratio = (-(width**2) / 2).exp()
    square, weight = ratio * ratio, Decimal(1)
    for _ in range(math.ceil(reach / width)):
        yield weight
        weight *= ratio
        ratio *= square
