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

_DIGITS = 60  # of the cells' weights
_BLOCK = 1 << 14  # numbers at once, so that they stay in the processor's cache


def half_integers(take: Bytes, count: int, deviation: float) -> np.ndarray:
    r"""Return independent half-integers x of law proportional to exp(-x^2 / (2 m^2)), |x| < 13 m; float64 [count].

    Every probability is right to a factor 1 +- 2^-50: cells have 128 bits and weights of 60 digits, and float64 enters
    with the last acceptance alone, whose exponent is at most 0.21. See docs/guarantees/dp_sgd.md.

    Args:
        take: Random bytes.
        count: How many.
        deviation: m, from 2^7 to 2^42.
    """
    found = [np.zeros(0)]
    while count > 0:
        kept = _proposed(take, min(count, _BLOCK), deviation)
        found.append(kept)
        count -= len(kept)
    return np.concatenate(found)


def _proposed(take: Bytes, count: int, deviation: float) -> np.ndarray:
    """Return what is kept of so many proposals."""
    shift = math.frexp(deviation)[1] - 7
    start = _cell(take, count, deviation) * float(1 << shift)
    # one word holds the sign, the place in the cell and the first bits of the coin
    word, bits = words(take, count), 63 - shift
    within = (word >> np.uint64(1) & np.uint64((1 << shift) - 1)).view(np.int64) + 0.5
    found = start + within
    exponent = (start + found) * within
    exponent *= -0.5 / deviation**2
    chance = np.exp(exponent, out=exponent)
    chance *= 2.0**bits
    chance -= (word >> np.uint64(64 - bits)).view(np.int64)  # exact: both are multiples of a 2^53rd of the larger
    keep = chance >= 1
    undecided = np.flatnonzero((chance > 0) & ~keep)
    keep[undecided] = uniforms(take, len(undecided)) < chance[undecided]
    return np.where(word & np.uint64(1), -found, found)[keep]


def _cell(take: Bytes, count: int, deviation: float) -> np.ndarray:
    """Return positions of cells, drawn by 128 bits; all but the first 16 only where these do not decide."""
    first = np.frombuffer(take(2 * count), dtype="<u2")
    cell = _cells(deviation)[first]
    open_ = np.flatnonzero(cell < 0)
    high = first[open_].astype(np.uint64) << np.uint64(48) | words(take, len(open_)) >> np.uint64(16)
    cell[open_] = below(take, high, *_ends(deviation))
    return cell


@lru_cache(maxsize=16)
def _cells(deviation: float) -> np.ndarray:
    """Return the cell of all words that begin with the same 16 bits, by these; -1 where a cell ends among them."""
    top, _ = _ends(deviation)
    starts = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    before = np.searchsorted(top, starts)  # cells that end below the first word
    after = np.searchsorted(top, starts + np.uint64(2**48 - 1))
    # an end whose first word is the first of a range divides that word alone, and so the range
    undivided = (before == after) & (top[np.minimum(after, len(top) - 1)] != starts + np.uint64(2**48 - 1))
    return np.where(undivided, before, -1).astype(np.int64)


@lru_cache(maxsize=16)
def _ends(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return where the cells end in [0, 2^128), as words of 64 bits; the last stands for 2^128."""
    with localcontext() as context:
        context.prec = _DIGITS
        width = Decimal(2) ** (math.frexp(deviation)[1] - 7) / Decimal(deviation)
        weights = [(-((j * width) ** 2) / 2).exp() for j in range(math.ceil(REACH / width))]
        total, sums, ends = sum(weights), Decimal(0), []
        for weight in weights[:-1]:
            sums += weight
            ends.append(int(sums / total * 2**128))
    return split(ends)
