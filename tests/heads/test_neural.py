import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchdpcate.causal.score import RScore
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads import neural
from torchdpcate.heads.neural import NeuralHead, fit_neural_head
from torchdpcate.heads.recipes import NeuralSecondStage
from torchdpcate.privacy.budget import PrivacyBudget


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def head_of(q=2, width=5, seed=0, **options):
    return NeuralHead(Domain([-1.0] * q, [3.0] * q, 0, 1), width, generator=generator(seed), **options)


def records(n=80, q=2, seed=1):
    g = generator(seed)
    x = 4 * torch.rand(n, q, dtype=torch.float64, generator=g) - 1
    w = torch.rand(n, dtype=torch.float64, generator=g) - 0.5
    return x, w * torch.sin(x[:, 0]) + 0.1 * torch.randn(n, dtype=torch.float64, generator=g), w


def gradient_norm(head, x, s, w):
    theta = head.theta.detach().clone()
    return float(torch.func.grad(lambda theta: head.objective(theta, x, s, w))(theta).norm())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_it_is_the_network_of_torch_nn(depth):
    low, high = [0.0, -2.0, 5.0], [10.0, 2.0, 9.0]
    head = NeuralHead(Domain(low, high, 0, 1), width=4, depth=depth, generator=generator())
    theta = torch.randn(head.theta.numel(), dtype=torch.float64, generator=generator(2))
    sizes = [3, *[4] * depth]
    layers = [m for i, o in pairwise(sizes) for m in (nn.Linear(i, o), nn.Tanh())]
    network = nn.Sequential(*layers, nn.Linear(4, 1)).double()
    nn.utils.vector_to_parameters(theta, network.parameters())
    x = torch.rand(6, 3, dtype=torch.float64, generator=generator(3))
    x = torch.tensor(low) + x * (torch.tensor(high) - torch.tensor(low))
    scaled = torch.stack([x[:, 0] / 5 - 1, x[:, 1] / 2, (x[:, 2] - 7) / 2], 1)
    expected = network(scaled).squeeze(1)
    torch.testing.assert_close(head.functional(theta, x), expected)
    with torch.no_grad():
        head.theta.copy_(theta)
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head.functional(theta, x[0]), expected[0])


def test_the_ridge_is_in_the_objective_and_nowhere_else():
    x, s, w = records()
    free, ridged = head_of(ridge=0.0), head_of(ridge=0.3)
    theta = free.theta.detach()
    difference = ridged.objective(theta, x, s, w) - free.objective(theta, x, s, w)
    assert abs(float(difference) - 0.3 * float(theta @ theta)) < 1e-14
    residual = s - w * free(x)
    assert abs(float(free.objective(theta, x, s, w)) - float((residual**2).mean().detach())) < 1e-14
    (group,) = ridged.configure_optimizers().param_groups
    assert group["weight_decay"] == 0


@pytest.mark.first(1)
@pytest.mark.parametrize("epochs", [0, 3])
@pytest.mark.parametrize("ridge", [1e-3, 1e-2])
def test_the_fit_is_a_stationary_minimum(epochs, ridge):
    x, s, w = records()
    head = head_of(ridge=ridge)
    before = float(head.objective(head.theta.detach(), x, s, w))
    fit = fit_neural_head(head, x, s, w, default_trainer, epochs=epochs, generator=generator())
    assert fit.gradient_norm <= 1e-8
    assert abs(gradient_norm(head, x, s, w) - fit.gradient_norm) < 1e-12
    assert torch.equal(head.theta.detach(), fit.theta)
    assert fit.theta.dtype == torch.float64
    assert fit.objective < before
    assert abs(float(head.objective(fit.theta, x, s, w)) - fit.objective) < 1e-14
    H = torch.func.hessian(lambda theta: head.objective(theta, x, s, w))(fit.theta)
    assert float(torch.linalg.eigvalsh(H)[0]) > 0


@pytest.mark.parametrize(
    ("factor", "settings", "said"),
    [
        (1.0, {"polish_iterations": 2, "newton_steps": 0}, r"gradient norm .*ridge.*polish_iterations"),
        (math.nan, {}, "gradient norm is nan"),
    ],
)
def test_a_fit_that_does_not_end_is_refused(factor, settings, said):
    x, s, w = records()
    with pytest.raises(NumericalError, match=said):
        fit_neural_head(head_of(), x, factor * s, w, default_trainer, epochs=0, **settings)


def test_a_device_without_float64_is_refused():
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("mps")))
    with pytest.raises(InputError, match="float64"):
        fit_neural_head(head_of(), *records(), lambda **_: trainer)


def test_newton_leaves_a_saddle_and_descends():
    def saddle(t):
        return t[0] ** 4 - t[0] ** 2 + t[1] ** 2

    start = torch.tensor([1e-3, 0.5], dtype=torch.float64)
    theta, steps = neural._trust_region(saddle, start, 1e-10, 50)
    assert steps < 20
    assert abs(abs(float(theta[0])) - math.sqrt(0.5)) < 1e-10
    assert abs(float(theta[1])) < 1e-10


def test_the_ridge_falls_with_records_and_budget_and_the_noise_with_the_ridge():
    domain, head = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0), NeuralSecondStage()
    bounds = RScore().bounds(domain)

    def ridge(n, epsilon):
        return head.ridge_for(n, PrivacyBudget(epsilon, 1e-5), domain, bounds)

    assert head.ridge_for(1_000, None, domain, bounds) == 1e-4
    assert ridge(10**3, 1.0) == 1e3 > ridge(10**5, 1.0) > ridge(10**5, 8.0) > ridge(10**7, 8.0) > 1e-4
    assert ridge(10**9, 100.0) == 1e-4
    assert NeuralSecondStage(ridge=0.3).ridge_for(1_000, PrivacyBudget(1.0, 1e-5), domain, bounds) == 0.3
    planned = [head.planned_noise(1_000, PrivacyBudget(1.0, 1e-5), bounds, ridge) for ridge in (1e-4, 1e-2, 1.0, 1e3)]
    assert planned == sorted(planned, reverse=True)
    assert planned[0] > 4 * planned[1]
