"""Refits are exact: side by side as one by one; and their derivative is that of finite differences."""

import pytest
import torch

from experiments.spillover.refits import Refits
from experiments.spillover.replacements import Replacements, any_neighbours
from tests.experiments.spillover.datasets import dataset
from torchdpcate.fit.arms.stable import StableNuisances

pytestmark = pytest.mark.studies


def made(recipe, **settings) -> Refits:
    train, score, facts, library = dataset(**settings)
    return Refits("learner", recipe, train, score, facts, library, 0)


@pytest.mark.parametrize("K", [2, 3])
def test_neighbours_side_by_side_move_as_one_by_one(K):
    refits = made(StableNuisances(ridge=0.05, propensity_ridge=0.02), K=K)
    pairs = any_neighbours(refits.train, refits.score, refits.facts, 15, torch.Generator().manual_seed(1))
    together = refits.movements(pairs)
    for k in range(15):
        train, score, facts, library = refits.train, refits.score, refits.facts, refits.library
        single = Refits("learner", refits.recipe, pairs.neighbour(train, k), score, facts, library, 0)
        torch.testing.assert_close(together[k], single.base - refits.base, rtol=0, atol=1e-6)
    assert float(together.abs().max()) > 0.01


@pytest.mark.parametrize("K", [2, 3])
def test_the_derivative_is_that_of_finite_differences(K):
    refits = made(StableNuisances(ridge=0.05, propensity_ridge=0.02), n=100, K=K)
    start = any_neighbours(refits.train, refits.score, refits.facts, 2 * K, torch.Generator().manual_seed(2))
    weights = torch.randn(100, K, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def contrast(x: torch.Tensor) -> torch.Tensor:
        moved = Replacements(start.index, x, start.arm, start.y)
        return (weights * refits.scores(refits.fits(moved))).sum((1, 2))

    x = start.x.clone().requires_grad_()
    contrast(x).sum().backward()
    for j in range(3):
        step = torch.zeros_like(start.x)
        step[:, j] = 1e-4
        slopes = (contrast(start.x + step) - contrast(start.x - step)) / 2e-4
        torch.testing.assert_close(x.grad[:, j], slopes, rtol=1e-4, atol=1e-6)
