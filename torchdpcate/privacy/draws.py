"""Numbers of simple laws, in float64, from uniformly random bytes: what noise that no library draws is made of."""

import math
import os
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

Bytes = Callable[[int], bytes]
"""Gives so many uniformly random bytes, others at each call."""

HALF_CELLS = 2**14
"""Cells by which ``shifts`` move a number at most."""

_WORD = 2.0**-64
_MOST_GAPS = 4096


def words(take: Bytes, count: int) -> np.ndarray:
    """Return random words of 64 bits, uint64 [count]."""
    return np.frombuffer(take(8 * count), dtype="<u8")


def uniforms(take: Bytes, count: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), each of the 2^53 multiples of 2^-53 equally likely, float64 [count]."""
    return (words(take, count) >> np.uint64(11)) * 2.0**-53


def fractions(take: Bytes, count: int) -> np.ndarray:
    r"""Return uniform numbers in (0, 1], at least 128 bits rounded to float64, [count]; small ones are as fine.

    Each is within a factor 1 +- 2^-51 of a draw of the exact law, but for those below 2^-960.

    Example:
        >>> fractions(bytes, 1).tolist() == [2.0**-961], fractions(lambda count: b"\xff" * count, 1).tolist()
        (True, [1.0])
    """
    return _fraction(take, *words(take, 2 * count).reshape(2, count))


def _fraction(take: Bytes, high: np.ndarray, low: np.ndarray, more: int = 13) -> np.ndarray:
    """Return the fraction that begins with these bits; where the first word is 0, further ones are drawn."""
    found = (high + (low + 0.5) * _WORD) * _WORD
    empty = np.flatnonzero(high == 0)
    if len(empty) and more:
        found[empty] = _fraction(take, low[empty], words(take, len(empty)), more - 1) * _WORD
    return found


def exponentials(take: Bytes, count: int) -> np.ndarray:
    """Return exponential numbers of mean 1, -ln(u) of uniform u, float64 [count].

    Where u is above 1/2, 1 - u is read from its bits, so that each number, however small or large, is within a factor
    1 +- 2^-49 of a draw of the exact law, but for an event of the probability 2^-960; the largest is 666.
    """
    high, low = words(take, 2 * count).reshape(2, count)
    small = high >> np.uint64(63) == 1
    half = _fraction(take, np.where(small, ~high, high), low)
    return -np.where(small, np.log1p(-half), np.log(half))


def normals(take: Bytes, count: int) -> np.ndarray:
    """Return standard normal numbers, float64 [count], by Box & Muller (1958), each right to a factor 1 +- 2^-48.

    The angle is that from the nearest axis, and which axis and which side come by bits of their own: near an axis the
    smaller of sine and cosine would else be as coarse as an angle of the whole circle.
    """
    pairs = (count + 1) // 2
    length, angle = np.sqrt(2 * exponentials(take, pairs)), math.pi / 4 * fractions(take, pairs)
    octant = np.frombuffer(take(pairs), dtype=np.uint8)[:, None] >> np.arange(3, dtype=np.uint8) & 1 == 1
    across, sides = octant[:, 0], np.where(octant[:, 1:], length[:, None], -length[:, None])
    sine, cosine = np.sin(angle), np.cos(angle)
    first, second = np.where(across, sine, cosine), np.where(across, cosine, sine)
    return np.concatenate([sides[:, 0] * first, sides[:, 1] * second])[:count]


def total(numbers: np.ndarray) -> np.ndarray:
    """Return sums over the last axis, by halves: of p numbers of one sign right to a factor 1 +- ceil(log2 p) 2^-53.

    Example:
        >>> total(np.array([[1.0, 2.0, 3.0]])).tolist()
        [6.0]
    """
    while numbers.shape[-1] > 1:
        even, odd = numbers[..., 0::2], numbers[..., 1::2]
        numbers = np.concatenate([even[..., : odd.shape[-1]] + odd, even[..., odd.shape[-1] :]], axis=-1)
    return numbers[..., 0]


def shifts(take: Bytes, count: int) -> np.ndarray:
    """Return uniform integers from 1 - 2^14 to 2^14, int64 [count]."""
    return (np.frombuffer(take(2 * count), dtype="<u2") >> np.uint16(1)).astype(np.int64) + 1 - HALF_CELLS


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


def chosen(take: Bytes, count: int, probability: float) -> np.ndarray:
    r"""Return where so many coins show heads, in increasing order, int64; drawn by the gaps between heads.

    With the probability p of ``coins``, less 2^-100, a gap is at least k with probability (1 - p)^k. Gaps are drawn by
    128 random bits; what a coin shows has the probability p to 2^-99, whatever those before it showed.
    """
    top, low = _gaps(probability)
    most = len(top) - 1  # a gap of that length ends without heads, and the next begins
    mean = -math.expm1(most * math.log1p(-probability)) / probability
    found, start = [np.zeros(0, np.int64)], 0
    while start < count:
        share = (count - start) / mean
        gap = below(take, words(take, int(share + 4 * math.sqrt(share)) + 4), top, low)
        heads = gap < most
        ends = start + np.cumsum(gap + heads)
        found.append(ends[heads & (ends <= count)] - 1)
        start = int(ends[-1])
    return np.concatenate(found)


def below(
    take: Bytes, high: np.ndarray, top: np.ndarray, low: np.ndarray, deeper: Callable[[int], int] | None = None
) -> np.ndarray:
    """Return how many of the increasing numbers (top, low) of 128 bits, but for the last, are at most (high, random).

    The second words of 64 bits are drawn where the first do not decide. Where the two are one of the numbers, or
    beyond all but the last, they may be the beginning of a longer number, of which ``deeper`` says it.
    """
    cell = np.searchsorted(top, high)  # how many have smaller first words
    tied = np.flatnonzero(top[cell] == high)
    if not len(tied):
        return cell
    rest = words(take, len(tied))
    while True:
        passed = (top[cell[tied]] == high[tied]) & (low[cell[tied]] <= rest) & (cell[tied] < len(top) - 1)
        if not passed.any():
            break
        cell[tied] += passed
    if deeper is None:
        return cell
    at = cell[tied]
    undecided = (at == len(top) - 1) | ((top[at - 1] == high[tied]) & (low[at - 1] == rest))
    for k in np.flatnonzero(undecided):
        cell[tied[k]] = deeper(int(high[tied[k]]) << 64 | int(rest[k]))
    return cell


def split(numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of 128 bits as their first and second words, and behind them the largest of all."""
    largest = 2**64 - 1
    numbers = [*numbers, largest << 64 | largest]
    return np.array([n >> 64 for n in numbers], np.uint64), np.array([n & largest for n in numbers], np.uint64)


