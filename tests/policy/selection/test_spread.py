"""The spread of one record's scores: closed forms, random nuisances, and intervals of released ones."""

import pytest
import torch

from torchdpcate.data import Domain
from torchdpcate.errors import NumericalError
from torchdpcate.nuisance import AveragedNuisances, ConvexNuisances, Nuisances
from torchdpcate.policy.selection.scores import dr_scores
from torchdpcate.policy.selection.spread import nuisance_range, score_spread

DOMAIN = Domain([0.0, -2.0], [1.0, 3.0], outcome_low=-1.0, outcome_high=3.0, overlap=0.1)


def points(n: int) -> torch.Tensor:
    corners = torch.cartesian_prod(*torch.stack([DOMAIN.covariate_low, DOMAIN.covariate_high], 1)).double()
    return torch.cat([corners, DOMAIN.grid(n)])


def ends(values: torch.Tensor) -> list[float]:
    return [values.min().item(), values.max().item()]


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_what_floor_and_domain_allow_is_range_over_floor(arms):
    e = torch.tensor([[0.1, 1 - 0.1 * (arms - 1)]]).expand(arms, 2).double()
    assert score_spread(DOMAIN, e, torch.tensor([[-1.0, 3.0]]).expand(arms, 2)) == pytest.approx(40)


def test_constants():
    half, middle = torch.full((2, 2), 0.5), torch.ones(2, 2)
    assert score_spread(DOMAIN, half, middle) == 4.0
    # the middle one of three arms apart: an untreated record's scores differ by 3 - (-1)
    apart = torch.tensor([[-1.0, -1.0], [3.0, 3.0], [3.0, 3.0]])
    assert score_spread(DOMAIN, torch.ones(3, 2), apart) == 4.0


def test_intervals_that_are_not_finite_are_no_spread():
    with pytest.raises(NumericalError, match="not finite"):
        score_spread(DOMAIN, torch.tensor([[0.5, float("nan")], [0.5, 0.5]]), torch.zeros(2, 2))


@pytest.mark.parametrize("arms", [2, 3])
def test_random_records_stay_within_and_come_near(arms):
    generator = torch.Generator().manual_seed(0)
    mu = (4 * torch.rand(arms, 2, generator=generator, dtype=torch.float64) - 1).sort().values
    e = (0.1 + 0.2 * torch.rand(arms, 2, generator=generator, dtype=torch.float64)).sort().values
    n = 200_000
    sides = [torch.randint(2, (n, arms), generator=generator) for _ in range(2)]
    values = [part.gather(1, which.T).T for part, which in zip((mu, e), sides, strict=True)]
    y = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 3.0).double()
    phi = dr_scores(torch.randint(arms, (n,), generator=generator), y, values[1], values[0])
    assert (phi.amax(1) - phi.amin(1)).max().item() == pytest.approx(score_spread(DOMAIN, e, mu))


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
