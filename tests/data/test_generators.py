import math

import pytest
import torch

from tests.papers.moments import near
from torchdpcate.papers.oprescu import Dataset1, Dataset2

N = 200_000
E2 = math.exp(2.0)
MEAN_EXP, VAR_EXP = (E2 - 1) / 2, (math.exp(4.0) - 1) / 4 - ((E2 - 1) / 2) ** 2
MEAN_SIN, SQUARE_SIN = (1 - math.cos(4.0)) / 4, 0.5 - math.sin(8.0) / 16
MEAN = MEAN_EXP + 3 * MEAN_SIN
EXP_SIN = (E2 * (2 * math.sin(4.0) - 4 * math.cos(4.0)) + 4) / 20
VAR2 = VAR_EXP + 9 * (SQUARE_SIN - MEAN_SIN**2)
VAR1 = VAR2 + 6 * (EXP_SIN - MEAN_EXP * MEAN_SIN)
X_EXP, X_SIN = (E2 + 1) / 4, math.sin(4.0) / 16 - math.cos(4.0) / 4


def test_the_paper_s_sd_of_the_second_effect() -> None:
    assert math.sqrt(VAR2) == pytest.approx(2.37, abs=0.005)


@pytest.mark.parametrize(("source", "variance"), [(Dataset1, VAR1), (Dataset2, VAR2)])
def test_moments_against_closed_forms(source, variance: float) -> None:
    data = source(n=N, train_fraction=0.99, seed=1)
    records = data.load().records
    draw, theta = data.coefficients(), data.effect(records.x)
    assert float(draw.beta.sum()) < 1.0  # so that x'beta is never cut at 1, and the forms below hold
    assert near(theta, MEAN)
    assert near((theta - MEAN) ** 2, variance)
    assert near(records.a, (1 + float(draw.beta.sum()) / 2) / 2)
    assert near(records.a - data.propensity(records.x), 0.0)
    x_theta = torch.full_like(draw.beta, MEAN / 2)
    if source is Dataset1:
        x_theta[0] = X_EXP + 3 * X_SIN
    else:
        x_theta[0], x_theta[1] = X_EXP + 3 * MEAN_SIN / 2, MEAN_EXP / 2 + 3 * X_SIN
    mean_y = MEAN / 2 + float(draw.beta @ x_theta) / 2 + float(draw.gamma.sum()) / 2
    assert near(records.y, mean_y)
    noise = records.y - theta * records.a - records.x @ draw.gamma
    assert noise.abs().max() <= 1 + 1e-12
    assert near(noise**2, 1 / 3)


@pytest.mark.parametrize("source", [Dataset1, Dataset2])
def test_coefficients_are_drawn_on_a_shared_random_support(source) -> None:
    draws = [source(seed=seed).coefficients() for seed in range(400)]
    beta, gamma = torch.stack([d.beta for d in draws]), torch.stack([d.gamma for d in draws])
    size = min(source.dimension, 5)
    assert torch.equal(beta > 0, gamma > 0)
    assert ((beta > 0).sum(1) == size).all()
    assert beta.max() < 0.3
    assert gamma.max() < 1.0
    assert near(beta[beta > 0], 0.15)
    assert near(gamma[gamma > 0], 0.5)
    # each coordinate enters binomial(400, size / p) supports; 6 sd over 30 coordinates: below 1e-7
    share = size / source.dimension
    slack = 6 * math.sqrt(400 * share * (1 - share)) + 1e-9
    assert ((beta > 0).sum(0) - 400 * share).abs().max() <= slack


@pytest.mark.parametrize("of", [Dataset1, Dataset2])
def test_the_deviation_is_that_over_all_draws(of) -> None:
    y = torch.cat([of(seed=seed).draw(500, torch.Generator().manual_seed(seed)).y for seed in range(200)])
    assert y.std().item() == pytest.approx(of().domain().outcome_sd, rel=0.02)


def test_outcome_bounds_are_the_tightest() -> None:
    t = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    grow, wave = torch.exp(2 * t), 3 * torch.sin(4 * t)
    low, high = Dataset1().outcome_bounds()
    assert low == min(0.0, float((grow + wave).min())) - 1
    assert high == pytest.approx(float((grow + wave + t).max()) + 1 + 1, abs=1e-9)
    low, high = Dataset2().outcome_bounds()
    assert low == pytest.approx(float(grow.min() + wave.min()) - 1, abs=1e-9)
    assert high == pytest.approx(float((grow + t).max() + (wave + t).max()) + 3 + 1, abs=1e-9)
    assert high >= float((grow + t).max() + (wave + t).max()) + 3 + 1
