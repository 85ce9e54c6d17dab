"""Sums that are exact in floating point."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.privacy.exact_sums import TwoGrids, sum_grid


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4000), st.floats(1e-6, 1e6), st.integers(0, 2**31))
def test_sums_on_the_grid_are_exact_in_any_order(n, bound, seed):
    step = sum_grid(n, bound)
    assert math.frexp(step)[0] == 0.5
    generator = torch.Generator().manual_seed(seed)
    scores = bound * (2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1)
    scores[: n // 2] = bound  # the largest sums there are
    rounded = torch.round(scores / step) * step
    assert float((rounded - scores).abs().max()) <= step / 2
    exact = sum(map(Fraction, rounded.tolist()), Fraction(0))
    assert all(Fraction(float(total)) == exact for total in (rounded.sum(), rounded.flip(0).cumsum(0)[-1]))
    assert exact == Fraction(float(rounded @ torch.ones(n, dtype=torch.float64)))


def test_the_grid_is_fine():
    """What rounding adds to the spread of a million records is nothing against one record's score."""
    assert 2 * sum_grid(10**6, 11.0) * 10**6 < 0.02 * 11.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4000), st.integers(0, 40), st.floats(1e-6, 1e6), st.integers(0, 2**31))
def test_sums_of_both_parts_are_exact_whatever_the_number_of_records(few, doublings, bound, seed):
    """Of as many records as are claimed sums hold 2^51 steps; a few stand for them here, at the largest steps."""
    grids = TwoGrids.of(few * 2 ** (doublings % 19), bound)
    assert grids.coarse >= grids.fine
    generator = torch.Generator().manual_seed(seed)
    scores = bound * (2 * torch.rand(few, generator=generator, dtype=torch.float64) - 1)
    scores[: few // 2] = bound
    parts = grids.parts(scores)
    assert float((parts.sum(0) - scores).abs().max()) <= grids.fine / 2
    exact = [sum(map(Fraction, part.tolist()), Fraction(0)) for part in parts]
    sums = parts.sum(1)
    assert [Fraction(float(total)) for total in sums] == exact
    assert abs(Fraction(float(sums.sum())) - sum(exact)) <= Fraction(grids.coarse) / 8


@pytest.mark.parametrize("n", [8, 10**4, 10**7, 10**8, 2**30])
def test_what_rounding_adds_to_all_scores_does_not_grow_with_their_number(n):
    grids = TwoGrids.of(n, 11.0)
    assert n * 11.0 < 2**51 * grids.coarse
    assert n * grids.coarse / 2 <= 2**51 * grids.fine
    assert grids.fine >= 2.0**-48 * 11.0
    assert 3 * grids.fine * n + grids.coarse <= max(1e-11, 1.2e-11 * n)
    if n == 10**8:
        assert 3 * grids.fine * n + grids.coarse < 1.2e-3
        assert 3 * sum_grid(n, 11.0) * n > 100
