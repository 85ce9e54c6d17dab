"""Noisy Newton points against closed forms and dense fits."""

import math

import pytest
import torch

from tests.composition.test_summaries import noisy_steps
from torchdpcate.composition.constants import of_kind
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


LARGE = {row["steps"]: row for row in of_kind("effect")["large"]}


def _points(curvature, row):
    """The mean of Newton points of a sum whose curvatures are these, and planned to be one; and the last size."""
    one, burn_in = torch.ones(len(curvature), dtype=torch.float64), round(row["burn_in"] * row["steps"])
    set_up = row["steps"], burn_in, 0.2, row["size"]
    points = NewtonPoints(FitPlan("fit", one, 0 * one, *set_up, momentum=row["momentum"]))
    for _ in range(row["steps"]):
        points.step(curvature * (points.theta - 1))
    return points.mean, points.size.item()


@pytest.mark.parametrize(
    ("steps", "left"), [(60, (0.11, 0.02, 0.003)), (30, (0.11, 0.005, 0.002)), (16, (0.28, 0.05, 0.02))]
)
def test_steps_of_large_n_mu_arrive_where_curvature_is_not_as_planned(steps, left):
    """Sixty steps without momentum leave .37, .15 and .06 of a start at curvatures of .1, .2 and .3."""
    curvature = torch.tensor([0.1, 0.2, 0.3, 1.0, 2.0, 3.0], dtype=torch.float64)
    mean, size = _points(curvature, LARGE[steps])
    assert ((mean - 1).abs() < torch.tensor([*left, 0.005, 0.006, 0.01], dtype=torch.float64)).all()
    assert size == LARGE[steps]["size"]


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
