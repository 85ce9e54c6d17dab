"""Linear fits by DP-SGD in Lightning against noisy descent in plain torch, on the same draws."""

import math

import pytest
import torch

from torchdpcate.composition.lightning_fit import LightningFit
from torchdpcate.composition.lightning_steps import full_batch_plan
from torchdpcate.composition.linear_fit import Aimed, NewtonPoints
from torchdpcate.erm.losses import CrossEntropy, Huber
from torchdpcate.errors import BudgetError
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent
from torchdpcate.privacy.gaussian_dp import gaussian_dp
from torchdpcate.privacy.noise import FixedNoise, NoiseSource
from torchdpcate.privacy.session import FitSession

N, P, STEPS, MU = 400, 5, 43, 2.0


class Draws(FixedNoise):
    """The same standard normal numbers for whoever asks, times the scale that is asked for."""

    def __init__(self, seed=0, factor=1.0):
        super().__init__(seed)
        self.normals = torch.Generator().manual_seed(seed)
        self.factor, self.scales = factor, []

    def gaussian(self, size, scale, step=None):
        self.scales.append(scale)
        return self.factor * scale * torch.randn(size, generator=self.normals, dtype=torch.float64)

    def fine_gaussian(self, size, scale):
        return self.gaussian(size, scale)


def problem(kind):
    """Features, loss, weights, ridge and scaling, as the composed plan has them."""
    generator = torch.Generator().manual_seed(3)
    psi = torch.randn(N, P, generator=generator, dtype=torch.float64)
    psi[:, 0] = 1
    theta = torch.linspace(-1, 1, P, dtype=torch.float64)
    noise = torch.randn(N, generator=generator, dtype=torch.float64)
    target = psi @ theta + noise if kind == "huber" else (psi @ theta + noise > 0).double()
    loss = Aimed(Huber(0.8) if kind == "huber" else CrossEntropy(), target)
    weights = 1 / psi.norm(dim=1)
    share = 0.7 if kind == "huber" else 0.2
    curvature = share * loss.loss.curvature * (weights[:, None] * psi**2).sum(0)
    ridge = 0.05 * curvature
    return psi, loss, weights, ridge, curvature + ridge


def plain(psi, loss, weights, ridge, scaling, steps, noise, sd):
    """The sketch's loop: no clipping, no grid, no network."""
    points, theta = NewtonPoints(ridge, scaling, steps), torch.zeros(psi.shape[1], dtype=torch.float64)
    for _ in range(steps):
        gradient = psi.T @ (weights * loss(theta @ psi.T).first)
        theta = points.step(theta, gradient + noise.gaussian(len(theta), sd))
    return points.mean


@pytest.mark.parametrize("kind", ["huber", "logistic"])
@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_it_learns_what_noisy_descent_learns_on_the_same_draws(kind, mode):
    parts = problem(kind)
    sd = 2 * parts[1].slope * math.sqrt(STEPS) / MU
    # the clip norm is 1 + 2^-15 of the bound, and the noise with it
    draws = Draws(factor=1 / (1 + 2**-15))
    fitted = LightningFit(mode=mode).fit(*parts, STEPS, FitSession(draws), MU)
    expected = plain(*parts, STEPS, Draws(), sd)
    assert draws.scales == pytest.approx([(1 + 2**-15) * 2 * math.sqrt(STEPS) / MU] * STEPS)
    torch.testing.assert_close(fitted, expected, rtol=0, atol=1e-9)


def test_it_pays_for_mu_before_any_noise():
    session = FitSession.open({"records": N}, PrivacyBudget(1.0, 1e-5), NoiseSource.fixed(0))
    own = session.scope(["records"], TRAINING)
    LightningFit().fit(*problem("huber"), STEPS, own, mu=0.2)
    (entry,) = (session.ledger.entry(number) for number in own.entries)
    assert (entry.event, entry.count) == (GaussianEvent(math.sqrt(STEPS) / 0.2), STEPS)
    assert gaussian_dp([(entry.event, entry.count)], 1e-5).mu == pytest.approx(0.2)


def test_the_steps_are_what_is_paid_for():
    plan = full_batch_plan(STEPS, 0.2)
    assert plan.event == DPSGDEvent(10 * math.sqrt(STEPS), 1.0)
    assert gaussian_dp([(plan.event, plan.steps)], 0.0).mu == pytest.approx(0.2)
    # (1, 1e-5) is mu = .2680511232
    assert compose([(full_batch_plan(7, 0.2680511232).event, 7)], 1e-5) == pytest.approx(1.0, abs=1e-4)


def test_nothing_is_drawn_for_steps_that_the_budget_does_not_cover():
    draws = Draws()
    session = FitSession.open({"records": N}, PrivacyBudget(1.0, 1e-5), draws)
    with pytest.raises(BudgetError):
        LightningFit().fit(*problem("huber"), STEPS, session.scope(["records"], TRAINING), mu=0.3)
    assert draws.scales == []


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_a_record_whose_weight_is_too_large_is_clipped(mode):
    psi, loss, weights = problem("huber")[:3]
    silent = Draws(factor=0.0)

    def first_gradient(factor):
        # one step of size 1 from zero by P = 1: the Newton point is minus the gradient
        one = torch.ones(P, dtype=torch.float64)
        weights_now = weights.clone()
        weights_now[0] *= factor
        return -LightningFit(mode=mode).fit(psi, loss, weights_now, 0 * one, one, 1, FitSession(silent), MU)

    moved = first_gradient(1e9) - first_gradient(0.0)
    assert moved.norm() <= loss.slope * (1 + 2**-15)
    # in the direction of its own gradient
    assert moved.norm() == pytest.approx(loss.slope, rel=1e-4)


def test_the_fit_leaves_the_records_and_the_global_generator_alone():
    parts = problem("huber")
    before, state = [part.clone() for part in (parts[0], parts[2])], torch.get_rng_state()
    LightningFit().fit(*parts, 5, FitSession(NoiseSource.system()), MU)
    assert torch.equal(parts[0], before[0])
    assert torch.equal(parts[2], before[1])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


def test_newton_points_of_a_quadratic_have_its_solution_as_mean_from_anywhere():
    generator = torch.Generator().manual_seed(0)
    solution = torch.randn(4, generator=generator, dtype=torch.float64)
    curvature = torch.rand(4, generator=generator, dtype=torch.float64) + 1
    ridge = torch.full((4,), 0.5, dtype=torch.float64)
    points, theta = NewtonPoints(ridge, curvature + ridge, 10), 100 * torch.ones(4, dtype=torch.float64)
    for _ in range(10):
        theta = points.step(theta, curvature * (theta - solution))
    torch.testing.assert_close(points.mean, curvature * solution / (curvature + ridge), rtol=1e-12, atol=1e-12)


def test_steps_are_cut_where_they_point_against_each_other():
    one = torch.ones(30, dtype=torch.float64)
    points = NewtonPoints(0 * one, one, 8)
    theta = points.step(one, one)
    assert points.size == 0.25
    points.step(theta, -one)
    assert points.size == pytest.approx(0.15)
