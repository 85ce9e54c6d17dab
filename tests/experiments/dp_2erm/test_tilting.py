"""Entropy balancing: the certificate's numbers, balanced moments, scipy's minimiser, worst neighbours."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize

from experiments.dp_2erm.balancing import (
    TiltingLoss,
    TiltingWeights,
    largest_mean_tilt,
    tilting_indirect_sensitivity,
)
from tests.experiments.dp_2erm.cases import DOMAIN, confounded, omega
from torchdpcate.data.records import CausalData
from torchdpcate.fit.feature_maps import Identity


@pytest.mark.parametrize(("ridge", "indirect"), [(0.1, 26.832816), (1.0, 8.485281)])
def test_certificate(ridge, indirect):
    """Section 8 has that of 1 / pi with sqrt(2) (cap - 1) for the gradient's norm, sqrt(1 + (cap - 1)^2)."""
    first = indirect * math.hypot(1, 3) / (math.sqrt(2) * 3)
    assert 2 * tilting_indirect_sensitivity(4.0, ridge) < 0.8 * first


@pytest.mark.parametrize("ridge", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("cap", [2.1, 20.0])
def test_no_mean_weight_is_above_its_bound(cap, ridge):
    """The bound is that of a linear program over predictors; fits of confounded records lie below."""
    u = np.linspace(-math.log(cap / 2), math.log(cap / 2), 101)
    own, other = (grid.ravel() for grid in np.meshgrid(u, u))
    stationary = own * (2 * np.exp(own) - 1) + ridge * own**2 - other + ridge * other**2
    found = linprog(-np.exp(own), A_ub=[stationary], b_ub=[0.0], A_eq=[np.ones_like(own)], b_eq=[1.0], method="highs")
    assert 0.99 < -found.fun / largest_mean_tilt(cap, ridge) < 1
    for seed in range(3):
        records, domain = confounded(100, 2, seed)
        assert omega(TiltingWeights(ridge, cap), records, domain).mean() < largest_mean_tilt(cap, ridge)


def test_a_large_ridge_bounds_the_weights():
    """No fit goes beyond the norm 1/ridge: all of one arm, the other arm's tilt comes nearest to it."""
    domain = DOMAIN
    assert TiltingWeights(ridge=2.0, cap=20.0).span(domain) == pytest.approx((math.exp(-0.5), math.exp(0.5)))
    records = CausalData(torch.ones(50, 1).double(), torch.zeros(50).double(), torch.zeros(50).double())
    records.a[0] = 1.0
    treated = omega(TiltingWeights(ridge=2.0, cap=20.0), records, domain)[0].item()
    assert 1.5 < treated < math.exp(0.5)


@pytest.mark.parametrize("cap", [2.1, 4.0, 20.0])
def test_no_record_pulls_more_than_the_certificate_says(cap):
    """Norm over both arms' blocks, where the features have norm one."""
    loss = TiltingLoss(math.log(cap / 2))
    u = torch.linspace(-loss.radius, loss.radius, 201, dtype=torch.float64)
    own, other = loss(u, torch.ones_like(u)).first, loss(u, torch.zeros_like(u)).first
    assert torch.cartesian_prod(own, other).norm(dim=1).max().item() == pytest.approx(math.hypot(1, cap - 1))
    assert loss(u, torch.ones_like(u)).second.max().item() <= loss.curvature
    assert own.abs().max().item() == pytest.approx(loss.slope)


def test_the_loss_is_smooth_and_straight_beyond_its_reach():
    loss, u = TiltingLoss(1.0), torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    slopes = loss(u, torch.ones_like(u))
    (first,) = torch.autograd.grad(slopes.value.sum(), u)
    assert torch.allclose(first, slopes.first)
    assert (slopes.first.diff() >= -1e-12).all()


def test_arms_come_to_have_everybodys_moments():
    records, domain = confounded(400, 2)
    psi, w = Identity().setup(domain)(records.x), omega(TiltingWeights(ridge=1e-7), records, domain)
    for arm in (0, 1):
        mine = records.a == arm
        assert torch.allclose(2 * w[mine] @ psi[mine] / 400, psi.mean(0), atol=1e-5)
    assert torch.allclose(omega(TiltingWeights(ridge=1e6), records, domain), torch.ones(400).double(), atol=1e-5)


@pytest.mark.parametrize("cap", [20.0, 2.6])  # of which the second binds
def test_the_fit_is_scipys(cap):
    records, domain = confounded(60, 1)
    psi, ridge = Identity().setup(domain)(records.x).numpy(), 0.01
    w, radius = omega(TiltingWeights(ridge, cap), records, domain).numpy(), math.log(cap / 2)
    for arm in (0, 1):
        mine = records.a.numpy() == arm

        def objective(tilt, mine=mine):
            u = psi @ tilt
            return np.mean(2 * mine * np.exp(u) - u) + ridge / 2 * tilt @ tilt

        ball = {"type": "ineq", "fun": lambda tilt: radius**2 - tilt @ tilt}
        found = minimize(objective, np.zeros(2), method="SLSQP", constraints=[ball], options={"ftol": 1e-14})
        assert w[mine] == pytest.approx(np.exp(psi[mine] @ found.x), abs=1e-5)
        assert (np.linalg.norm(found.x) > radius - 1e-6) == (cap < 3)
