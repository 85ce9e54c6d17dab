"""Refits are exact: side by side as one by one; and their derivative is that of finite differences."""

import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression

from experiments.spillover.ascent import ascend
from experiments.spillover.learned import LearnedNuisances
from experiments.spillover.refits import Refits
from experiments.spillover.replacements import Replacements, any_neighbours, random_neighbours
from tests.experiments.spillover.datasets import dataset
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.fixed import FixedNuisances
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


def test_batches_do_not_matter(monkeypatch):
    refits = made(StableNuisances(ridge=0.05, propensity_ridge=0.02))
    pairs = random_neighbours(refits.train, refits.score, 10, torch.Generator().manual_seed(1))
    together, done = refits.movements(pairs), []
    monkeypatch.setattr("experiments.spillover.refits._NUMBERS", 900)
    torch.testing.assert_close(refits.movements(pairs, lambda: done.append(1)), together, rtol=0, atol=1e-9)
    assert len(done) == 10


def test_what_learns_nothing_does_not_move():
    refits = made(FixedNuisances(0.5))
    pairs = random_neighbours(refits.train, refits.score, 5, torch.Generator().manual_seed(1))
    assert float(refits.movements(pairs).abs().max()) == 0


def test_trees_are_refitted_from_scratch():
    trees = LearnedNuisances(
        HistGradientBoostingRegressor(max_iter=5, random_state=0),
        HistGradientBoostingClassifier(max_iter=5, random_state=0),
    )
    refits = made(trees)
    pairs = random_neighbours(refits.train, refits.score, 3, torch.Generator().manual_seed(1))
    assert float(refits.movements(pairs).abs().max()) > 0
    nobody = Replacements(torch.tensor([3]), refits.train.x[3:4], refits.train.a[3:4].long(), refits.train.y[3:4])
    assert float(refits.movements(nobody).abs().max()) == 0


def test_a_learner_of_chance_is_refused():
    forest = LearnedNuisances(RandomForestRegressor(3), LogisticRegression())
    with pytest.raises(
        InputError, match="two fits of learner to the same records differ; give it a fixed random_state"
    ):
        made(forest)


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


def test_ascent_widens_what_it_climbs_and_stays_in_the_domain():
    refits = made(StableNuisances(ridge=0.05, propensity_ridge=0.02))
    start = any_neighbours(refits.train, refits.score, refits.facts, 16, torch.Generator().manual_seed(2))
    before = refits.movements(start)
    delta = before[0]
    up, down = int(delta.argmax()), int(delta.argmin())
    found = ascend(refits, start, delta)
    refits.facts.domain.check_covariates(found.x)
    after = refits.movements(found)
    assert torch.equal(found.index, start.index)
    assert bool((after[:, up] - after[:, down] > before[:, up] - before[:, down] - 1e-6).float().mean() > 0.9)
    assert float((after[:, up] - after[:, down]).max()) > 1.3 * float((before[:, up] - before[:, down]).max())
