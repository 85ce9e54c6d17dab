import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.data.records import public_split


@settings(deadline=None)
@given(st.integers(4, 500), st.floats(0.2, 0.8), st.integers(0, 2**32))
def test_the_parts_are_disjoint_and_whole(n: int, fraction: float, seed: int) -> None:
    first, second = public_split(n, fraction, seed)
    assert len(first) == round(fraction * n)
    assert torch.equal(torch.cat([first, second]).sort().values, torch.arange(n))
    assert first.dtype == torch.int64


def test_a_seed_fixes_the_split_and_another_changes_it() -> None:
    assert torch.equal(public_split(100, 0.5, 3)[0], public_split(100, 0.5, 3)[0])
    assert not torch.equal(public_split(100, 0.5, 3)[0], public_split(100, 0.5, 4)[0])
    assert not torch.equal(public_split(100, 0.5, 3)[0], public_split(100, 0.5, 3, "other")[0])


def test_every_record_falls_into_the_first_part_as_often() -> None:
    # 20 positions over 2000 seeds, binomial(2000, 0.3); 7 sd: false alarm 20 * 2.6e-12.
    counts = sum(torch.bincount(public_split(20, 0.3, seed)[0], minlength=20) for seed in range(2000))
    assert (counts - 600).abs().max() < 7 * math.sqrt(2000 * 0.3 * 0.7)
