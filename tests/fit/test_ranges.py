"""Intervals of nuisances over the domain: exact where they can be, and never too narrow."""

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.fit.networks import Nuisances
from torchdpcate.fit.nuisance_kinds import AveragedNuisances, ConvexNuisances, nuisance_range

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


@pytest.mark.parametrize("size", [1e-9, 1.0, 30.0])
def test_no_order_of_summation_leaves_the_range(size):
    """Each coordinate at an end of its interval, the terms added in many orders, by two kinds of product."""
    generator, width = torch.Generator().manual_seed(2), 12
    domain = Domain([0.0] * width, [1.0] * width, outcome_low=-1e3, outcome_high=1e3, overlap=1e-6)
    for _ in range(20):
        model = ConvexNuisances(domain, degree=1, propensity_degree=1)
        model.outcomes.copy_(size * torch.randn(model.outcomes.shape, generator=generator, dtype=torch.float64))
        mu = nuisance_range(model, domain)[1]
        theta = model.outcomes[0]
        for sign, end in ((-1.0, mu[0, 0]), (1.0, mu[0, 1])):
            x = ((1 + sign * theta[1:].sign()) / 2)[None]
            terms = model.features(x)[1][0] * theta
            orders = [torch.randperm(len(terms), generator=generator) for _ in range(50)]
            sums = [model.median[0] + sum(terms[order].tolist()) for order in orders]
            sums += [sum([model.median[0].item(), *terms[order].tolist()]) for order in orders]
            sums += [model.predict(x.expand(rows, -1)).mu0[-1] for rows in (1, 2, 3, 7, 64)]
            assert all(sign * found <= sign * end for found in sums)
            assert abs(end - sums[0]) <= 1e-11 * max(size, 1.0)


@pytest.mark.parametrize("width", [0, 8])
def test_ranges_of_networks_contain_them(width):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Nuisances(DOMAIN, width=width).double().eval().requires_grad_(False)
    pi, mu = nuisance_range(model, DOMAIN)
    values = model.predict(points(4000))
    assert pi[0] <= values.pi.min()
    assert values.pi.max() <= pi[1]
    for arm, found in enumerate((values.mu0, values.mu1)):
        assert mu[arm, 0] <= found.min()
        assert found.max() <= mu[arm, 1]
    if width == 0:  # exact: the corners are among the points
        assert pi.tolist() == pytest.approx(ends(values.pi))


def test_unknown_models_have_the_clips_alone():
    pi, mu = nuisance_range(AveragedNuisances([ConvexNuisances(DOMAIN)] * 2), DOMAIN)
    assert pi.tolist() == pytest.approx([0.1, 0.9])
    assert mu.tolist() == [[-1.0, 3.0]] * 2
