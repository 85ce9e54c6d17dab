"""When a released number that equals a curator's number is a leak, and when it is chance.

A number lies on grids: of its decimals, of its binary digits, of multiples of 1/n. The coarsest of them says how
much a match means: 37 equals some age anyhow, 0.4866666666666667 is 146 of 300, a float32 has 24 bits. A released
number matches a curator's if it is that number rounded to its own grid, and by chance it does so with about the
share of its grid's cells that hold a curator's number nearby.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import pdtrc

KINDS = ("doubles", "float32", "short")
"""Kinds of released numbers: of more than 34 bits, of 24 bits, and decimals or others of few digits."""

COARSE = 1e4
"""Numbers of fewer grid steps (four digits or fewer) are not compared, since chance explains their matches."""

SHORTEST = 5
"""Vectors of fewer distinct entries are compared number by number alone."""

_ULP = 2.0**-51  # four roundings of a double: another order of summation
_WINDOWS = 10.0 ** -np.arange(1, 9)
_CROWD = 10  # other numbers nearby before their density is believed


def grid_step(values: np.ndarray, sizes: tuple[int, ...] = ()) -> np.ndarray:
    """Return the spacing of the coarsest grid on which each number lies, same shape; infinite for 0.

    Args:
        values: Finite numbers, any shape.
        sizes: Public numbers of records: shares k/n lie on the grid 1/n.

    Example:
        >>> grid_step(np.array([37.0, 9930.046, 0.375, 146 / 300]), (300,)).round(9).tolist()
        [1.0, 0.001, 0.125, 0.003333333]
        >>> float(np.log2(grid_step(np.array([np.pi]))[0])), float(np.log2(grid_step(np.array([np.float32(np.pi)]))[0]))
        (-48.0, -22.0)
    """
    size = np.abs(np.asarray(values, dtype=np.float64))
    safe = np.where(size == 0, 1.0, size)
    mantissa, exponent = np.frexp(safe)
    binary = (mantissa * 2.0**53).astype(np.int64)
    lowest = (binary & -binary).astype(np.float64)
    step = np.ldexp(lowest, exponent - 53)
    # 0.1 is stored as the nearest float: a decimal is one up to the rounding of its storage
    slack = np.where(lowest >= 2.0**29, 2.0**-24, _ULP) * safe
    top = np.floor(np.log10(safe))
    for digits in range(1, 15):
        unit = np.maximum(10.0 ** (top - digits + 1), np.finfo(np.float64).tiny)  # probabilities may be that small
        on_it = (np.abs(safe - np.rint(safe / unit) * unit) <= slack) & (unit > 20 * slack)
        step = np.where(on_it, np.maximum(step, unit), step)
    for n in sizes:
        on_it = (np.abs(safe * n - np.rint(safe * n)) <= slack * n) & (1 / n > 20 * slack) & (np.rint(safe * n) > 0)
        step = np.where(on_it, np.maximum(step, 1 / n), step)
    return np.where(size == 0, np.inf, step)


def kind_of(value: float, step: float, other: float) -> str:
    """Say how a released number equals another: to the last bits, through float32, or rounded."""
    if abs(abs(value) - abs(other)) <= _ULP * abs(other):
        kind = "equal"
    elif float(np.float32(value)) == value and float(np.float32(abs(other))) == abs(value):
        kind = "equal as float32"
    else:
        kind = f"rounded to {len(f'{abs(value) / step:.0f}')} digits"
    return kind if value * other > 0 else f"{kind}, negated"


@dataclass(frozen=True, eq=False)
class Coincidences:
    """Released numbers compared with one pool of curator numbers.

    Attributes:
        nearest: Index into the pool of the number that each released one equals, -1 for none, [k].
        chance: Probability that it equals one by chance, [k].
        kinds: Of each released number, an index into ``KINDS``, [k].
        pairs: Pairs compared.
    """

    nearest: np.ndarray
    chance: np.ndarray
    kinds: np.ndarray
    pairs: int

    @property
    def matched(self) -> np.ndarray:
        """Indices of released numbers that equal a curator's, the least likely first."""
        found = np.flatnonzero(self.nearest >= 0)
        return found[np.argsort(self.chance[found], kind="stable")]

    @property
    def expected_by_rank(self) -> np.ndarray:
        """Expected number of chance matches at least as unlikely as each of ``matched``."""
        ranked = np.sort(self.chance)
        total = np.concatenate([[0.0], np.cumsum(ranked)])
        return total[np.searchsorted(ranked, self.chance[self.matched], side="right")]

    @property
    def expected(self) -> list[float]:
        """Expected number of matches by chance, one a kind."""
        return [float(self.chance[self.kinds == kind].sum()) for kind in range(len(KINDS))]

    @property
    def found(self) -> list[int]:
        """Number of matches, one a kind."""
        return [int((self.nearest[self.kinds == kind] >= 0).sum()) for kind in range(len(KINDS))]

    def among(self, members: np.ndarray) -> "Coincidences":
        """Return the outcome for some of the released numbers, given by their indices."""
        share = self.pairs * len(members) // max(len(self.nearest), 1)
        return Coincidences(self.nearest[members], self.chance[members], self.kinds[members], share)

    def beyond_chance(self, alpha: float) -> np.ndarray:
        r"""Return the matches that chance does not explain, as indices of released numbers.

        The k-th least likely match has chance q_k; by chance at least k matches of chance at most q_k occur
        with probability at most the Poisson tail P(N >= k), N of mean :math:`\sum_{j: q_j \le q_k} q_j`. All
        matches up to the largest k with a tail below alpha / (k (k + 1)) are reported; the union over k keeps
        the false-alarm rate below alpha. Source: union bound; Hoeffding (1956) for the Poisson tail.
        """
        order = self.matched
        k = np.arange(1, len(order) + 1)
        beyond = np.flatnonzero(pdtrc(k - 1, self.expected_by_rank) <= alpha / (k * (k + 1)))
        return order[: beyond[-1] + 1] if len(beyond) else order[:0]


