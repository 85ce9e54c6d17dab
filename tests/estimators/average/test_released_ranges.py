"""Sensitivities of the balanced difference at released coefficients: suprema over the domain, and no larger."""

import itertools
from dataclasses import replace

import pytest
import torch

from torchdpcate.causal.estimand import ATE, ESTIMANDS, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.weighted import BalancedDifference, EffectFacts, released_ranges, size_ends
from torchdpcate.fit.feature_maps import Fourier, Identity, Legendre, Products, on_domain
from torchdpcate.privacy.exact_sums import sum_grid

DOMAIN = Domain([-1.0, 0.0], [2.0, 1.0], 0.0, 1.0)
MAPS = [Identity(), Identity(centred=False), Legendre(2), Products(squares=True), Fourier()]
N = 1000


def drawn(count: int, size: int, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    return spread * torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points() -> torch.Tensor:
    ends = torch.cartesian_prod(torch.linspace(-1, 2, 41), torch.linspace(0, 1, 41))
    return ends.double()


@pytest.mark.parametrize("features", MAPS, ids=lambda map_: str(map_.title) + str(map_.config()))
def test_no_point_of_the_domain_is_beyond_the_reach(features):
    psi = on_domain(features, DOMAIN)
    theta = drawn(200, psi.dimension)
    low, high = psi.predictor_bounds(theta)
    g = theta @ psi(points()).T
    assert bool((g >= low[:, None] - 1e-12).all() and (g <= high[:, None] + 1e-12).all())


def test_the_reach_of_lines_is_attained():
    psi = on_domain(None, DOMAIN)
    theta = drawn(50, 3)
    corners = psi(torch.tensor([[-1.0, 0.0], [-1.0, 1.0], [2.0, 0.0], [2.0, 1.0]], dtype=torch.float64))
    low, high = psi.predictor_bounds(theta)
    g = theta @ corners.T
    assert torch.allclose(g.amin(1), low)
    assert torch.allclose(g.amax(1), high)


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_no_pair_of_records_moves_a_sum_by_more_and_one_moves_the_difference_by_as_much(estimand):
    of, psi = make_estimand(estimand, 0.1), on_domain(None, DOMAIN)
    facts = EffectFacts(N, of, 0.3, 0.7)
    theta, model = drawn(30, 3, 1, 2.0), drawn(30, 3, 2)
    ranges = released_ranges(facts, psi, theta, model)
    facts = replace(facts, ranges=ranges)
    moved, everywhere = BalancedDifference.moved(facts), BalancedDifference.sensitivities(facts)
    # the supremum over x of weight and of outcome model, each by itself: a dense search of all corners
    ends = torch.stack(psi.predictor_bounds(theta))
    terms = {"difference": [], "size": [], "spread": []}
    for g, z, y, m in itertools.product(ends, (0.0, 1.0), (0.0, 1.0), ranges.model):
        arm = torch.full_like(g, z)
        w = of.weights(g, arm)
        terms["difference"].append((2 * arm - 1) * w * (y - m))
        terms["size"].append(of.size(w, arm))
        terms["spread"].append((w * (y - m)).square())
    for part, each in terms.items():
        stacked = torch.stack(each)
        width = stacked.amax(0) - stacked.amin(0)
        assert bool((width <= moved[part] * (1 + 1e-12)).all())
        assert bool((moved[part] <= everywhere[part]).all())
        if part == "difference":
            assert torch.allclose(width, moved[part], rtol=1e-6)
    least, most = size_ends(facts)
    assert bool((least <= torch.stack(terms["size"]).amin(0) + 1e-12).all())
    assert bool((most >= torch.stack(terms["size"]).amax(0) - 1e-12).all())


def test_coefficients_of_nothing_leave_weights_of_two_and_a_difference_of_two():
    facts = EffectFacts(N, ATE(0.05), 0.3, 0.7)
    none = torch.zeros(1, 3, dtype=torch.float64)
    facts = replace(facts, ranges=released_ranges(facts, on_domain(None, DOMAIN), none, none))
    moved = BalancedDifference.moved(facts)  # e = 1/2 and m = 1/2: a term is 1 or -1, and a square 1
    assert moved["difference"].item() == pytest.approx(2.0, abs=1e-9)
    assert moved["spread"].item() == pytest.approx(1.0, abs=1e-9)
    assert 0 < moved["size"].item() <= sum_grid(N, 10.0)
    assert BalancedDifference.sensitivities(facts)["difference"] == pytest.approx(28.0)


def test_records_within_the_domain_keep_the_ranges_whatever_their_features_are():
    facts = EffectFacts(N, ATE(0.1), 0.3, 0.7)
    ranges = released_ranges(facts, on_domain(None, DOMAIN), drawn(4, 3), drawn(4, 3, 1))
    z = torch.tensor([[0.0, 1.0]] * 4, dtype=torch.float64)
    w, m = ranges.clamp(torch.full_like(z, 99.0), z, torch.full_like(z, -1.0))
    assert torch.equal(w, torch.stack([ranges.control[1], ranges.treated[1]], 1))
    assert torch.equal(m, ranges.model[0][:, None].expand(-1, 2))
