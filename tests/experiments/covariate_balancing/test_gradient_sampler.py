"""The gradient-map sampler: its law, its floor, how often it keeps a proposal."""

import math

import pytest
import torch
from scipy.stats import chi2

from experiments.covariate_balancing.gradient_sampler import (
    CurvedBalancingLoss,
    GradientSampler,
    L1Set,
    log_curvature,
)
from tests.estimators.average import eight
from torchdpcate import Domain, NoiseSource
from torchdpcate.causal.estimand import ATE, make_estimand
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import BalancingLoss
from torchdpcate.fit.stacked_records import Batch, StackedRecords, arm

FEATURES = on_domain(None, Domain([-1.0], [1.0], 0.0, 1.0))
FALSE_ALARM = 1e-6  # of each test of a law; the noise is fixed


def records(n=60, seed=0, slope=0.5):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
    z = (torch.rand(n, generator=generator) < torch.sigmoid(0.2 + slope * x[:, 0])).double()
    return StackedRecords(Batch(x, FEATURES(x), z, torch.zeros_like(z)))


def sampler(estimand="ATE", eta=0.2, order=math.inf, scale=6.0, ridge=1.0):
    loss = CurvedBalancingLoss(make_estimand(estimand, eta))
    return GradientSampler(loss, ridge, L1Set(loss.estimand.score_bound * math.sqrt(2)), scale, order, 1e-8)


def grid(radius, points):
    """Points of the square around a set of the plane, and the area that each stands for."""
    line = (torch.arange(points, dtype=torch.float64) + 0.5) / points * 2 * radius - radius
    return torch.cartesian_prod(line, line), (2 * radius / points) ** 2


def log_density(of, data, theta):
    """The law's, up to a constant, worked out from the printed loss and not from the sampler's continued one."""
    gradient = data.slopes(BalancingLoss(of.loss.estimand), arm, theta)[1] + of.ridge * theta
    inside = theta.abs().sum(1) <= of.region.radius
    return torch.where(inside, -torch.linalg.vector_norm(gradient, of.order, dim=1) / of.scale, -torch.inf)


def p_value(of, data, theta, cells=7):
    """Chi-squared test of draws against the density, in squares of the plane."""
    points, _ = grid(of.region.radius, 140)
    mass = log_density(of, data, points).softmax(0)

    def cell(t):
        return ((t / of.region.radius + 1) / 2 * cells).long().clamp(0, cells - 1) @ torch.tensor([cells, 1])

    expected = torch.zeros(cells**2).double().index_add_(0, cell(points), mass) * len(theta)
    seen = torch.bincount(cell(theta), minlength=cells**2).double()
    few = expected < 10  # put together
    pairs = [(seen[~few], expected[~few]), (seen[few].sum()[None], expected[few].sum()[None].clamp_min(1e-9))]
    statistic = sum(((s - e).square() / e).sum().item() for s, e in pairs)
    return chi2.sf(statistic, int((~few).sum()))


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize(("estimand", "eta", "scale"), [("ATE", 0.1, 8.0), ("ATT", 0.3, 1.5), ("ATC", 0.3, 1.5)])
def test_draws_follow_the_density(estimand, eta, scale, order):
    of, data, noise = sampler(estimand, eta, order, scale), records(), NoiseSource.fixed(3)
    drawn = of.draw(data, arm, noise, 1_200)
    assert p_value(of, data, drawn) > FALSE_ALARM
    proposed = of.propose(data, arm, noise, of.floor(data, arm).expand(40_000))[0]
    assert p_value(of, data, proposed[of.region.holds(proposed)]) < FALSE_ALARM  # who keeps them all is caught


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC"])
def test_the_floor_is_below_all_log_determinants_and_close(estimand):
    of = sampler(estimand, 0.1)
    for data in (records(), records(12, seed=4, slope=-4.0)):
        points, _ = grid(of.region.radius, 81)
        values = log_curvature(data, of.loss, arm, of.ridge, points[of.region.holds(points)])
        edge = 0.0 if estimand == "ATE" else 0.2  # the least lies in a corner, where the grid has no point
        assert 0 < (values.min() - of.floor(data, arm)).item() < 0.02 + edge


def test_log_determinants_of_the_note():
    loss = CurvedBalancingLoss(ATE(eight.ETA))
    theta = torch.stack([eight.THETA, torch.zeros(3, dtype=torch.float64)])
    found = log_curvature(eight.RECORDS, loss, arm, 0.0, theta)
    assert found.tolist() == pytest.approx([5.31080236, 3.50735758], abs=1e-8)


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC"])
def test_the_continued_loss_is_the_same_inside_and_smooth_beyond(estimand):
    estimand = make_estimand(estimand, 0.1)
    loss, clipped = CurvedBalancingLoss(estimand), BalancingLoss(estimand)
    u = torch.linspace(-estimand.score_bound, estimand.score_bound, 101, dtype=torch.float64)
    for target in (torch.ones(1).double(), -torch.ones(1).double()):
        (value, *found), (clipped_value, *expected) = loss(u, target), clipped(u, target)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert torch.allclose(value - value[0], clipped_value - clipped_value[0], atol=1e-12)
        far = torch.linspace(-6, 6, 241, dtype=torch.float64).requires_grad_()
        value, first, second = loss(far, target)
        (slope,) = torch.autograd.grad(value.sum(), far, create_graph=True)
        assert torch.allclose(slope, first, atol=1e-12)
        assert bool((second >= 0).all())
        assert second.amax().item() <= loss.curvature * (1 + 1e-12)
