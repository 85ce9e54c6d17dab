"""The designs of Niu et al. (2022): moments of the effect, bounds, propensities."""

import math

import numpy as np
import pytest
import torch

from experiments.designs.niu import Niu
from torchdpcate.data.covariates import Categorical
from torchdpcate.errors import InputError

N = 100_000
SDS = 6.0  # two-sided normal tail 2e-9


@pytest.mark.parametrize("design", "ABCDE")
def test_treatments_follow_the_propensity(design):
    source = Niu(design, n=N, train_fraction=0.99, seed=2)
    records = source.load().records
    apart = records.a - source.propensity(records.x)
    # A record at its bound has another propensity than the one that was drawn: fewer than 1 in 60 have one there.
    assert abs(float(apart.mean())) < SDS * 0.5 / math.sqrt(records.n) + 0.002


@pytest.mark.parametrize("design", "ABCDE")
def test_records_lie_in_their_domain_and_few_were_moved(design):
    study = Niu(design, n=N, seed=4).load()
    domain, records = study.domain, study.records
    domain.check_covariates(records.x)
    domain.check_outcome(records.y)
    moved = ((records.x == domain.covariate_low) | (records.x == domain.covariate_high)).double().mean(0)
    numbers = [not isinstance(c, Categorical) for c in study.schema.covariates]
    assert float(moved[torch.tensor(numbers)].max()) < 1 / 300
    assert float(((records.y == domain.outcome_low) | (records.y == domain.outcome_high)).double().mean()) < 1 / 200


def test_covariates_of_the_last_design_have_the_papers_covariance():
    drawn = np.random.RandomState(1).uniform(-1, 1, (12, 12))
    covariance = (drawn @ drawn.T)[:6, :6]
    study = Niu("E", n=N, seed=5).load()
    seen = np.cov(study.records.x[:, :3].numpy().T)
    assert np.allclose(seen, covariance[:3, :3], atol=0.15)
    assert [type(c).__name__ for c in study.schema.covariates] == ["Numeric"] * 3 + ["Categorical"] * 3
    tails = [0.5 * math.erfc(1 / math.sqrt(2 * covariance[j, j])) for j in (3, 4, 5)]
    assert np.allclose(study.records.x[:, 3:].mean(0).numpy(), tails, atol=0.012)


def test_a_coin_in_place_of_the_propensity_is_known_to_the_schema():
    source = Niu("D", randomised=0.3, n=N, seed=6)
    study = source.load()
    assert float(study.records.a.mean()) == pytest.approx(0.3, abs=SDS * 0.5 / math.sqrt(study.records.n))
    assert study.domain.known_propensity is not None
    assert Niu("B").load().domain.known_propensity is None  # the study's default fit estimates it
    with pytest.raises(InputError, match=r"between 0\.1 and 0\.9"):
        Niu("D", randomised=0.05)
