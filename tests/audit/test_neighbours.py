"""Worst neighbours against brute force, closed forms, random neighbours and finite differences."""

import dataclasses
import math
from functools import partial

import pytest
import torch

from experiments.audit import neighbours
from experiments.audit.neighbours import refitted, replaced, worst_neighbour
from experiments.audit.refit import refit
from tests.release.helpers import DOMAIN, QUERIES, block, nuisances
from torchdpcate.causal.score import ScoreBounds
from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import Identity, Legendre
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.linear import sensitivity
from torchdpcate.heads.recipes import NeuralSecondStage
from torchdpcate.heads.stage import LinearStage, NeuralStage, SecondStageBlock

RECIPE = NeuralSecondStage(width=3, depth=1, ridge=1e-3, epochs=2)


def linear(threshold: float = math.inf, n: int = 120, degree: int = 3) -> LinearStage:
    return LinearStage(block(n), Legendre(degree).setup(DOMAIN), 0.01, threshold)


def neural(own: SecondStageBlock) -> NeuralStage:
    return RECIPE.fit(own, nuisances(), trainer=partial(default_trainer, accelerator="cpu"), seed=0)


@pytest.fixture(scope="module")
def fitted() -> NeuralStage:
    return neural(block(150))


def one_covariate(regression, n: int = 25) -> SecondStageBlock:
    """Records on a line, without any signal."""
    domain = Domain([0.0], [1.0], -1.0, 3.0, better="higher")
    x = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    s, w = regression(x, torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))
    return SecondStageBlock(x, s, w, regression, domain, ScoreBounds(0.9, 3.0, 0.81, 2.7))


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [math.inf, 0.3])
@pytest.mark.parametrize("queries", [None, QUERIES])
def test_the_change_is_that_of_a_fit_to_the_neighbour(threshold, queries):
    own = linear(threshold)
    found = worst_neighbour(own, queries, starts=64, climbs=8)
    moved = refitted(own, found.block(own.block)).theta - own.theta
    J = torch.eye(len(moved)).double() if queries is None else own.features(queries)
    assert found.change == pytest.approx(float((J @ moved).norm()), rel=1e-8)
    proved = float(torch.linalg.matrix_norm(J, 2)) * sensitivity(own.problem)
    assert found.ratio == pytest.approx(found.change / proved, rel=1e-12)
    assert found.ratio <= 1
    assert found.starts == 64


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


@pytest.mark.slow
def test_neural_neighbours_beat_random_ones_and_are_exact(fitted):
    found = worst_neighbour(fitted, QUERIES, starts=64, climbs=8)
    after = refitted(fitted, found.block(fitted.block))
    moved = (after.correction(QUERIES) - fitted.correction(QUERIES)).norm()
    assert after.gradient_norm <= 1e-8
    assert found.change == pytest.approx(float(moved), rel=1e-6)
    assert math.isnan(found.ratio)
    assert math.isnan(found.retrained)
    generator = torch.Generator().manual_seed(0)
    for k in range(5):
        x = DOMAIN.covariate_low + torch.rand(2, dtype=torch.float64, generator=generator) * (
            DOMAIN.covariate_high - DOMAIN.covariate_low
        )
        other = refitted(fitted, replaced(fitted.block, k, x, k % 2, 1.0))
        assert float((other.correction(QUERIES) - fitted.correction(QUERIES)).norm()) < found.change


@pytest.mark.slow
def test_a_head_fitted_again_shows_a_switch_of_minimum(fitted):
    """The planted switch: the neighbour's head is that of the mirrored targets."""

    def switched(own: SecondStageBlock) -> NeuralStage:
        return neural(dataclasses.replace(own, s=-own.s))

    honest = worst_neighbour(fitted, QUERIES, starts=32, climbs=4, retrain=neural)
    broken = worst_neighbour(fitted, QUERIES, starts=32, climbs=4, retrain=switched)
    assert honest.retrained == pytest.approx(honest.change, rel=0.5)
    assert broken.change == honest.change
    assert broken.retrained > 3 * honest.retrained
