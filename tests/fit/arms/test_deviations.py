"""Certificates about targets: norms and distances by brute force, neighbours that come near them and never pass."""

import math
from dataclasses import replace

import pytest
import torch

from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.domain import Domain
from torchdpcate.fit.arms.deviations import ArmBound, DeviationBound, deviation_bound, logit_deviation
from torchdpcate.fit.arms.linear_fits import CoefficientBlock, LogisticFits, RidgeFits
from torchdpcate.fit.arms.stability import (
    indirect_bound,
    logistic_gradient_distance,
    logistic_norm,
    outcome_stability,
    propensity_stability,
)

UNIT = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0)
ANGLES = 60


def offset(shares: list[float]) -> torch.Tensor:
    logs = torch.tensor(shares, dtype=torch.float64).log()
    return (logs - logs[0])[:, None]


def records(psi, y, arm, shares, means) -> CoefficientBlock:
    return CoefficientBlock(psi, y - torch.tensor(means, dtype=torch.float64)[arm], arm, len(shares), offset(shares))


def crowd(m: int, place: float, y: float, arm: int, shares, means) -> CoefficientBlock:
    """Records of one place, outcome and arm."""
    psi = torch.tensor([place, 0.0], dtype=torch.float64).expand(m, -1)
    return records(psi, torch.full((m,), y).double(), torch.full((m,), arm), shares, means)


def comers(shares, means) -> CoefficientBlock:
    """Records all round the circle, of either extreme outcome and of every arm."""
    angle = torch.arange(ANGLES, dtype=torch.float64) * 2 * math.pi / ANGLES
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    index = torch.cartesian_prod(torch.arange(ANGLES), torch.arange(2), torch.arange(len(shares)))
    return records(circle[index[:, 0]], index[:, 1].double(), index[:, 2], shares, means)


@pytest.mark.first(3)
@pytest.mark.parametrize("share", [0.5, 0.2, 0.03])
@pytest.mark.parametrize("ridge", [3.0, 0.6, 0.05])
def test_a_crowd_of_the_rarer_arm_attains_the_norm_and_no_record_passes_the_distance(share, ridge):
    o = math.log(share / (1 - share))
    bound = logistic_norm(1.0, ridge, o)
    found = []
    for place in torch.linspace(0.02, 1, 50, dtype=torch.float64).tolist():
        fit = LogisticFits(crowd(20, place, 0.0, 1, [1 - share, share], [0.0, 0.0]), ridge, 1e-13).fit()
        found.append(fit.norm().item())
    assert 0.999 * bound < max(found) <= bound * (1 + 1e-9)
    # gradients of every record in the disk, at the worst minimiser
    angle = torch.linspace(-math.pi, math.pi, 145, dtype=torch.float64)
    radius = torch.tensor([0.25, 0.5, 0.75, 0.9, 1.0], dtype=torch.float64)
    x = (radius[:, None, None] * torch.stack([angle.cos(), angle.sin()], 1)).reshape(-1, 2)
    v = bound * x[:, 0]
    gradients = torch.cat([-torch.sigmoid(-(o + v))[:, None] * x, torch.sigmoid(o + v)[:, None] * x])
    widest = torch.cdist(gradients, gradients).max().item()
    assert 0.7 < widest / logistic_gradient_distance(1.0, ridge, o) <= 1 + 1e-9


