import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.heads.cases import real
from torchdpcate.causal.score import DRScore, RScore, dr_scores, project_to_floor, score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.errors import NumericalError
from torchdpcate.fit.nuisances import NuisanceValues

SCORES = [RScore(), DRScore()]


RECORD = (real(1.0), real(0.8), NuisanceValues(real(0.3), real(0.2), real(0.6)))


def test_r_score_of_the_theory_notes_record():
    a, y, values = RECORD
    score = RScore()
    assert score.rho(a, values.pi).item() == pytest.approx(0.49, abs=1e-15)
    assert pseudo_outcome(score, a, y, values).item() == pytest.approx(0.685714286, abs=1e-9)
    s, w = score.regression(a, y, values)
    assert s.item() == pytest.approx(0.48, abs=1e-15)
    assert w.item() == pytest.approx(0.7, abs=1e-15)


def pseudo_outcome(score, a, y, values):
    return score.rho_phi(a, y, values) / score.rho(a, values.pi)


def test_dr_score_of_the_theory_notes_record():
    a, y, values = RECORD
    assert pseudo_outcome(DRScore(), a, y, values).item() == pytest.approx(1.066666667, abs=1e-9)
    assert DRScore().rho(a, values.pi).item() == 1.0


def test_control_record_by_hand():
    # a = 0, pi = .25, y = 2, mu0 = 1.5, mu1 = 4: R phi = (y - mu0)/(0 - pi) + mu1 - mu0 = -2 + 2.5
    a, y = real(0.0), real(2.0)
    values = NuisanceValues(real(0.25), real(1.5), real(4.0))
    assert pseudo_outcome(RScore(), a, y, values).item() == pytest.approx(0.5, abs=1e-14)
    # DR phi = 2.5 - (y - mu0) / (1 - pi) = 2.5 - 2/3
    assert pseudo_outcome(DRScore(), a, y, values).item() == pytest.approx(2.5 - 2 / 3, abs=1e-14)


finite = st.floats(-1, 1)
unit = st.floats(0, 1)


@given(st.sampled_from(SCORES), st.floats(0.01, 0.45), st.sampled_from([0.0, 1.0]), unit, unit, unit, unit)
def test_bounds_hold_on_the_whole_domain(score, overlap, a, y, pi, mu0, mu1):
    domain = Domain([0.0], [1.0], -2.0, 3.0, overlap=overlap)
    pi, y, mu0, mu1 = overlap + (1 - 2 * overlap) * pi, *(5 * v - 2 for v in (y, mu0, mu1))
    values = NuisanceValues(real(pi), real(mu0), real(mu1))
    bounds = score.bounds(domain)
    for offset in (0.0, real(mu1 - mu0)):
        s, w = score.regression(real(a), real(y), values, offset)
        assert abs(w.item()) <= bounds.weight * (1 + 1e-12)
        assert abs(s.item()) <= bounds.target * (1 + 1e-12)
    assert score.rho(real(a), real(pi)).item() <= bounds.rho * (1 + 1e-12)
    assert abs(score.rho_phi(real(a), real(y), values).item()) <= bounds.rho_phi * (1 + 1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_bounds_are_attained(score):
    domain = Domain([0.0], [1.0], -2.0, 3.0, overlap=0.1)
    grid = torch.cartesian_prod(real(0, 1), real(-2, 3), real(0.1, 0.5, 0.9), real(-2, 3), real(-2, 3))
    a, y, pi, mu0, mu1 = grid.T
    s, w = score.regression(a, y, NuisanceValues(pi, mu0, mu1))
    bounds = score.bounds(domain)
    assert w.abs().max().item() == pytest.approx(bounds.weight, rel=1e-12)
    assert s.abs().max().item() == pytest.approx(bounds.target, rel=1e-12)


@given(st.sampled_from(SCORES), st.sampled_from([0.0, 1.0]), finite, st.floats(0.05, 0.95), finite, finite, finite)
def test_regression_is_the_weighted_loss(score, a, y, pi, mu0, mu1, g):
    """(s - w f)^2 = rho (phi - offset - f)^2 for f = g - offset, and rho (phi - g) is half its derivative."""
    values = NuisanceValues(real(pi), real(mu0), real(mu1))
    offset = real(mu1 - mu0)
    s, w = score.regression(real(a), real(y), values, offset)
    residual = s - w * (g - offset)
    rho, phi = score.rho(real(a), values.pi), pseudo_outcome(score, real(a), real(y), values)
    torch.testing.assert_close(residual**2, rho * (phi - g) ** 2, rtol=1e-9, atol=1e-10)
    product = score.rho_phi(real(a), real(y), values) - rho * g
    torch.testing.assert_close(w * residual, product, rtol=1e-9, atol=1e-10)


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


def test_one_exact_nuisance_is_enough_for_the_mean():
    """Double robustness: the mean over both arms and outcomes is the truth if either nuisance is exact."""
    truth, propensity = 0.7, 0.2
    for e, mu in ((0.2, 0.1), (0.9, 0.7)):
        model = torch.tensor([[mu, mu]], dtype=torch.float64)
        p = torch.tensor([[1 - e, e]], dtype=torch.float64)
        treated = [float(dr_scores(torch.tensor([1]), torch.tensor([y]), p, model)[0, 1]) for y in (0.4, 1.0)]
        other = float(dr_scores(torch.tensor([0]), torch.tensor([0.3]), p, model)[0, 1])
        assert propensity * sum(treated) / 2 + (1 - propensity) * other == pytest.approx(truth)


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


DOMAIN = Domain([0.0, -2.0], [1.0, 3.0], outcome_low=-1.0, outcome_high=3.0, overlap=0.1)


def test_constants():
    half, middle = torch.full((2, 2), 0.5), torch.ones(2, 2)
    assert score_spread(DOMAIN, half, middle) == 4.0
    # the middle one of three arms apart: an untreated record's scores differ by 3 - (-1)
    apart = torch.tensor([[-1.0, -1.0], [3.0, 3.0], [3.0, 3.0]])
    assert score_spread(DOMAIN, torch.ones(3, 2), apart) == 4.0


def test_intervals_that_are_not_finite_are_no_spread():
    with pytest.raises(NumericalError, match="not finite"):
        score_spread(DOMAIN, torch.tensor([[0.5, float("nan")], [0.5, 0.5]]), torch.zeros(2, 2))


@pytest.mark.parametrize("arms", [2, 3])
def test_random_records_stay_within_and_come_near(arms):
    generator = torch.Generator().manual_seed(0)
    mu = (4 * torch.rand(arms, 2, generator=generator, dtype=torch.float64) - 1).sort().values
    e = (0.1 + 0.2 * torch.rand(arms, 2, generator=generator, dtype=torch.float64)).sort().values
    n = 200_000
    sides = [torch.randint(2, (n, arms), generator=generator) for _ in range(2)]
    values = [part.gather(1, which.T).T for part, which in zip((mu, e), sides, strict=True)]
    y = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 3.0).double()
    phi = dr_scores(torch.randint(arms, (n,), generator=generator), y, values[1], values[0])
    assert (phi.amax(1) - phi.amin(1)).max().item() == pytest.approx(score_spread(DOMAIN, e, mu))