@lru_cache(maxsize=16)
def _gaps(probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 - (1 - p)^k in units of 2^-128, for k from 1 on, as words; the last stands for all longer gaps."""
    heads = (math.floor(math.ldexp(probability, 64)) << 36) - 1  # in units of 2^-100
    left, ends = 1 << 192, []
    for _ in range(min(_MOST_GAPS, math.ceil(8 / probability))):
        left -= left * heads >> 100
        ends.append((1 << 128) - (left >> 64))
    return split(ends)


_FEW = 1024
"""Bytes up to which the operating system is asked for all of them, which then takes no longer."""

_KEY = 32


def random_bytes(count: int) -> bytes:
    """Return so many random bytes, others at each call, which nobody can predict or replay.

    Few are the operating system's own. More are the ChaCha20 keystream (RFC 8439) of a key of 256 bits that the
    operating system gives for this one call and that is kept nowhere: so a fork, a thread or a checkpoint has no state
    to repeat, and what is drawn later says nothing of what was drawn before. Telling such bytes from uniform ones is
    telling ChaCha20 from a random function, as it is for Linux's own generator.

    Args:
        count: How many.

    Example:
        >>> len(random_bytes(5000)), random_bytes(5000) == random_bytes(5000)
        (5000, False)
    """
    return os.urandom(count) if count <= _FEW else keystream(os.urandom(_KEY), count)


def keystream(key: bytes, count: int) -> bytes:
    """Return the first bytes of the ChaCha20 keystream of a key of 32 bytes, counter and nonce 0."""
    # not at the top: it takes a twentieth of a second, and nobody who only predicts needs it
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(count))


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


def _weights(deviation: float, farthest: int) -> Iterator[Decimal]:
    """Yield the weights exp(-(j w)^2 / 2) of the cells within so many deviations, in the digits of the context.

    They come by products: each is the one before times a ratio, and exp(-w^2) takes a ratio to the next. With 80 digits
    a product is rounded by 5 10^-80 of itself at most; the weight of cell j is made of fewer than 3 (j^2 + j) such
    roundings, j < 2,560, hence right to 10^-72 of itself.
    """
    width = Decimal(2) ** (math.frexp(deviation)[1] - 7) / Decimal(deviation)
    ratio = (-(width**2) / 2).exp()
    square, weight = ratio * ratio, Decimal(1)
    for _ in range(math.ceil(farthest / width)):
        yield weight
        weight *= ratio
        ratio *= square
