"""The public grid on which sums over records are exact in floating point."""

import math

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import positive, whole

_BITS = 51  # of a sum of n numbers; two more hold what adding and subtracting such sums needs on the way


def sum_grid(n: int, bound: float) -> float:
    r"""Return the spacing of the grid on which sums of n numbers are exact in float64, whatever the order.

    A power of two with :math:`n \cdot \text{bound} < 2^{51}` steps. Numbers rounded to it are whole numbers of steps,
    and float64 adds whole numbers below 2^53 without error: sums over the same records are the same number on every
    machine, and their low bits tell nothing about the order of summation (Mironov 2012). Rounding moves a number by
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
    n, bound = whole("n", n, least=1), positive("bound", bound)
    if n > 2 ** (_BITS - 10):
        raise InputError(f"n = {n}: sums of so many numbers are not exact; give at most 2^{_BITS - 10} records")
    return math.ldexp(1.0, math.frexp(n * bound)[1] - _BITS)
