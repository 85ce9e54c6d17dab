"""What noise leaves of numbers: they lie on its grid, are neither alike nor round, and not beyond records and noise."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchdpcate.privacy.noise import NoiseSource

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
