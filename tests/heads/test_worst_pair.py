"""The mirrored pair against normal equations, its closed-form limit, and the proved sensitivities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdpcate.errors import InputError
from torchdpcate.heads.linear import sensitivity, worst_pair

B, S = 0.9, 1.0


@pytest.mark.parametrize("threshold", [math.inf, 0.5])
def test_they_are_neighbours_within_the_bounds(threshold):
    pair = worst_pair(B, S, 0.01, 50, threshold)
    differs = (pair.first.v != pair.second.v).any(1) | (pair.first.s != pair.second.s)
    assert differs.nonzero().flatten().tolist() == [0]
    for problem in (pair.first, pair.second):
        assert float(problem.v.norm(dim=1).max()) <= B * (1 + 1e-15)
        assert float(problem.s.abs().max()) <= S
        assert problem.threshold == threshold


def test_its_change_is_that_of_the_normal_equations():
    pair, thetas = worst_pair(B, S, 0.02, 300), []
    for problem in (pair.first, pair.second):
        v, s = problem.v.numpy(), problem.s.numpy()
        thetas.append(np.linalg.solve(v.T @ v / 300 + 0.02 * np.eye(2), v.T @ s / 300))
    assert pair.change == pytest.approx(np.linalg.norm(thetas[0] - thetas[1]), rel=1e-10)
    assert pair.share == pytest.approx(pair.change / sensitivity(pair.first), rel=1e-15)


@pytest.mark.parametrize("ridge", [0.005, 0.05, 0.5])
def test_squared_pairs_tend_to_their_closed_form(ridge):
    beta, n = B / math.sqrt(ridge), 1_000_000
    cos = (math.sqrt(1 + 2 * beta**2) - 1) / (2 * beta)
    limit = 2 * B * S / (ridge * n) * math.sqrt(1 - cos**2) * (1 + beta / 2 * cos)
    assert worst_pair(B, S, ridge, n).change == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize(("n", "ridge", "share"), [(200, 0.1, 0.966), (1350, 0.01, 0.955), (100_000, 0.01, 0.999)])
def test_shares_of_the_squared_bound(n, ridge, share):
    assert worst_pair(B, S, ridge, n).share == pytest.approx(share, abs=5e-4)


def test_the_huber_bound_is_attained_below_the_target_bound():
    assert worst_pair(B, S, 0.01, 1350, threshold=0.5).share > 1 - 1e-6
    assert worst_pair(B, S, 0.01, 1350, threshold=S).share > 0.999


@pytest.mark.slow
@given(
    weight=st.floats(0.05, 2),
    target=st.floats(0.05, 10),
    ridge=st.floats(1e-3, 2),
    n=st.integers(2, 200),
    threshold=st.sampled_from([math.inf, 0.2, 1.0, 5.0]),
)
def test_no_pair_exceeds_the_proved_sensitivity(weight, target, ridge, n, threshold):
    assert 0 < worst_pair(weight, target, ridge, n, threshold).share <= 1


def test_one_record_has_no_rest():
    with pytest.raises(InputError, match="n = 1"):
        worst_pair(B, S, 0.01, 1)
