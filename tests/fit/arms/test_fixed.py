"""Nuisances that are public numbers, with their exact spread."""

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.fixed import FixedNuisances

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


@pytest.mark.parametrize(
    ("arms", "overlap", "settings", "match"),
    [
        (2, 0.1, {"propensity": 0.05}, r"propensity is 0.05, outside \[0.1, 0.9\]"),
        (2, 0.1, {"propensity": 1.2}, "between 0 and 1"),
        (3, 0.1, {"propensity": 0.5}, "there are 3 actions; give a number for each"),
        (2, 0.1, {"propensity": "score"}, "is no number; write propensity: into the domain"),
        (3, 0.1, {"propensity": (0.5, 0.2, 0.2, 0.1)}, "there are 3 actions"),
        (3, 0.1, {"propensity": (0.5, 0.3, 0.3)}, "add up to 1.1"),
        (2, 0.1, {"outcome": 4.0}, r"outcome has 2 values outside"),
        (2, 0.1, {"outcome": (1.0,)}, "has 1 numbers"),
        (2, 0.1, {"outcome": lambda x: x}, "is of type function"),
        (3, 0.4, {}, "overlap zeta = 0.4: K = 3"),
    ],
)
def test_refusals(arms, overlap, settings, match):
    with pytest.raises(InputError, match=match):
        FixedNuisances(**settings).check(facts(arms, overlap), None)
