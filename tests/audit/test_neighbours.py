"""Worst neighbours against brute force, closed forms, random neighbours and finite differences."""

import math

import pytest
import torch

from experiments.audit import neighbours
from experiments.audit.neighbours import worst_neighbour
from experiments.audit.refit import refit
from tests.release.helpers import DOMAIN, QUERIES, block
from torchdpcate.causal.score import ScoreBounds
from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import Identity, Legendre
from torchdpcate.heads.stage import LinearStage, SecondStageBlock


def linear(threshold: float = math.inf, n: int = 120, degree: int = 3) -> LinearStage:
    return LinearStage(block(n), Legendre(degree).setup(DOMAIN), 0.01, threshold)


def one_covariate(regression, n: int = 25) -> SecondStageBlock:
    """Records on a line, without any signal."""
    domain = Domain([0.0], [1.0], -1.0, 3.0, better="higher")
    x = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    s, w = regression(x, torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))
    return SecondStageBlock(x, s, w, regression, domain, ScoreBounds(0.9, 3.0, 0.81, 2.7))


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [math.inf, 0.3])
def test_it_is_the_worst_of_every_replacement_on_a_grid(threshold):
    """Brute force: each of 121 newcomers with each treatment, each outcome of five, in the place of every record."""
    own = linear(threshold, n=40)
    x, a, y = DOMAIN.grid(11), torch.tensor([0.0, 1.0]), torch.linspace(-2, 2, 5).double()
    i, j, k = (t.flatten() for t in torch.meshgrid(*(torch.arange(m) for m in (len(x), 2, 5)), indexing="ij"))
    s, w = own.block.regression(x[i], a[j].double(), y[k])
    psi, n = own.features(x[i]), own.problem.n
    index = torch.arange(n).repeat_interleave(len(i))
    theta = refit(own.problem, index, psi.repeat(n, 1), s.repeat(n), w.repeat(n))
    brute = float(((theta - own.theta) @ own.features(QUERIES).T).norm(dim=1).max())
    assert worst_neighbour(own, QUERIES).change >= brute * (1 - 1e-9)


def test_a_known_worst_neighbour_is_found():
    """All records at s = 0, w = B: the best newcomer sits at the end where ||psi|| is one, at the larger |y|."""
    own = one_covariate(lambda x, a, y: (y, 0.9 * torch.ones_like(y)))
    fit = LinearStage(own, Identity().setup(own.domain), ridge=100.0)
    found = worst_neighbour(fit)
    # the ridge dominates the curvature (0.81 / 100): the change is B S / (ridge n), half of what two records can do
    assert found.change == pytest.approx(0.9 * 3.0 / (100.0 * 25), rel=0.01)
    assert found.y == 3.0
    assert float(found.x) in (0.0, 1.0)


@pytest.mark.parametrize("threshold", [math.inf, 0.1])
@pytest.mark.parametrize("queries", [None, QUERIES])
def test_the_climb_follows_the_gradient_of_exact_refits(threshold, queries):
    """Implicit differentiation against central differences, at points where the removed record stays the same."""
    search = neighbours._LinearSearch(linear(threshold), queries)
    x = torch.tensor([[0.21, 0.3], [0.8, -0.7], [0.55, 0.9]], dtype=torch.float64, requires_grad=True)
    a, y = torch.tensor([0.0, 1.0, 1.0]).double(), torch.tensor([2.0, -2.0, 2.0]).double()

    def climbed(x):
        return search.climbed(x, *search.block.regression(x, a, y))

    (gradient,) = torch.autograd.grad(climbed(x).sum(), x)
    step = 1e-6
    for j in range(2):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[j] = step
        with torch.no_grad():
            slope = (climbed(x + shift) - climbed(x - shift)) / (2 * step)
        torch.testing.assert_close(gradient[:, j], slope, rtol=1e-5, atol=1e-9)
