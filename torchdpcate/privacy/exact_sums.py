"""Sums over records that are exact in floating point, on a public grid, and what noise leaves of released numbers."""

import math

from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import integer, positive

_BITS = 51  # of a sum of n numbers; two more hold what adding and subtracting such sums needs on the way


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


CLOSE = 1e-9
"""How well numbers must agree that follow from each other without a search, relatively."""


def same(one: float, other: float, unit: float = 0.0) -> bool:
    """Return whether two numbers agree, up to rounding of numbers as large as ``unit``."""
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12 * unit)
