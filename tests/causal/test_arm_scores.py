"""Doubly robust scores against a loop, the floor against the nearest point's conditions, the grid against fractions."""

import math

import pytest
import torch

from torchdpcate.causal.score import dr_scores, project_to_floor
from torchdpcate.errors import InputError


def nuisances(n: int, K: int, floor: float, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(n, K, generator=generator, dtype=torch.float64)
    e = project_to_floor(p / p.sum(1, keepdim=True), floor)
    mu = torch.rand(n, K, generator=generator, dtype=torch.float64)
    arm = torch.randint(K, (n,), generator=generator)
    y = torch.rand(n, generator=generator, dtype=torch.float64)
    return arm, y, e, mu


@pytest.mark.parametrize("K", [2, 3, 5])
def test_scores_are_those_of_a_loop(K):
    arm, y, e, mu = nuisances(50, K, 0.1)
    scores = dr_scores(arm, y, e, mu)
    for i in range(50):
        for a in range(K):
            correction = (y[i] - mu[i, a]) / e[i, a] if arm[i] == a else 0.0
            assert float(scores[i, a]) == pytest.approx(float(mu[i, a] + correction), abs=1e-14)


def test_scores_of_nuisances_side_by_side():
    arm, y, e, mu = nuisances(20, 3, 0.1)
    others = nuisances(20, 3, 0.1, seed=1)[2:]
    both = dr_scores(arm, y, torch.stack([e, others[0]]), torch.stack([mu, others[1]]))
    torch.testing.assert_close(both[1], dr_scores(arm, y, *others), rtol=0, atol=0)


def test_one_exact_nuisance_is_enough_for_the_mean():
    """Double robustness: the mean over both arms and outcomes is the truth if either nuisance is exact."""
    truth, propensity = 0.7, 0.2
    for e, mu in ((0.2, 0.1), (0.9, 0.7)):
        model = torch.tensor([[mu, mu]], dtype=torch.float64)
        p = torch.tensor([[1 - e, e]], dtype=torch.float64)
        treated = [float(dr_scores(torch.tensor([1]), torch.tensor([y]), p, model)[0, 1]) for y in (0.4, 1.0)]
        other = float(dr_scores(torch.tensor([0]), torch.tensor([0.3]), p, model)[0, 1])
        assert propensity * sum(treated) / 2 + (1 - propensity) * other == pytest.approx(truth)


def test_the_spread_of_one_record_is_at_most_range_over_floor_and_attained():
    arm, y, e, mu = nuisances(20_000, 3, 0.1)
    scores = dr_scores(arm, y, e, mu)
    assert float((scores.amax(1) - scores.amin(1)).max()) <= 1 / 0.1
    e = torch.tensor([[0.1, 0.9]], dtype=torch.float64)
    worst = dr_scores(torch.tensor([0]), torch.tensor([1.0]), e, torch.zeros(1, 2, dtype=torch.float64))[0]
    assert float(worst.max() - worst.min()) == pytest.approx(10.0)


def test_records_that_do_not_match_are_refused():
    arm, y, e, mu = nuisances(20, 3, 0.1)
    for bad in ((arm[:5], y, e, mu), (arm, y, e[:, :2], mu), (arm, y, e, mu[:7])):
        with pytest.raises(InputError, match="same records and actions"):
            dr_scores(*bad)


def test_two_actions_are_clamped():
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    projected = project_to_floor(torch.stack([1 - p, p], 1), 0.1)
    torch.testing.assert_close(projected[:, 1], p.clamp(0.1, 0.9), rtol=0, atol=1e-15)


@pytest.mark.parametrize("K", [2, 3, 7])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99, 1.0])
def test_the_projection_satisfies_the_conditions_of_the_nearest_point(K, share):
    """For every feasible corner v: <p - q, v - q> <= 0, which holds at the nearest point alone."""
    floor = share / K
    p = 3 * torch.randn(500, K, dtype=torch.float64, generator=torch.Generator().manual_seed(K))
    q = project_to_floor(p, floor)
    assert float(q.min()) >= floor
    torch.testing.assert_close(q.sum(1), torch.ones(500, dtype=torch.float64), rtol=0, atol=1e-14)
    corners = floor + (1 - K * floor) * torch.eye(K, dtype=torch.float64)
    moved = ((p - q)[:, None, :] * (corners - q[:, None, :])).sum(2)
    assert float(moved.max()) < 1e-12


@pytest.mark.parametrize("K", [3, 5])
def test_the_projection_is_lipschitz_as_the_note_says(K):
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(200_000, K, dtype=torch.float64, generator=generator)
    p2 = p + torch.rand(200_000, 1, dtype=torch.float64, generator=generator) * torch.randn(
        200_000, K, dtype=torch.float64, generator=generator
    )
    moved = (project_to_floor(p, 0.05) - project_to_floor(p2, 0.05)).abs().amax(1)
    largest = float((moved / (p - p2).abs().amax(1)).max())
    euclidean = float((moved / (p - p2).norm(dim=1)).max())
    assert largest <= 2 - 2 / K + 1e-9
    assert 0.9 * math.sqrt(1 - 1 / K) < euclidean <= math.sqrt(1 - 1 / K) + 1e-9


@pytest.mark.parametrize("floor", [-0.1, 0.34])
def test_a_floor_that_cannot_be_kept_is_refused(floor):
    with pytest.raises(InputError, match="floor = "):
        project_to_floor(torch.full((1, 3), 1 / 3), floor)
