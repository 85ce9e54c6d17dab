"""The law of a composed effect's error: matrices against simulation and closed forms."""

import math

import pytest
import torch
from scipy.special import ndtri

from torchdpcate.composition.effect_law import (
    IntervalPlan,
    effect_clip,
    effect_law,
    estimates,
    expected_product,
    posterior_matrix,
    sandwich,
)
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import Feature, WeightedBasis

LINEAR = tuple(Feature("1", i, i) for i in range(2))


def basis(feature_weights: list[float], features: tuple[Feature, ...] = LINEAR) -> WeightedBasis:
    return WeightedBasis(features, torch.tensor(feature_weights, dtype=torch.float64))


def plan(of: WeightedBasis, **settings: float) -> IntervalPlan:
    noise = {f"{name}_noise": 0.0 for name in ("gradient", "matrix", "counts", "correction", "average")}
    facts = {"n": 1000, "weight": 0.5, "scale": 1.0, "spread": 4.0, "treatment": 0.5, "overlaps": (0.25, 0.25)}
    return IntervalPlan(**({**facts, **noise, **settings} | {"basis": of}))  # type: ignore[arg-type]


def symmetric(p: int, variance: torch.Tensor, runs: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(runs, p, p, generator=generator, dtype=torch.float64) * variance.sqrt()
    return noise.triu() + noise.triu(1).transpose(1, 2)


def test_a_matrix_without_noise_is_itself_and_with_much_noise_the_plan() -> None:
    m = torch.tensor([[1.0, 0.3], [0.3, 0.8]], dtype=torch.float64)
    planned = torch.tensor([1.0, 1.0], dtype=torch.float64)
    found = posterior_matrix(m, 0.0, planned)
    assert torch.allclose(found.mean, m)
    assert not found.variance.any()
    drowned = posterior_matrix(m, 100.0, planned)
    assert torch.allclose(drowned.mean, torch.eye(2, dtype=torch.float64), atol=1e-3)
    assert (drowned.variance > 0).all()


def test_a_posterior_matrix_has_no_small_eigenvalues() -> None:
    m = torch.ones(3, 3, dtype=torch.float64)
    values = torch.linalg.eigvalsh(posterior_matrix(m, 0.0, torch.ones(3, dtype=torch.float64)).mean)
    assert values.min() >= 0.02 - 1e-12


def test_expected_products_and_sandwiches_are_those_of_simulated_matrices() -> None:
    generator = torch.Generator().manual_seed(0)
    p, runs = 4, 100_000
    root = torch.randn(p, p, generator=generator, dtype=torch.float64)
    h = root @ root.T / p + 2 * torch.eye(p, dtype=torch.float64)
    a = root.T @ root + torch.eye(p, dtype=torch.float64)
    variance = 0.01 * (1 + torch.rand(p, p, generator=generator, dtype=torch.float64))
    variance = (variance + variance.T) / 2
    delta = symmetric(p, variance, runs, generator)
    products = (delta @ a @ delta).mean(0)
    assert torch.allclose(
        products, expected_product(variance, a), atol=6 * (delta @ a @ delta).std(0).max() / runs**0.5
    )
    inverses = torch.linalg.inv(h + delta)
    simulated = (inverses @ a @ inverses).mean(0)
    inverse = torch.linalg.inv(h)
    first, second = inverse @ a @ inverse, sandwich(torch.eye(p, dtype=torch.float64), h, a, variance)
    # third and higher orders are left
    assert (second - simulated).norm() < 0.15 * (first - simulated).norm()


def test_covariances_are_those_of_simulated_gradients() -> None:
    generator = torch.Generator().manual_seed(2)
    of = basis([0.5, 0.3, 0.2])
    facts = plan(of, gradient_noise=30.0)
    m, counts = facts.planned.diag(), torch.tensor([0.7, 0.4, 0.25], dtype=torch.float64)
    found = estimates(torch.zeros(3).double(), torch.zeros(3).double(), m, counts, facts)
    variances = 1000 * 0.4 * m.diagonal() / m.trace() + 900
    draws = torch.randn(20_000, 3, generator=generator, dtype=torch.float64) * variances.sqrt()
    t = torch.linalg.solve(1000 * 0.7 * m, -draws.T).T
    simulated = t.T @ t / len(t)
    assert torch.allclose(simulated, found.covariance, atol=6 * (2 / len(t)) ** 0.5 * found.covariance.max())


def test_the_law_is_the_formulas_of_its_page() -> None:
    of = basis([0.64, 0.36], (Feature("1", 0, 0),))
    facts = plan(of, correction_noise=20.0, average_noise=5.0, spread=2.0)
    m = facts.planned.diag()
    found = estimates(
        torch.tensor([2.0, 1.0]).double(), torch.zeros(2).double(), m, torch.tensor([1, 0.5, 0.25]), facts
    )
    bound = effect_clip(found.t, facts, 3.0, 10.0)
    assert bound == pytest.approx(3 * 0.6)
    law = effect_law(found, torch.tensor([50.0, 100.0]).double(), torch.tensor([25.0]).double(), bound, facts)
    assert law.correction == pytest.approx(50 / 250)
    assert law.correction_variance == pytest.approx((400 + 100) / 250**2)
    assert law.average == pytest.approx(2 * 0.8 + 25 / 250 + 0.2)
    assert law.average_variance == pytest.approx(500 / 250**2 + (5 * 1.8 / 250) ** 2 + 0.36 / 1000)
    assert torch.allclose(law.centre, torch.tensor([0.8, 0.0]).double())
    psi = torch.tensor([[0.8, 0.0], [0.8, 0.6]]).double()
    low, high = law.interval(psi, 0.95).unbind(1)
    assert torch.allclose((low + high) / 2, psi @ found.t + 0.2)
    variance = torch.stack([torch.zeros(()).double(), 0.36 * found.covariance[1, 1]]) + 500 / 250**2
    assert torch.allclose((high - low) / 2, 1.959963984540054 * variance.sqrt())
    low, high = law.contrast(psi[1:], psi[:1], 0.95).unbind(1)
    assert torch.allclose((high - low) / 2, 1.959963984540054 * 0.6 * found.covariance[1, 1].sqrt())
    with pytest.raises(InputError, match="level = 1"):
        law.interval(psi, 1)


GRID = torch.from_numpy(ndtri((torch.arange(801).double().numpy() + 0.5) / 801))  # a standard normal covariate
SCALE = 1.5


def covariance_and_truth(deviations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The law's covariance of (constant, slope) in a trial by a coin, and the exact one of residuals N(0, d(x)^2)."""
    of = basis([1.0, 1.0], LINEAR[:1])
    psi = torch.stack([torch.ones_like(GRID), GRID], 1)
    length = psi.norm(dim=1)
    weight = 2 / length  # 1 / (|psi| max(pi, 1 - pi))
    residual = deviations[:, None] * GRID  # over a grid of its law
    inside, square = (residual.abs() < SCALE).double().mean(1), residual.clamp(-SCALE, SCALE).square().mean(1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return torch.einsum("i,ij,ik->jk", values, psi, psi) / len(psi)

    n, matrix = 1000, mean(weight / 4)
    counts = torch.stack([inside.mean(), square.mean() / SCALE**2, torch.tensor(0.25).double()])
    zero = torch.zeros(2, dtype=torch.float64)
    found = estimates(zero, zero, matrix, counts, plan(of, n=n, scale=SCALE)).covariance
    bread = torch.linalg.inv(n * mean(weight / 4 * inside))
    return found, bread @ (n * mean(weight**2 / 4 * square)) @ bread


def test_widths_are_right_where_residuals_have_one_law_and_too_narrow_where_their_size_follows_a_covariate() -> None:
    """What ``assumptions`` says of residuals: shares of the exact standard error of the slope."""
    found, truth = covariance_and_truth(torch.ones_like(GRID))
    assert math.sqrt(found[1, 1] / truth[1, 1]) == pytest.approx(1.0, abs=0.2)
    found, truth = covariance_and_truth(GRID.abs())
    assert math.sqrt(found[1, 1] / truth[1, 1]) < 0.8
