r"""Discrete Gaussian numbers on a grid so fine that its effect is negligible, many at a time.

What is drawn is a half-integer x with probability proportional to exp(-x^2 / (2 m^2)), by rejection: the half-line is
cut into cells of W = 2^e integers, a 64th to a 128th of m wide; a cell is drawn with the weight of its inner end, an
integer within it uniformly, and kept with the probability that makes up the difference, at least 0.81.
"""

import math
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np

from torchdpcate.privacy.draws import Bytes, below, split, uniforms, words

REACH = 13
"""Deviations up to which there is noise; what lies beyond has the probability 2^-126."""

_DIGITS = 80  # of products, so that weights have 72
_BLOCK = 1 << 14  # numbers at once, so that they stay in the processor's cache


def half_integers(take: Bytes, count: int, deviation: float) -> np.ndarray:
    r"""Return independent half-integers x of law proportional to exp(-x^2 / (2 m^2)), |x| < 13 m; float64 [count].

    Every probability is right to a factor 1 +- 2^-50: cells have 128 bits and weights of 72 digits, and float64 enters
    with the last acceptance alone, whose exponent is at most 0.21. See docs/guarantees/dp_sgd.md.

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
    cell[open_] = below(take, high, *_ends(deviation))
    return cell


@lru_cache(maxsize=16)
def _cells(deviation: float) -> np.ndarray:
    """Return the cell of all words that begin with the same 16 bits, by these; -1 where a cell ends among them."""
    top, _ = _ends(deviation)
    ends = np.bincount((top >> np.uint64(48)).view(np.int64), minlength=2**16)
    return np.where(ends, -1, np.cumsum(ends))


@lru_cache(maxsize=16)
def _ends(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return where the cells end in [0, 2^128), as words of 64 bits; the last stands for 2^128.

    The weights exp(-(j w)^2 / 2) come by products: each is the one before times a ratio, and exp(-w^2) takes a ratio
    to the next. With 80 digits a product is rounded by 5 10^-80 of itself at most; the weight of cell j is made of
    fewer than 3 (j^2 + j) such roundings, j < 1,664, hence right to 10^-72 of itself.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        width = Decimal(2) ** (math.frexp(deviation)[1] - 7) / Decimal(deviation)
        ratio = (-(width**2) / 2).exp()
        square, weight, total, sums = ratio * ratio, Decimal(1), Decimal(0), []
        for _ in range(math.ceil(REACH / width)):
            total += weight
            sums.append(total)
            weight *= ratio
            ratio *= square
        unit = 2**128 / total
        return split([int(end * unit) for end in sums[:-1]])
