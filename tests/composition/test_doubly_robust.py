"""Doubly robust scores in a composition: bounds of gradients, the limit without noise, plan, releases."""

import math

import pytest
import torch
from scipy.optimize import minimize

from tests.composition.cases import rows
from torchdpcate import DRLearner, PrivacyBudget
from torchdpcate.composition.builder import composed_plan, plan_within
from torchdpcate.composition.fit_plans import effect_plan
from torchdpcate.composition.plan import DOUBLY_ROBUST
from torchdpcate.composition.regressions import Regressions
from torchdpcate.composition.steps import NoisySteps, Shares
from torchdpcate.data.domain import Domain
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

BUDGET = PrivacyBudget(4.0, 1e-5)
DOMAIN = Domain([-1.0, -1.0], [1.0, 1.0], -4.0, 4.0, overlap=0.1)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def study(n=4_000, seed=3, noise=0.3):
    """Records with a confounder, and their effect 1 + x1."""
    x = 2 * uniform(n, 2, seed=seed) - 1
    pi = torch.sigmoid(x[:, 0])
    a = (uniform(n, seed=seed + 1) < pi).double()
    effect = 1 + x[:, 1]
    y = x[:, 0] + a * effect + noise * (2 * uniform(n, seed=seed + 2) - 1)
    return x, a, y.clamp(-4, 4), effect


def test_features_of_both_arms_have_one_length_whatever_the_arm():
    basis = composed_plan(20_000, BUDGET, 3, DOUBLY_ROBUST).both_arms([False, True, False]).basis
    assert basis.contrast is not None
    assert basis.feature_weights.sum().item() == pytest.approx(1.0)
    z = 3 * (2 * uniform(50, 3) - 1)
    treated, control = (basis(z, torch.full((50,), a).double()) for a in (1.0, 0.0))
    torch.testing.assert_close(treated.norm(dim=1), control.norm(dim=1))
    first = basis.shared.dimension
    torch.testing.assert_close(treated[:, :first], control[:, :first])
    torch.testing.assert_close(treated[:, first:], -control[:, first:])
    assert sorted(p for part in basis.parts.values() for p in part) == list(range(1, len(basis.feature_weights)))


def test_a_fit_without_privacy_is_the_dense_minimum():
    """The Huber regression of scores, by another minimiser."""
    plan = plan_within(800, None, DOMAIN, DOUBLY_ROBUST)
    steps = NoisySteps(FitSession(NoiseSource.system()), Shares(math.inf))
    z, score = 3 * (2 * uniform(800, 2) - 1), 4 * uniform(800, seed=5)
    found = Regressions(plan, steps, (False, False)).effect(rows(z, score), 0.8)
    psi = found.regression.basis(z)
    weight = 1 / psi.norm(dim=1)
    d = (psi * weight[:, None]).T @ psi / 800
    ridge = effect_plan(plan, found.regression, found.curvatures, 0.8).ridge

    def loss(theta):
        r = psi @ theta - score
        clipped = r.clamp(-0.8, 0.8)
        return (weight * clipped * (r - clipped / 2)).sum() + (ridge * theta.square()).sum() / 2

    def value(theta):
        t = torch.from_numpy(theta).requires_grad_()
        total = loss(t)
        total.backward()
        return total.item(), t.grad.numpy()

    best = minimize(value, torch.zeros(psi.shape[1]).double().numpy(), jac=True, method="BFGS", options={"gtol": 1e-10})
    assert (found.coefficients - torch.from_numpy(best.x)).abs().max() < 1e-7 * (1 + float(found.coefficients.norm()))
    assert (d.diagonal() / found.curvatures.diagonal()).log().abs().max() < 1.0  # clipped at norm one


@pytest.mark.slow
def test_it_is_doubly_robust():
    """A mean that no plan has features for, and a propensity that is known; and the other way round."""
    x, a, _, effect = study(8_000)
    y = (torch.sin(9 * x[:, 0] * x[:, 1]) + a * effect + 0.3 * (uniform(8_000, seed=8) - 0.5)).clamp(-4, 4)
    trial = Domain([-1.0, -1.0], [1.0, 1.0], -4.0, 4.0, overlap=0.1, propensity=0.5)
    a_trial = (uniform(8_000, seed=7) < 0.5).double()
    y_trial = y + (a_trial - a) * effect
    learner = DRLearner(trial, PrivacyBudget(50.0, 1e-5), noise=NoiseSource.fixed(1)).fit(
        x, a_trial, y_trial.clamp(-4, 4)
    )
    assert (learner.composed_.propensity == 0.5).all()
    found = torch.from_numpy(learner.release_function().effect(x))
    assert (found - effect).square().mean().sqrt() < 0.15
    # a propensity held to .5 where it is not, and means that are right
    x, a, y, effect = study(8_000)
    wrong = DRLearner(trial, PrivacyBudget(50.0, 1e-5), noise=NoiseSource.fixed(1)).fit(x, a, y)
    found = torch.from_numpy(wrong.release_function().effect(x))
    assert (found - effect).square().mean().sqrt() < 0.15


def test_a_private_effect_is_near_the_truth():
    x, a, y, effect = study(8_000)
    learner = DRLearner(DOMAIN, BUDGET, noise=NoiseSource.fixed(4)).fit(x, a, y)
    assert learner.plan_.kind == DOUBLY_ROBUST
    error = (torch.from_numpy(learner.release_function().effect(x)) - effect).square().mean().sqrt()
    assert error < 0.2  # the constant's is .58
    assert 0 < learner.planned_error() < 0.2
    assert learner.expected_noise(8_000).value > 0
