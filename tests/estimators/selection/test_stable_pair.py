"""The declared neighbours nearly attain the certificate of stable nuisances."""

import pytest

from torchdpcate.estimators.selection.worst_case import turned_utilities
from torchdpcate.privacy.selection_mechanisms import PermuteAndFlip


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_pair_attains_the_certificate_but_for_a_hundredth(epsilon):
    first, second, spread = turned_utilities()
    moved = second - first
    assert 0.99 < (moved.max() - moved.min()).item() / spread <= 1
    laws = [PermuteAndFlip(epsilon, spread).probabilities(dataset) for dataset in (first, second)]
    loss = (laws[1] / laws[0]).log().abs().max().item()
    assert 0.99 * epsilon < loss <= epsilon
