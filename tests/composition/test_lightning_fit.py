"""Linear fits by DP-SGD in Lightning against noisy descent in plain torch, on the same draws."""

import math

import pytest
import torch

from torchdpcate.composition import networks
from torchdpcate.composition.linear_fit import CountFit, FitPlan, HuberFit, LogisticFit, NoisyNewton
from torchdpcate.composition.networks import full_batches
from torchdpcate.composition.settings import LightningFit
from torchdpcate.composition.steps import NoisySteps, Shares
from torchdpcate.fit import engines
from torchdpcate.fit.linear_taps import Use
from torchdpcate.privacy.accounting import compose, event_mu
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent
from torchdpcate.privacy.noise import FixedNoise
from torchdpcate.privacy.session import FitSession

N, P, STEPS, WARM, MU = 400, 5, 43, 9, 2.0


class Draws(FixedNoise):
    """The same standard normal numbers for whoever requests, times the scale that is requested, off the grid."""

    def __init__(self, seed=0, factor=1.0):
        super().__init__(seed)
        self.normals = torch.Generator().manual_seed(seed)
        self.factor, self.scales = factor, []

    @staticmethod
    def fine_grid(scale):
        return 2.0**-45

    def fine_gaussian_rows(self, rows, size, scale):
        return (self.fine_gaussian(size, scale) for _ in range(rows))

    def fine_gaussian(self, size, scale):
        self.scales.append(scale)
        return self.factor * scale * torch.randn(size, generator=self.normals, dtype=torch.float64)


def problem(kind="huber", steps=STEPS, burn_in=WARM):
    """A fit and its plan, as a composition has them."""
    generator = torch.Generator().manual_seed(3)
    psi = torch.randn(N, P, generator=generator, dtype=torch.float64)
    psi[:, 0] = 1
    score = psi @ torch.linspace(-1, 1, P, dtype=torch.float64)
    score += torch.randn(N, generator=generator, dtype=torch.float64)
    weights = 1 / psi.norm(dim=1)
    if kind == "huber":
        fit, share = HuberFit(psi, weights, score, 0.8), 0.7
    elif kind == "count":
        counts = torch.poisson((score.clamp(max=4) / 2).exp(), generator=generator)
        fit, share = CountFit(psi, weights, counts - 1, 1.5, centre=1.0, level=1.5), 1.0
    else:
        fit, share = LogisticFit(psi, weights, (score > 0).double(), 0.8 if kind == "propensity" else 1.0), 0.2
    curvature = share * (weights[:, None] * psi.square()).sum(0)
    return fit, FitPlan("outcome", curvature, 0.05 * curvature, steps, burn_in, 0.3, 0.25)


def steps_of(noise, mu=MU, session=None):
    return NoisySteps(session or FitSession(noise), Shares(mu, {"outcome": 1.0}))


@pytest.mark.first(4)
@pytest.mark.parametrize("kind", ["huber", "logistic", "propensity", "count"])
def test_it_learns_what_noisy_descent_learns_of_the_same_draws(kind):
    fit, plan = problem(kind)
    # its noise is larger by what the clip norm is above the bound
    draws, plain = Draws(factor=1 / (1 + 2**-15)), Draws()
    fitted = LightningFit().solve(fit, plan, steps_of(draws))
    expected = NoisyNewton().solve(fit, plan, steps_of(plain))
    torch.testing.assert_close(fitted, expected, rtol=0, atol=1e-9)
    assert len(draws.scales) == STEPS
    # in units of the slope
    ratios = [ours / theirs for ours, theirs in zip(draws.scales, plain.scales, strict=True)]
    assert ratios == pytest.approx([(1 + 2**-15) / fit.slope] * STEPS, rel=1e-8)


def test_the_clip_norm_of_long_tables_is_that_of_short_ones(monkeypatch):
    """In one sum of 10^7 records, in any order, rounding would be 40 % of the clip norm of 350 numbers."""
    assert full_batches(GaussianEvent(20.0), 1, 10**7, 350).max_grad_norm == pytest.approx(1, rel=2e-3)
    monkeypatch.setattr(networks, "AT_ONCE", None)
    assert full_batches(GaussianEvent(20.0), 1, 10**7, 350).max_grad_norm > 1.4
    monkeypatch.setattr(networks, "AT_ONCE", 90)
    summed, sums = [], Use.weighted_sums
    monkeypatch.setattr(engines, "AT_ONCE", 90)

    def noted(use, factors, *of, **how):
        summed.append(len(factors))
        sums(use, factors, *of, **how)

    monkeypatch.setattr(Use, "weighted_sums", noted)
    LightningFit().solve(*problem(), steps_of(Draws()))
    assert sum(summed) == STEPS * N
    assert max(summed) == 90


def test_the_steps_are_what_is_paid_for():
    plan = full_batches(GaussianEvent(math.sqrt(STEPS) / 0.2680511232), STEPS, N, P)
    assert plan.event == DPSGDEvent(2 * math.sqrt(STEPS) / 0.2680511232, 1.0)
    assert math.sqrt(plan.steps) * event_mu(plan.event) == pytest.approx(0.2680511232)
    # (1, 1e-5) is mu = .2680511232
    assert compose([(plan.event, plan.steps)], 1e-5) == pytest.approx(1.0, abs=1e-4)


def test_a_record_whose_weight_is_too_large_is_clipped():
    fit, _ = problem()
    one = torch.ones(P, dtype=torch.float64)
    plan = FitPlan("outcome", one, 0 * one, 1, 0, 0.0, 1.0)

    def gradient(factor):
        # of one step from zero by P = 1 without noise: minus the Newton point
        weights = fit.weights.clone()
        weights[0] *= factor
        now = HuberFit(fit.predictors, weights, fit.targets, fit.slope)
        return -LightningFit().solve(now, plan, steps_of(Draws(factor=0.0)))

    moved = gradient(1e9) - gradient(0.0)
    assert moved.norm() <= fit.slope * (1 + 2**-15)
    assert moved.norm() == pytest.approx(fit.slope, rel=1e-4)
