"""One training outcome moves every scoring record by a nearest neighbour, and by ridge what its certificate says."""

import pytest

from experiments.spillover.construction import RIDGE, nearest, ridge, utilities


def moved(learner, n, training=1_500):
    before, after = (utilities(learner, outcome, n, training) for outcome in (0.0, 1.0))
    return (before - after).abs()


@pytest.mark.parametrize("n", [300, 3_000])
def test_a_nearest_neighbour_moves_one_utility_by_all_scoring_records(n):
    assert moved(nearest, n).tolist() == [0, n]


def test_ridge_moves_it_by_less_than_its_sensitivity_of_all_scoring_records():
    # a replaced outcome moves the gradient by |f| / m, f = (1, 1), and the solution by that over the ridge
    n, training = 3_000, 1_500
    assert 0 < moved(ridge, n, training)[1] < n * 2 / (training * RIDGE)
