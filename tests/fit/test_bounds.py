import pytest
import torch

from torchdpcate.fit.private_fit import WeightBounds


def test_bounds_of_the_note():
    assert WeightBounds.per_record(4.0) == WeightBounds(4.0, 8.0, 4.0, True)
    spilling = WeightBounds.with_indirect(4.0, 21.908902)
    assert (spilling.first, spilling.second) == pytest.approx((29.908902, 25.908902))
    assert not spilling.own
    assert spilling.indirect == pytest.approx(21.908902)
    assert WeightBounds.with_indirect(4.0, 0.0) == WeightBounds.per_record(4.0)
    assert WeightBounds.pairs(1.5) == WeightBounds(1.5, 6.0, 3.0, False)
    assert WeightBounds.with_indirect(4.0, 6.075154).first == pytest.approx(14.075154)


def test_sums_of_changes_of_pairwise_weights_are_at_most_the_bounds():
    """All pairwise terms of one record flip: the sums that the definition requests, term by term."""
    n, g = 7, 0.3
    before, after = (torch.zeros(n, n, dtype=torch.float64) for _ in range(2))
    for weights in (before, after):
        weights[0, 1:] = weights[1:, 0] = g / (n - 1)
    # terms that a record takes part in count with both weights, for its features and labels change
    assert (before + after).sum().item() == pytest.approx(WeightBounds.pairs(g).first)
    assert before.sum().item() == pytest.approx(WeightBounds.pairs(g).second)
