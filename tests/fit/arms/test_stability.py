"""Stability constants: the note's numbers, Lipschitz constants by brute force, neighbours that attain the betas."""

import math

import pytest
import torch

from torchdpcate.causal.score import project_to_floor
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.linear_fits import CoefficientBlock, LogisticFits, RidgeFits
from torchdpcate.fit.arms.stability import (
    IndirectBound,
    indirect_bound,
    logistic_gradient_bound,
    outcome_stability,
    propensity_stability,
)

RADIUS, RIDGE, N = math.sqrt(21), 50.0, 1500  # theory note, section 8: m = n


def test_numbers_of_the_note():
    beta_mu = outcome_stability(RADIUS, RIDGE, N, localised=False)
    beta_e = propensity_stability(RADIUS, RIDGE, N, localised=False)
    assert beta_mu == pytest.approx(4.614607e-4, abs=5e-11)
    assert beta_e == pytest.approx(1.4e-4, rel=1e-12)
    printed = IndirectBound(beta_mu, beta_e, 0.1)
    assert printed.rho == pytest.approx(0.019076068, abs=5e-10)
    assert printed.paper(N) == pytest.approx(28.614102, abs=5e-7)
    assert printed.paper_range_sensitivity(N) == pytest.approx(57.228204, abs=1e-6)
    assert printed.range_sensitivity(N) == pytest.approx(27.200361, abs=5e-7)
    localised = RADIUS / 4 * 2 * logistic_gradient_bound(RADIUS, RIDGE, localised=True) / (N * RIDGE)
    partly = IndirectBound(beta_mu, localised, 0.1)
    assert partly.indirect(N) == pytest.approx(17.946135, abs=5e-7)
    assert partly.range_sensitivity(N) == 20.0


def test_localised_throughout():
    """Propensities in [0.45, 0.55] and outcome models near the middle: 2.9 where the note has 20."""
    bound = indirect_bound(N, radius=RADIUS, ridge=RIDGE, propensity_ridge=RIDGE, overlap=0.1)
    assert bound.overlap == pytest.approx(0.452618, abs=1e-6)
    assert bound.outcome_range == pytest.approx(0.5 + 21 / (2 * 71))
    assert bound.range_sensitivity(N) == 2 * bound.outcome_range / bound.overlap == pytest.approx(2.862845, abs=1e-6)
    assert bound.indirect(N) < 1


def test_more_than_two_actions():
    beta = propensity_stability(RADIUS, RIDGE, N, localised=False, actions=3, overlap=0.1)
    assert beta == pytest.approx((1 - 3 * 0.1) * 21 / (N * RIDGE))
    assert propensity_stability(RADIUS, RIDGE, N, actions=3, overlap=0.1) < beta


def test_inexact_fits_add_twice_the_tolerance():
    for stability, lipschitz in ((outcome_stability, RADIUS), (propensity_stability, RADIUS / 4)):
        added = stability(RADIUS, RIDGE, N, tolerance=1e-3) - stability(RADIUS, RIDGE, N)
        assert added == pytest.approx(2 * lipschitz * 1e-3 / RIDGE)


@pytest.mark.parametrize("actions", [2, 3, 5, 8])
def test_lipschitz_constants_of_softmax_and_projection(actions):
    generator = torch.Generator().manual_seed(actions)
    u = 3 * torch.randn(50_000, actions, generator=generator, dtype=torch.float64)
    du = torch.randn(50_000, actions, generator=generator, dtype=torch.float64)
    u[0], du[0] = 0.0, 0.0  # two probabilities of one half each
    u[0, 2:], du[0, 0], du[0, 1] = -50.0, 1.0, -1.0
    du *= 1e-4 / du.norm(dim=1, keepdim=True)
    moved = (torch.softmax(u + du, 1) - torch.softmax(u, 1)).abs().amax(1) / 1e-4
    assert moved.max() <= math.sqrt(2) / 4 * (1 + 1e-6)
    assert moved[0] == pytest.approx(math.sqrt(2) / 4, rel=1e-6)
    p = torch.rand(50_000, actions, generator=generator, dtype=torch.float64)
    step = torch.rand(50_000, actions, generator=generator, dtype=torch.float64) - 0.5
    step[0], p[0] = -1.0, 1 / actions  # one rises, all others fall, nothing is cut
    step[0, 0] = 1.0
    step *= 0.02 / step.abs().amax(1, keepdim=True)
    far = (project_to_floor(p + step, 0.05) - project_to_floor(p, 0.05)).abs().amax(1) / 0.02
    assert far.max() <= (2 - 2 / actions) * (1 + 1e-9)
    assert far[0] == pytest.approx(2 - 2 / actions)


