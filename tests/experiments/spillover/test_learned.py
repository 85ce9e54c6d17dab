"""Nuisances without a guarantee, for audits alone."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from experiments.spillover.learned import LearnedNuisances
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.privacy.guarantee import Level

pytestmark = pytest.mark.studies

DOMAIN = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0)
FACTS = SelectionFacts(DOMAIN, (1, 2, 3), 0.1, 6, 6)


def test_nearest_neighbours_by_arm_and_an_arm_without_records():
    x = torch.tensor([[0.1], [0.2], [0.3], [0.7], [0.8], [0.9]], dtype=torch.float64)
    train = CausalData(x, torch.tensor([0.0, 2, 0, 2, 0, 2]), torch.arange(6).double() / 4)
    nuisances = LearnedNuisances(KNeighborsRegressor(1), KNeighborsClassifier(1))
    nuisances.check(FACTS, None)
    certified = nuisances.fit(train, FACTS)
    assert certified.nuisances.outcome(x[:1]).tolist() == [[0.0, 0.5, 0.25]]
    np.testing.assert_allclose(certified.nuisances.propensity(x[1:2])[0], [0.1, 0.1, 0.8])
    assert certified.nuisances.outcome(x).max() <= 1  # clipped
    assert certified.range_sensitivity == math.inf
    assert nuisances.level is Level.HEURISTIC


def test_what_is_no_learner_is_refused():
    with pytest.raises(InputError, match=r"propensity is of type KNeighborsRegressor"):
        LearnedNuisances(KNeighborsRegressor(1), KNeighborsRegressor(1)).check(FACTS, None)
