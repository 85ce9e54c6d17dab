"""Sums over records that are exact in floating point, on a public grid, and what noise leaves of released numbers."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.noise import NoiseSource

_BITS = 51  # of a sum of n numbers; two more hold what adding and subtracting such sums needs on the way
_FINE_BITS = 42  # of one number in two parts: up to 2^30 of them, then fewer


def sum_grid(n: int, bound: float) -> float:
    r"""Return the spacing of the grid on which sums of n numbers are exact in float64, whatever the order.

    A power of two with :math:`n \cdot \text{bound} < 2^{51}` steps. Numbers rounded to it are integer multiples of it,
    and float64 adds integers below 2^53 without error: sums over the same records are the same number on every
    machine, and their low bits reveal nothing about the order of summation (Mironov 2012). Rounding moves a number by
    half a step.

    Args:
        n: Numbers in a sum, public.
        bound: Public bound of their absolute value.

    Raises:
        InputError: No positive number, or more summands than float64 can add exactly.

    Example:
        >>> sum_grid(100_000, 11.0) == 2.0**-30
        True
    """
    n, bound = integer("n", n, least=1), positive("bound", bound)
    if n > 2 ** (_BITS - 10):
        raise InputError(f"n = {n}: sums of so many numbers are not exact; give at most 2^{_BITS - 10} records")
    return math.ldexp(1.0, math.frexp(n * bound)[1] - _BITS)


def exact_sum(terms: Tensor, n: int, bound: float, dim: int = -1) -> Tensor:
    r"""Return the sum of terms over one dimension, exact: each is moved to [-bound, bound] and to ``sum_grid``.

    .. math:: \sum_i g \cdot \mathrm{round}(\mathrm{clip}(v_i, -B, B) / g), \qquad g = \text{sum\_grid}(n, B)

    the same number in whatever order and in however many parts it is summed. Two values of an interval of width D move
    by at most D + g: add g to what one record moves the sum by.

    Args:
        terms: Finite numbers.
        n: How many there are in all parts of the sum, public.
        bound: B, public, of their absolute value.
        dim: The dimension of the records.

    Example:
        >>> import torch
        >>> terms = torch.tensor([1.0, 2.0**-60, -1.0, 3.0], dtype=torch.float64)
        >>> exact_sum(terms, 4, 2.0).item(), exact_sum(terms.flip(0), 4, 2.0).item()
        (2.0, 2.0)
    """
    step = sum_grid(n, bound)
    # integers whose sum stays below 2^53; a power of two divides and multiplies without error
    return terms.clamp(-bound, bound).div_(step).round_().sum(dim).mul_(step)


class TwoGrids(NamedTuple):
    r"""Two grids on which sums of n numbers are exact, a number being one of the first and a remainder of the second.

    .. math:: v = g_1 \,\mathrm{round}(v / g_1) + g_2\, \mathrm{round}((v - g_1\, \mathrm{round}(v / g_1)) / g_2) + r,
        \quad |r| \le g_2 / 2

    with :math:`g_1` that of ``sum_grid`` and :math:`g_2` about 2^-42 of the bound. The sums of either part are exact.
    Added in float64 they are rounded once, by at most :math:`g_1 / 8`, however many numbers there are: so r is all that
    grows with n.

    Attributes:
        coarse: g_1.
        fine: g_2.

    Example:
        >>> import torch
        >>> grids, third = TwoGrids.of(10**8, 1.0), torch.tensor([1 / 3], dtype=torch.float64)
        >>> grids.coarse == 2.0**-24, grids.fine == 2.0**-41
        (True, True)
        >>> bool((grids.parts(third).sum(0) - third).abs() <= grids.fine / 2)
        True
    """

    coarse: float
    fine: float

    @classmethod
    def of(cls, n: int, bound: float) -> "TwoGrids":
        """Return the grids of n numbers.

        Args:
            n: Numbers in a sum, public.
            bound: Public bound of their absolute value.

        Raises:
            InputError: See ``sum_grid``.
        """
        coarse = sum_grid(n, bound)
        fine = max(math.ldexp(1.0, math.frexp(bound)[1] - _FINE_BITS), sum_grid(n, coarse / 2))
        return cls(coarse, min(coarse, fine))

    def parts(self, values: Tensor) -> Tensor:
        """Return numbers as two, [2, ...], float64.

        Args:
            values: Within the bound.
        """
        first = torch.round(values / self.coarse) * self.coarse
        return torch.stack([first, torch.round((values - first) / self.fine) * self.fine])


CLOSE = 1e-9
"""How well numbers must agree that follow from each other without a search, relatively."""
FAR = 1e4
"""Scales of noise that no draw exceeds."""

_RARE_BITS = 40  # an honest release is refused with a probability of about 2^-40
_MOST = 1e30  # of a released number: float32 ends at 3e38
_DIGITS, _SURE_BITS = 6, 49  # of a decimal; mantissa bits of float64 that do not depend on how one rounds to it
_OF_A_GRID = 10  # bits by which a number of a grid over n is told from a decimal, at least
_DYADIC = 2.0**12  # multiples of 1 / this may be on a coarse grid, and are not judged as decimals
_GRID_BITS = 20  # of a scale in steps of its grid: that many low bits are uniform
_MANTISSA = 52
_ROUNDING = 2.0**-49  # of a number that was multiplied, divided and moved a few times


def grid_problems(name: str, values: Tensor, scale: float) -> Iterator[str]:
    """Return what is wrong with numbers that noise of a public scale was added to, on its grid.

    A grid step is at most 2^-20 of the scale, so the 20 low bits of each number are as good as uniform: all p numbers
    are multiples of 2^m steps with a probability of about 2^(-p min(m, 20)).

    Args:
        name: Of the numbers.
        values: The numbers.
        scale: Of the noise.
    """
    numbers = values.flatten().double()
    if not len(numbers):
        return
    step, largest = NoiseSource.grid(scale), float(numbers.abs().amax())
    finest = math.ldexp(1.0, math.frexp(largest)[1] - 1 - _MANTISSA) if largest else 0.0
    if finest <= step and not bool((numbers / step == (numbers / step).round()).all()):
        yield f"{name} is not on the grid of its noise"
        return
    steps, bits = numbers / max(step, finest), 0  # beyond 2^52 steps float64 rounds to a grid of its own
    while bits < _GRID_BITS and bool((steps % 2.0 ** (bits + 1) == 0).all()):
        bits += 1
    if bits * len(steps) >= _RARE_BITS:
        yield f"{name} is rounder than its noise leaves numbers"
    yield from alike_problems(name, numbers, _GRID_BITS)


def on_grid(values: Tensor, scale: float, most: float = 0.0) -> Tensor:
    """Return numbers on the grid of their noise again, from which units that they were released in moved them.

    Numbers that are farther from it than rounding stay as they are.

    Args:
        values: The numbers, float64.
        scale: Of the noise.
        most: Largest number that was added to them, and taken away again.
    """
    step = NoiseSource.grid(scale)
    near = (values / step).round() * step
    return torch.where((values - near).abs() <= _ROUNDING * values.abs().clamp_min(most), near, values)


def alike_problems(name: str, values: Tensor, bits: int) -> Iterator[str]:
    """Return what is wrong with numbers of which too many are one number.

    Two of p numbers with noise are one with a probability of at most 2^-bits, whatever they were without: the density
    of their noise's difference times a step. So m of them are with at most binom(p, m) 2^(-bits (m - 1)).

    Args:
        name: Of the numbers.
        values: The numbers.
        bits: 20 for noise of which a grid step is at most 2^-20 of the scale.
    """
    counts = values.flatten().unique(return_counts=True)[1]
    if not len(counts):
        return
    p, m = int(counts.sum()), int(counts.max())
    choices = (math.lgamma(p + 1) - math.lgamma(m + 1) - math.lgamma(p - m + 1)) / math.log(2)
    if bits * (m - 1) - choices >= _RARE_BITS:
        yield f"{name} holds one number {m} times, which noise does not leave"


def decimal_problems(name: str, values: Tensor) -> Iterator[str]:
    """Return what is wrong with numbers of continuous noise: too large for any, or decimals of a few digits.

    A float64 of magnitude v is within some last places of a decimal of d digits with a probability of about
    10^d v 2^-49, and of 2^-10 at most if it is a number of a grid over n, so that all of several are with the product.
    Multiples of 2^-12 may be of a coarse grid.

    Args:
        name: Of the numbers.
        values: The numbers.
    """
    numbers = values.flatten().double().unique()  # of a symmetric matrix each once
    if not bool((numbers.abs() <= _MOST).all()):
        yield f"{name} is larger than any release"
        return
    numbers = numbers[(numbers * _DYADIC).round() != numbers * _DYADIC]
    sizes = numbers.abs().log2()
    for digits in range(1, _DIGITS + 1):
        near = (numbers * 10.0**digits).round() / 10.0**digits
        if bool(((numbers - near).abs() > 4e-16 * numbers.abs()).any()):
            continue
        if float((_SURE_BITS - digits * math.log2(10) - sizes).clamp(0, _OF_A_GRID).sum()) >= _RARE_BITS:
            yield f"{name} is rounder than its noise leaves numbers"
        return


def far_problems(name: str, values: Tensor, most: float, scale: float) -> Iterator[str]:
    """Return what is wrong with numbers beyond what records and noise can make.

    Args:
        name: Of the numbers.
        values: The numbers.
        most: Largest absolute value without noise.
        scale: Of the noise.
    """
    if not float(values.abs().amax()) <= most * (1 + 1e-9) + FAR * scale:
        yield f"{name} is larger than records and noise can make it"


def same(one: float, other: float, unit: float = 0.0) -> bool:
    """Return whether two numbers agree, up to rounding of numbers as large as ``unit``."""
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12 * unit)
