"""The search of whole data sets: it reaches the mirrored pair, and nothing beyond what is proved."""

import dataclasses
import math

import pytest

from experiments.audit.worst_problem import worst_problem
from torchdpcate.heads.linear import LinearProblem, sensitivity, solve, worst_pair

pytestmark = pytest.mark.studies

B, S = 0.9, 1.0


@pytest.mark.parametrize(("n", "p"), [(20, 2), (200, 3)])
def test_squared_searches_end_at_the_mirrored_pair(n, p):
    found, mirrored = worst_problem(B, S, 0.1, n, p, starts=8).share, worst_pair(B, S, 0.1, n).share
    assert 0.99 * mirrored < found < 1.001 * mirrored


@pytest.mark.parametrize("threshold", [0.5, 1.0])
def test_huber_searches_attain_the_bound(threshold):
    assert 0.99 < worst_problem(B, S, 0.1, 100, threshold=threshold, starts=8, steps=300).share <= 1


def test_what_is_found_are_neighbours_within_the_bounds_solved_exactly():
    pair = worst_problem(B, S, 0.1, 30, 3, starts=2, steps=50)
    differs = (pair.first.v != pair.second.v).any(1) | (pair.first.s != pair.second.s)
    assert differs.nonzero().flatten().tolist() == [0]
    for problem in (pair.first, pair.second):
        assert problem.n == 30
        assert float(problem.v.norm(dim=1).max()) <= B * (1 + 1e-12)
        assert float(problem.s.abs().max()) <= S
    assert pair.change == (solve(pair.first).theta - solve(pair.second).theta).norm().item()


def test_a_bound_without_its_square_root_term_is_caught():
    """The planted fault: the sensitivity of the Huber loss claimed for the squared one."""
    pair = worst_problem(B, S, 0.01, 200, starts=4, steps=300)
    claimed = sensitivity(dataclasses.replace(pair.first, threshold=S))
    assert isinstance(pair.first, LinearProblem)
    assert math.isinf(pair.first.threshold)
    assert pair.change > 1.5 * claimed