def test_distances_are_those_of_the_disk_for_every_offset():
    angle = torch.linspace(-math.pi, math.pi, 361, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    shares = []
    for o in (0.0, 0.1, 0.4, 0.8, 1.39, 2.2, 3.5, 6.0):
        for ridge in (10.0, 2.0, 1.0, 0.5, 0.35, 0.3, 0.1):
            size = torch.sigmoid(o + logistic_norm(1.0, ridge, o) * circle[:, 0])[:, None] * circle
            shares.append(torch.cdist(size, size).max().item() / logistic_gradient_distance(1.0, ridge, o))
    assert max(shares) <= 1 + 1e-9
    assert min(shares) > 0.7
    assert sum(share > 0.9999 for share in shares) > len(shares) / 2


@pytest.mark.parametrize("actions", [2, 3])
@pytest.mark.parametrize("ridge", [50 / 21, 0.3])
def test_guesses_that_say_nothing_give_the_bounds_about_the_middle(actions, ridge):
    shares, means = [1 / actions] * actions, [0.5] * actions
    settings = {"radius": 1.0, "ridge": ridge, "propensity_ridge": ridge, "overlap": 0.1, "tolerance": 1e-6}
    bound = deviation_bound(300, shares, means, domain=UNIT, **settings)
    middle = indirect_bound(300, actions=actions, **settings)
    assert bound.beta_mu == pytest.approx(outcome_stability(1.0, ridge, 300, tolerance=1e-6))
    assert bound.overlap == pytest.approx(middle.overlap)
    assert bound.outcome_range == pytest.approx(middle.outcome_range)
    assert bound.crossing == pytest.approx(middle.crossing)
    assert bound.own == pytest.approx(middle.own)
    beta_e = propensity_stability(1.0, ridge, 300, actions=actions, overlap=0.1, tolerance=1e-6)
    # with more than two arms, the slopes within distance say more than the largest of all
    assert bound.beta_e == pytest.approx(beta_e, rel=1e-9 if actions == 2 else 0.01)
    assert bound.beta_e <= beta_e * (1 + 1e-9)
    # and the odds say more of 1 / e than the propensity's movement
    assert 0.6 * middle.indirect(100) < bound.indirect(100) <= middle.indirect(100) * (1 + 1e-9)


def test_a_spill_arm_by_arm_by_hand():
    arms = (ArmBound(0.1, 0.08, 0.8, 0.5), ArmBound(0.2, 0.15, 0.1, 0.6))
    bound = DeviationBound(0.2, 0.2, 0.1, 0.6, crossing=0.15, arms=arms, beta_logit=0.3, score_spread=5.0)
    # the rare arm scores: it keeps its record (9 x 0.2) or loses it (9 x 0.15 + 0.08); then the odds move
    assert bound.indirect(10) == pytest.approx(10 * (9 * 0.2 + 0.6 * 9 * (1 - math.exp(-0.3))))
    assert (bound.own, bound.range_sensitivity(1)) == (5.0, 10.0)
    flat = replace(bound, beta_e=0.01)  # the propensity moves less than its odds may
    assert flat.indirect(10) == pytest.approx(10 * (9 * 0.2 + 0.6 * (1 / 0.1 - 1 / 0.11)))
    rare = DeviationBound(0.2, 0.01, 0.1, 0.6, arms=(ArmBound(0.3, 0.2, 0.8, 0.5),) * 3)
    assert rare.indirect(1) == pytest.approx(2 * 0.2)  # two arms that are not the scoring record's own
    crossing = DeviationBound(0.2, 0.01, 0.1, 0.6, arms=(ArmBound(0.1, 0.09, 0.5, 1.0),) * 2)
    assert crossing.indirect(1) == pytest.approx(2 * 0.09)


CASES = {
    "rare": ([0.97, 0.03], [0.25, 0.1], 1.0, 0.01, 0.5),
    "rare, large ridge": ([0.97, 0.03], [0.6, 0.4], 5.0, 0.01, 0.9),
    "a fifth": ([0.8, 0.2], [0.7, 0.2], 1.0, 0.02, 0.5),
    "three": ([0.8, 0.15, 0.05], [0.2, 0.5, 0.9], 2.0, 0.01, 0.3),
}


@pytest.mark.parametrize("case", CASES)
def test_no_neighbour_passes_the_certificate(case):
    """Crowds of every arm and extreme outcome; two records that replace each other; every scoring record."""
    shares, means, ridge, overlap, least = CASES[case]
    m, arms, new = 200, len(shares), comers(shares, means)
    settings = {"radius": 1.0, "ridge": ridge, "propensity_ridge": ridge, "overlap": overlap}
    bound = deviation_bound(m, shares, means, domain=UNIT, **settings)
    distance, beta_logit = logit_deviation(m, shares, 1.0, ridge)
    index = torch.zeros(len(new.z), dtype=torch.long)
    places, base = new.psi[:: 2 * arms], torch.tensor(means, dtype=torch.float64)
    found = dict.fromkeys(("indirect", "own", "outcome", "propensity", "logit"), 0.0)
    for arm in range(arms):
        for y in (0.0, 1.0):
            many = crowd(m, min(1.0, math.sqrt(ridge)), y, arm, shares, means)
            mu = base + (RidgeFits(many, ridge).refit(index, new) @ places.T).mT  # [runs, places, K]
            u = (LogisticFits(many, ridge, 1e-12).refit(index, new) @ places.T).mT
            logits = (torch.cat([torch.zeros_like(u), u], -1) if arms == 2 else u) + offset(shares)[:, 0]
            p = logits.softmax(-1)
            assert (p.logit() - torch.tensor(shares, dtype=torch.float64).logit()).abs().max() <= distance + 1e-9
            e = project_to_floor(p, overlap) if arms == 2 else (1 - arms * overlap) * p + overlap
            found["logit"] = max(found["logit"], _range(p.logit()).max().item() / beta_logit)
            found["propensity"] = max(found["propensity"], _range(e).max().item() / bound.beta_e)
            for a, own in enumerate(bound.arms):
                found["outcome"] = max(found["outcome"], _range(mu[..., a]).max().item() / own.beta_mu)
                assert e[..., a].min() >= own.least * (1 - 1e-9)
                residual = torch.maximum(mu[..., a].clamp(0, 1), 1 - mu[..., a].clamp(0, 1)).max()
                assert residual <= own.residual * (1 + 1e-9)
            mu = mu.clamp(0, 1)
            for a in range(arms):
                for outcome in (0.0, 1.0):
                    phi = mu.clone()
                    phi[..., a] += (outcome - mu[..., a]) / e[..., a]
                    gaps = phi[..., :, None] - phi[..., None, :]
                    found["own"] = max(found["own"], gaps.abs().max().item() / bound.own)
                    found["indirect"] = max(found["indirect"], _range(gaps).max().item() / bound.indirect(1))
    assert max(found.values()) <= 1 + 1e-9
    assert found["outcome"] > 0.99
    assert found["indirect"] > least


def _range(values: torch.Tensor) -> torch.Tensor:
    """Range over the data sets, any two of which are neighbours."""
    return values.amax(0) - values.amin(0)
