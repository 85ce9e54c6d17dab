"""Nuisances that are public numbers, with their exact spread, or functions fitted on other data."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.fixed import FixedNuisances, FrozenNuisances

DOMAIN = Domain([0.0, 0.2], [1.0, 0.7], outcome_low=-1.0, outcome_high=3.0, names=["age", "score"])


def facts(arms: int = 2, overlap: float = 0.1) -> SelectionFacts:
    return SelectionFacts(DOMAIN, tuple(range(arms)), overlap, 50)


@pytest.mark.parametrize(
    ("arms", "settings", "spread"),
    [
        (2, {}, 2 * 4.0),  # halves and the middle: R
        (3, {}, 2 * 6.0),  # thirds
        (2, {"propensity": 0.2}, 2 * 10.0),
        (2, {"propensity": 0.2, "outcome": -1.0}, 2 * 20.0),
        (3, {"propensity": (0.2, 0.3, 0.5), "outcome": (1.0, 1.0, 1.0)}, 2 * 10.0),
        (2, {"propensity": "score"}, 2 * 2 / 0.2),  # treated at 0.2
    ],
)
def test_spreads(arms, settings, spread):
    nuisances = FixedNuisances(**settings)
    nuisances.check(facts(arms), None)
    certified = nuisances.fit(None, facts(arms))
    assert certified.range_sensitivity == pytest.approx(spread)
    x = DOMAIN.grid(50)
    e = certified.nuisances.propensity(x)
    assert e.shape == certified.nuisances.outcome(x).shape == (50, arms)
    torch.testing.assert_close(e.sum(1), torch.ones(50, dtype=torch.float64))


def test_a_column_is_the_second_arms_propensity_and_clipped_to_the_floor():
    certified = FixedNuisances("score").fit(None, facts(overlap=0.4))
    x = torch.tensor([[0.0, 0.2], [0.0, 0.5], [0.0, 0.7]], dtype=torch.float64)
    assert certified.nuisances.propensity(x)[:, 1].tolist() == pytest.approx([0.4, 0.5, 0.6])


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
    assert nuisances.fitted_on == ("ab" * 32,)


def test_numbers_beside_functions_lower_the_spread():
    known = FrozenNuisances(0.5, lambda x: np.stack([x[:, 0], x[:, 1]], 1)).fit(None, facts())
    assert known.range_sensitivity == pytest.approx(2 * 4 / 0.5)
    column = FrozenNuisances(lambda x: x[:, 0]).fit(None, facts())
    assert column.range_sensitivity == pytest.approx(2 * 2 / 0.1)
    x = torch.tensor([[0.0, 0.2], [0.3, 0.2], [1.0, 0.2]], dtype=torch.float64)
    assert column.nuisances.propensity(x)[:, 1].tolist() == pytest.approx([0.1, 0.3, 0.9])


@pytest.mark.parametrize(
    ("arms", "overlap", "settings", "match"),
    [
        (2, 0.1, {"propensity": 0.05}, "lies below the overlap zeta = 0.1"),
        (2, 0.1, {"propensity": 1.2}, "add up to one"),
        (3, 0.1, {"propensity": 0.5}, "there are 3 actions; give a number for each"),
        (3, 0.1, {"propensity": (0.5, 0.5)}, "has 2 numbers"),
        (3, 0.1, {"propensity": (0.5, 0.3, 0.3)}, "add up to one"),
        (3, 0.1, {"propensity": "score"}, "one column is for two actions"),
        (2, 0.1, {"propensity": "weight"}, "no such covariate; choose one of age, score"),
        (2, 0.1, {"outcome": 4.0}, r"outcome has 2 values outside"),
        (2, 0.1, {"outcome": (1.0,)}, "has 1 numbers"),
        (2, 0.1, {"outcome": lambda x: x}, "is of type function"),
        (3, 0.4, {}, "overlap zeta = 0.4: K = 3"),
        (2, 0.1, (None, None), "nuisance_guarantee=frozen needs functions"),
        (3, 0.1, (lambda x: x[:, 0], None), r"gives shape \[1\] for 1 records"),
        (2, 0.1, (lambda x: x[:, 0] * np.nan, None), "missing or infinite"),
        (2, 0.1, (None, lambda x: x - x.mean(0)), r"outcome: its value at a point changes with the points beside"),
        (2, 0.1, (None, [Ridge()]), "has 1 models; there are 2 actions"),
    ],
)
def test_refusals(arms, overlap, settings, match):
    made = FixedNuisances(**settings) if isinstance(settings, dict) else FrozenNuisances(*settings)
    with pytest.raises(InputError, match=match):
        made.check(facts(arms, overlap), None)
