"""Intervals of nuisances over the domain: exact where they can be, and never too narrow."""

import pytest
import torch

from torchdpcate.data import Domain
from torchdpcate.nuisance import AveragedNuisances, ConvexNuisances, Nuisances, nuisance_range

DOMAIN = Domain([0.0, -2.0], [1.0, 3.0], outcome_low=-1.0, outcome_high=3.0, overlap=0.1)


def points(n: int) -> torch.Tensor:
    corners = torch.cartesian_prod(*torch.stack([DOMAIN.covariate_low, DOMAIN.covariate_high], 1)).double()
    return torch.cat([corners, DOMAIN.grid(n)])


def ends(values: torch.Tensor) -> list[float]:
    return [values.min().item(), values.max().item()]


@pytest.mark.parametrize("degrees", [(1, 0), (2, 1), (4, 3)])
def test_ranges_of_convex_nuisances_are_exact(degrees):
    generator = torch.Generator().manual_seed(1)
    model = ConvexNuisances(DOMAIN, *degrees)
    model.propensity.copy_(torch.randn(model.propensity.shape, generator=generator))
    model.outcomes.copy_(torch.randn(model.outcomes.shape, generator=generator) / 2)
    pi, mu = nuisance_range(model, DOMAIN)
    values = model.predict(points(40_000))
    assert pi.tolist() == pytest.approx(ends(values.pi), abs=1e-3)
    for arm, found in enumerate((values.mu0, values.mu1)):
        assert mu[arm].tolist() == pytest.approx(ends(found), abs=1e-2)
        assert mu[arm, 0] <= found.min()
        assert mu[arm, 1] >= found.max()


@pytest.mark.parametrize("width", [0, 8])
def test_ranges_of_networks_contain_them(width):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Nuisances(DOMAIN, width=width).double().eval().requires_grad_(False)
    pi, mu = nuisance_range(model, DOMAIN)
    values = model.predict(points(4000))
    slack = 1e-12
    assert pi[0] - slack <= values.pi.min()
    assert values.pi.max() <= pi[1] + slack
    for arm, found in enumerate((values.mu0, values.mu1)):
        assert mu[arm, 0] - slack <= found.min()
        assert found.max() <= mu[arm, 1] + slack
    if width == 0:  # exact: the corners are among the points
        assert pi.tolist() == pytest.approx(ends(values.pi))


def test_unknown_models_have_the_clips_alone():
    pi, mu = nuisance_range(AveragedNuisances([ConvexNuisances(DOMAIN)] * 2), DOMAIN)
    assert pi.tolist() == pytest.approx([0.1, 0.9])
    assert mu.tolist() == [[-1.0, 3.0]] * 2
