"""Nuisances that are functions fitted on other data."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.nuisance.arms.base import SelectionFacts
from torchdpcate.nuisance.arms.fixed import FrozenNuisances

DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], outcome_low=-1.0, outcome_high=3.0)


def facts(arms: int = 2) -> SelectionFacts:
    return SelectionFacts(DOMAIN, tuple(range(arms)), 0.1, 0, 50)


@pytest.mark.parametrize("arms", [2, 3])
def test_fitted_objects_of_other_data(arms):
    random = np.random.default_rng(0)
    x, a, y = random.random((200, 2)), random.integers(arms, size=200), 9 * random.random(200)
    outcome = [Ridge().fit(x[a == arm], y[a == arm]) for arm in range(arms)]
    nuisances = FrozenNuisances(LogisticRegression().fit(x, a), outcome, fitted_on="ab" * 32)
    nuisances.check(facts(arms), None)
    certified = nuisances.fit(None, facts(arms))
    grid = DOMAIN.grid(50)
    e, mu = certified.nuisances.propensity(grid), certified.nuisances.outcome(grid)
    assert e.min() >= 0.1
    torch.testing.assert_close(e.sum(1), torch.ones(50, dtype=torch.float64))
    expected = np.stack([model.predict(grid.numpy()) for model in outcome], 1).clip(-1, 3)
    np.testing.assert_allclose(mu.numpy(), expected)
    assert certified.range_sensitivity == pytest.approx(2 * 4 / 0.1)
    assert not FrozenNuisances.moves_all_scores
    assert nuisances.fitted_on == ("ab" * 32,)


def test_numbers_beside_functions_lower_the_spread():
    known = FrozenNuisances(0.5, lambda x: np.stack([x[:, 0], x[:, 1]], 1)).fit(None, facts())
    assert known.range_sensitivity == pytest.approx(2 * 4 / 0.5)
    column = FrozenNuisances(lambda x: x[:, 0]).fit(None, facts())
    assert column.range_sensitivity == pytest.approx(2 * 2 / 0.1)
    x = torch.tensor([[0.0, 0.0], [0.3, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert column.nuisances.propensity(x)[:, 1].tolist() == pytest.approx([0.1, 0.3, 0.9])


@pytest.mark.parametrize(
    ("arms", "given", "match"),
    [
        (2, (None, None), "nuisance_guarantee=frozen needs functions"),
        (3, (lambda x: x[:, 0], None), r"gives shape \[1\] for 1 records"),
        (2, (lambda x: x[:, 0] * np.nan, None), "missing or infinite"),
        (2, (None, lambda x: x - x.mean(0)), r"outcome: its value at a point changes with the points beside"),
        (2, (None, [Ridge()]), "has 1 models; there are 2 actions"),
    ],
)
def test_refusals(arms, given, match):
    with pytest.raises(InputError, match=match):
        FrozenNuisances(*given).check(facts(arms), None)
