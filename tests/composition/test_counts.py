"""Counts: Huberised Poisson losses, the limit without noise, bounds of gradients, releases."""

import math
import re
from dataclasses import replace

import pytest
import torch

from torchdpcate import Domain, PrivacyBudget, RLearner, load_release
from torchdpcate.composition.linear_fit import CountFit, solved
from torchdpcate.errors import NumericalError
from torchdpcate.fit.weighted_basis import WeightedBasis, all_features
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([-1.0, -1.0], [1.0, 1.0], 0.0, 40.0, overlap=0.1, outcome_kind="count")
BUDGET = PrivacyBudget(4.0, 1e-5)


def study(n=6_000, level=6.0):
    generator = torch.Generator().manual_seed(4)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < torch.sigmoid(x[:, 0])).double()
    control, treated = ((math.log(level) + 0.8 * x[:, 0] + d).exp() for d in (0.0, 0.3 + 0.3 * x[:, 1]))
    y = torch.poisson(torch.where(a > 0.5, treated, control), generator=generator).clamp(0, 40)
    return x, a, y, treated - control


def problem(n=500, slope=math.inf, level=3.0, centre=2.0):
    generator = torch.Generator().manual_seed(0)
    g = torch.cat([torch.ones(n, 1), torch.randn(n, 2, generator=generator)], 1).double() / 2
    y = torch.poisson((1 + g @ torch.tensor([1.0, 0.8, -0.5]).double()).exp(), generator=generator)
    return CountFit(g, 1 / g.norm(dim=1), y - centre, slope, centre, level), g, y


def test_without_a_clip_it_is_poisson_regression():
    """Against Newton steps on the weighted Poisson likelihood itself."""
    fit, g, y = problem(slope=1e6)
    found = solved(fit, torch.zeros(3).double())
    theta, offset = torch.zeros(3).double(), math.log(3.0)
    for _ in range(30):
        mean = (offset + g @ theta).exp()
        gradient, hessian = g.T @ (fit.weights * (mean - y)), (g * (fit.weights * mean)[:, None]).T @ g
        theta = theta - torch.linalg.solve(hessian, gradient)
    assert (found - theta).abs().max() < 1e-7


def test_with_a_clip_the_minimum_is_stationary_and_least():
    fit, _, _ = problem(slope=2.0)
    found = solved(fit, torch.zeros(3).double())
    assert fit.gradient(found).norm() < 1e-6
    for seed in range(20):
        step = torch.randn(3, generator=torch.Generator().manual_seed(seed)).double()
        assert fit.total(found) <= fit.total(found + 0.1 * step) + 1e-9


def test_a_minimum_that_is_not_found_is_said_without_a_number_of_the_records():
    fit, _, _ = problem(slope=2.0)
    broken = replace(fit, targets=fit.targets * math.nan)
    with pytest.raises(NumericalError, match="give a larger ridge") as raised:
        solved(broken, torch.zeros(3).double())
    assert not re.search(r"\d", str(raised.value))


def test_pulls_are_the_losses_derivatives_and_grow():
    fit, _, _ = problem(slope=2.0)
    for shift in (-6.0, -1.0, 0.0, 0.7, 3.0, 60.0):
        scores = (shift + 0.1 * torch.arange(500.0).double() / 500).requires_grad_()
        (found,) = torch.autograd.grad(fit.losses(scores).sum(), scores)
        torch.testing.assert_close(found, fit.pulls(scores.detach()), rtol=1e-9, atol=1e-9)
    grid = torch.linspace(-9, 9, 400).double()
    pulls = torch.stack([fit.pulls(torch.full((500,), s).double()) for s in grid.tolist()])
    assert (pulls.diff(dim=0) >= 0).all()


@pytest.mark.parametrize("seed", range(2))
def test_no_gradient_of_a_record_is_longer_than_its_clip(seed):
    generator = torch.Generator().manual_seed(seed)
    features = all_features([False, True, False], "12xsc")
    feature_weights = torch.rand(1 + len(features), generator=generator, dtype=torch.float64) + 0.01
    z = 3 * (2 * torch.rand(300, 3, generator=generator, dtype=torch.float64) - 1)
    psi = WeightedBasis(features, feature_weights / feature_weights.sum())(z)
    y = torch.randint(0, 1000, (300,), generator=generator).double()
    fit = CountFit(psi, 1 / psi.norm(dim=1), y - 7.0, 1.5, 7.0, 7.0)
    for size in (0.0, 1.0, 1e3, 1e6):
        theta = size * torch.randn(psi.shape[1], generator=generator, dtype=torch.float64)
        lengths = (psi * (fit.weights * fit.pulls(psi @ theta))[:, None]).norm(dim=1)
        assert 1.5 * (1 - 1e-12) < lengths.max() <= 1.5 * (1 + 1e-12)


def test_one_record_moves_the_released_sum_by_two_clips():
    """Two values of a record that pull the same way as far as they can, against each other."""
    one = torch.ones(1, dtype=torch.float64)
    up, down = (CountFit(one[:, None], one, y * one, 1.5, 0.0, 5.0).gradient(0 * one) for y in (0.0, 100.0))
    assert (up - down).abs().item() == pytest.approx(3.0)


def test_a_release_is_read_verified_and_near_the_truth(tmp_path):
    x, a, y, effect = study()
    learner = RLearner(DOMAIN, BUDGET, noise=NoiseSource.fixed(3)).fit(x, a, y)
    release = learner.release_function()
    path = release.save(tmp_path / "r.safetensors")
    verify_release(path)
    assert (load_release(path).effect(x) == release.effect(x)).all()
    assert (learner.composed_.outcome >= 0).all()
    error = (torch.from_numpy(release.effect(x)) - effect).square().mean().sqrt()
    assert error < 0.6 * effect.square().mean().sqrt()
