import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.privacy.exact_sums import sum_grid


@settings(max_examples=20, deadline=None)
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