def coincidences(values: np.ndarray, steps: np.ndarray, noise_size: np.ndarray, pool: np.ndarray) -> Coincidences:
    r"""Hold released numbers against curator numbers, sizes alone (a sign may be turned).

    The chance of r with grid step u is the largest, over neighbourhoods of r, of
    (numbers of the pool there) u / (width), the number it equals counted once in the widest alone.

    Args:
        values: Distinct released numbers, none of them 0, [k].
        steps: Their grid steps, [k].
        noise_size: How far the noise moved each from a curator's number of the same place, where known, else
            infinite: legitimate noise of this size brings r within u of it with probability u / noise_size, [k].
        pool: Curator numbers, sorted sizes above 0, distinct, [m].
    """
    size = np.abs(values)
    kinds = np.where(size > 2.0**34 * steps, 0, np.where(size.astype(np.float32) == size, 1, 2))
    if not len(pool) or not len(size):
        return Coincidences(np.full(len(size), -1), np.zeros(len(size)), kinds, 0)
    half = np.maximum(steps / 2 * (1 + 1e-9), _ULP * size)
    first, last = _between(pool, size - half, size + half)
    own = last - first
    wide_first, wide_last = _between(pool, size / 2, size * 2)
    chance = (wide_last - wide_first - own + 1) * 2 * half / (1.5 * size)
    for window in _WINDOWS:
        low, high = _between(pool, size * (1 - window), size * (1 + window))
        others = high - low - own
        chance = np.where(others >= _CROWD, np.maximum(chance, others * half / (window * size)), chance)
    chance = np.minimum(np.maximum(chance, 2 * half / noise_size), 1.0)
    middle = np.clip(np.searchsorted(pool, size), 0, len(pool) - 1)
    before = np.maximum(middle - 1, 0)
    closest = np.where(np.abs(pool[before] - size) < np.abs(pool[middle] - size), before, middle)
    return Coincidences(np.where(own > 0, closest, -1), chance, kinds, len(size) * len(pool))


def multiples_of(other: np.ndarray, rows: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Test whether rows are ``beta other`` up to the rounding of their own grid: copies, in any unit and sign.

    A noisy copy is none: its residuals are as large as its noise. What is allowed is the larger of an entry's
    grid step and 10^-6 of the row's size, where no noise worth the name is left. No intercept is fitted: two
    effects that are linear in one covariate are affine images of each other with nothing wrong.

    Args:
        other: A curator's vector, [m].
        rows: Released vectors of that length, [k, m].
        free: Entries that say something: not clipped to a public bound, [k, m].

    Returns:
        The slope beta, [k], not a number where the row is no copy, and the logarithm of the chance of it, [k]:
        every entry but the least likely two would have to fall within its tolerance somewhere in the row's range.
    """
    row, column = np.where(free, rows, 0.0), np.where(free, other, 0.0)
    size = np.sqrt((row**2).sum(1) / np.maximum(free.sum(1), 1))[:, None]
    step = np.where(free, grid_step(row), 0.0)
    tolerance = np.maximum(np.where(np.isfinite(step), step, 0.0), np.maximum(1e-6 * size, np.finfo(float).tiny))
    # every entry counts by its own precision
    fine_row, fine_column = row / tolerance, column / tolerance
    power = (fine_column**2).sum(1)
    slope = np.divide((fine_row * fine_column).sum(1), power, out=np.zeros(len(row)), where=power > 0)
    window = np.maximum(np.abs(row).max(1), np.finfo(float).tiny)[:, None]
    likely = np.where(free, np.log(np.clip(tolerance / window, np.finfo(float).tiny, 1.0)), 0.0)
    chance = np.sort(likely, axis=1)[:, 2:].sum(1)
    values = np.sort(np.where(free, row, np.nan), axis=1)
    distinct = (np.diff(values, axis=1) > 0).sum(1) + 1
    copy = (np.abs(row - slope[:, None] * column) <= tolerance).all(1) & (distinct >= SHORTEST) & (slope != 0)
    return np.where(copy, slope, np.nan), chance


def _between(pool: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.searchsorted(pool, low, side="left"), np.searchsorted(pool, high, side="right")
