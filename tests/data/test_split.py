import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.data.records import public_generator, public_split
from torchdpcate.errors import InputError


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


def test_the_split_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    public_split(10, 0.5, 0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_records_are_refused(n: int) -> None:
    with pytest.raises(InputError, match=f"n = {n} records are too few"):
        public_split(n, 0.2, 0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_a_fraction_outside_the_unit_interval_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="split fraction is"):
        public_split(10, fraction, 0)


@pytest.mark.parametrize("seed", [-1, 0.5, "0", True])
def test_a_seed_must_be_a_whole_number(seed) -> None:
    with pytest.raises(InputError, match="seed is"):
        public_generator(seed, "x")
