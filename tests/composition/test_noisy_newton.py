"""Noisy Newton points against closed forms and dense fits."""

import math

import pytest
import torch

from tests.composition.test_summaries import noisy_steps
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LogisticFit, NewtonPoints, NoisyNewton, newton_points
from torchdpcate.composition.steps import NoisySteps, Shares
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

N, P = 3_000, 4


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(N, P, generator=generator, dtype=torch.float64)
    weight = 1 / psi.norm(dim=1)
    y = psi @ torch.tensor([0.5, -0.2, 0.0, 0.1]).double() + 0.3 * torch.randn(N, generator=generator).double()
    return psi, weight, y


def plan(scaling, ridge=0.0, steps=60):
    return FitPlan("fit", scaling, torch.full((P,), ridge, dtype=torch.float64), steps, steps // 5, 0.2, 0.25)


def without_noise():
    return NoisySteps(FitSession(NoiseSource.fixed(0)), Shares(math.inf, {"fit": 1.0}))


@pytest.mark.parametrize("kind", ["huber", "logistic"])
def test_gradients_are_those_of_the_loss_and_bounded(kind):
    psi, weight, y = problem()
    fit = HuberFit(psi, weight, y, 0.4) if kind == "huber" else LogisticFit(psi, weight, (y > 0).double(), 1.0)

    def value(theta):
        r = psi @ theta - fit.targets
        if kind == "huber":
            each = torch.where(r.abs() < 0.4, r.square() / 2, 0.4 * r.abs() - 0.08)
        else:
            each = torch.nn.functional.softplus(psi @ theta) - fit.targets * (psi @ theta)
        return (weight * each).sum()

    theta = torch.tensor([0.1, 0.2, -0.3, 0.4]).double()
    assert torch.allclose(fit.gradient(theta), torch.func.grad(value)(theta))
    if kind == "logistic":
        assert torch.allclose(fit.hessian(theta), torch.func.hessian(value)(theta))
    each = (weight * fit.pulls(psi @ theta)).abs() * psi.norm(dim=1)
    assert each.max() <= fit.slope * (1 + 1e-12)


def test_without_privacy_the_fit_is_the_dense_solution():
    psi, weight, y = problem()
    ridge = 5.0
    found = NoisyNewton().solve(HuberFit(psi, weight, y, 1e6), plan(torch.ones(P).double(), ridge), without_noise())
    dense = torch.linalg.solve(psi.T @ (weight[:, None] * psi) + ridge * torch.eye(P), psi.T @ (weight * y))
    assert torch.allclose(found, dense, atol=1e-6)


def _points(curvature, steps, noise=0.0):
    """The mean of Newton points of a sum whose curvatures are these, and planned to be one; and the last size."""
    one = torch.ones(len(curvature), dtype=torch.float64)
    points = NewtonPoints(FitPlan("fit", one, 0 * one, steps, steps // 2, 0.2, 0.7, most_size=1.4))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        drawn = noise * torch.randn(len(one), generator=generator, dtype=torch.float64)
        points.step(curvature * (points.theta - 1) + drawn)
    return points.mean, points.size.item()


@pytest.mark.parametrize(("curvature", "most"), [(0.2, 0.25), (0.5, 0.014), (2.0, 1e-3), (3.0, 0.05)])
def test_sizes_that_adapt_arrive_in_seven_steps_where_curvature_is_not_as_planned(curvature, most):
    """Sixty steps of size .27 leave .148, .014, and nothing, of a start at curvatures of .2, .5, and 2."""
    mean, _ = _points(torch.tensor([curvature], dtype=torch.float64), 7)
    assert abs(mean.item() - 1) < most
    mean, _ = _points(torch.linspace(curvature, 1.2, 5, dtype=torch.float64), 7)
    assert float((mean - 1).abs().max()) < 0.3


def test_sizes_that_adapt_stay_within_their_bounds_and_leave_a_start_that_grows():
    assert _points(torch.tensor([0.01], dtype=torch.float64), 8)[1] == pytest.approx(1.4)
    assert _points(torch.ones(400, dtype=torch.float64), 8, noise=1e3)[1] <= 0.4
    assert float((_points(torch.full((9,), 9.0, dtype=torch.float64), 20)[0] - 1).abs().max()) < 1


@pytest.mark.slow
def test_the_noise_is_that_of_one_newton_step():
    """With P = H, diagonal, the coefficients are the solution plus N(0, (2 slope / mu)^2 / (.8 H^2)): 100 runs."""
    psi = torch.eye(P, dtype=torch.float64).repeat(50, 1)
    fit = HuberFit(psi, torch.ones(200).double(), torch.zeros(200).double(), 1e3)
    mu, runs = 2.0, 100
    expected = 2e3 / mu / 50 / math.sqrt(0.8)
    found = []
    for seed in range(runs):
        steps = noisy_steps(mu, 200, "fit")
        object.__setattr__(steps.session, "noise", NoiseSource.fixed(seed))
        found.append(NoisyNewton().solve(fit, plan(torch.full((P,), 50.0).double(), steps=20), steps))
    values = torch.stack(found)
    assert values.mean().abs() < 6 * expected / math.sqrt(runs * P)
    # a chi-square of 400 numbers: its relative sd is .07, six of them
    assert abs(values.square().mean().item() / expected**2 - 1) < 6 * math.sqrt(2 / (runs * P))


class Given(NoisySteps):
    """Steps whose noise is given, one tensor a step."""

    def noisy_gradient(self, values, sensitivity, event):
        return values + next(self.session.noise)


def with_noise(given):
    return Given(FitSession(iter(given)), Shares(10.0, {"fit": 1.0}))


@pytest.mark.parametrize("kind", [HuberFit, LogisticFit])
def test_fits_side_by_side_are_those_one_by_one(kind):
    """Large noise, so that some runs cut their steps and others do not."""
    psi, weight, y = problem()
    fit = kind(psi, weight, y if kind is HuberFit else (y > 0).double(), 0.4)
    requested = plan(torch.full((P,), 500.0).double(), 5.0, 20)
    noise = 300 * torch.randn(20, 7, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    side = newton_points(torch.vmap(fit.gradient), psi.shape, fit.slope, requested, with_noise(noise), (7,))
    single = [newton_points(fit.gradient, psi.shape, fit.slope, requested, with_noise(noise[:, k])) for k in range(7)]
    for name in ("coefficients", "point", "gradient"):
        expected = torch.stack([getattr(one, name) for one in single])
        torch.testing.assert_close(getattr(side, name), expected, rtol=1e-9, atol=1e-9)