def crowd(m: int, arms: int, place: float = 1.0) -> CoefficientBlock:
    """Records of one place, outcome and arm."""
    psi = torch.tensor([place, 0.0], dtype=torch.float64).expand(m, -1)
    return CoefficientBlock(psi, torch.full((m,), 0.5, dtype=torch.float64), torch.zeros(m, dtype=torch.long), arms)


def candidates(arms: int) -> CoefficientBlock:
    """Records all round the circle, of either extreme outcome and of every arm."""
    angle = torch.arange(0, 2 * math.pi, 2 * math.pi / 90, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    index = torch.cartesian_prod(torch.arange(90), torch.arange(2), torch.arange(arms))
    return CoefficientBlock(circle[index[:, 0]], index[:, 1] - 0.5, index[:, 2], arms)


@pytest.mark.parametrize("ridge", [50 / 21, 0.3])
@pytest.mark.parametrize("arms", [2, 3])
def test_neighbours_attain_the_betas_and_never_pass_them(ridge, arms):
    """Any two of many data sets that differ in record 0 are neighbours: the range over all of them is the worst."""
    m, new = 400, candidates(arms)
    index = torch.zeros(len(new.z), dtype=torch.long)
    means = (
        RidgeFits(crowd(m, arms, min(1.0, math.sqrt(ridge))), ridge).refit(index, new) @ new.psi.T
    )  # [runs, K, places]
    moved = (means.amax(0) - means.amin(0)).max().item() / outcome_stability(1.0, ridge, m)
    assert 0.99 < moved <= 1
    # a record that crosses moves its old arm and its new one
    gone = (means[new.arm != 0, 0].mean(0) - means[new.arm == 0, 0]).abs().max().item()
    assert 0.5 < gone / outcome_stability(1.0, ridge, m, crossing=True) <= 1
    logits = LogisticFits(crowd(m, arms), ridge, 1e-13).refit(index, new) @ new.psi.T
    full = torch.cat([torch.zeros_like(logits), logits], 1) if arms == 2 else logits
    e = full.softmax(1)
    share = (e.amax(0) - e.amin(0)).max().item() / propensity_stability(1.0, ridge, m, actions=arms)
    assert (0.99 if arms == 2 else 0.4) < share <= 1


@pytest.mark.parametrize(
    ("arms", "ridge", "overlap", "least"), [(2, 50 / 21, 0.1, 0.7), (2, 0.2, 0.1, 0.4), (3, 1.8, 0.1, 0.3)]
)
def test_no_scoring_record_spills_more_than_certified(arms, ridge, overlap, least):
    m, new = 200, candidates(arms)
    index = torch.zeros(len(new.z), dtype=torch.long)
    bound = indirect_bound(m, radius=1.0, ridge=ridge, propensity_ridge=ridge, overlap=overlap, actions=arms)
    means = (RidgeFits(crowd(m, arms), ridge).refit(index, new) @ new.psi.T).clamp(-0.5, 0.5).mT
    logits = (LogisticFits(crowd(m, arms), ridge, 1e-13).refit(index, new) @ new.psi.T).mT
    if arms == 2:
        e = project_to_floor(torch.cat([torch.zeros_like(logits), logits], -1).softmax(-1), overlap)
    else:
        e = (1 - arms * overlap) * logits.softmax(-1) + overlap
    worst = 0.0
    for arm in range(arms):
        for y in (-0.5, 0.5):
            phi = means.clone()
            phi[..., arm] += (y - means[..., arm]) / e[..., arm]
            gaps = phi[..., :, None] - phi[..., None, :]
            assert gaps.abs().max() <= bound.own
            worst = max(worst, (gaps.amax(0) - gaps.amin(0)).max().item())
    assert least < worst / bound.indirect(1) <= 1


def test_a_crossing_record_may_be_the_worse_one():
    """At equal propensities both arms' models count alike, so that two of them moving adds up."""
    bound = IndirectBound(1.0, 0.0, 0.5, crossing=0.9)
    assert bound.of_outcomes == pytest.approx(1.8)
    assert IndirectBound(1.0, 0.0, 0.1, crossing=0.5).of_outcomes == pytest.approx(9.0)
    assert IndirectBound(1.0, 0.0, 0.1, averaged=False).of_outcomes == pytest.approx(10.0)


def test_refusals():
    for settings, match in (
        ({"overlap": 0.6}, "overlap = 0.6"),
        ({"overlap": 0.0}, "overlap"),
        ({"beta_mu": -1.0}, "beta_mu"),
    ):
        with pytest.raises(InputError, match=match):
            IndirectBound(**{"beta_mu": 1.0, "beta_e": 1.0, "overlap": 0.1, **settings})
    with pytest.raises(InputError, match="m = 0"):
        outcome_stability(1.0, 1.0, 0)
