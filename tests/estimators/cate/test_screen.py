"""A screened learner: the chosen columns are paid for once, and nothing later sees the others."""

import pytest
import torch

from torchdpcate import Dataset2, LinearSecondStage, PrivacyBudget, RLearner
from torchdpcate.estimators.cate.splits import CrossFit
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.screening import Screening
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.charge import SCREENING

STUDY = Dataset2(n=2000, queries=20, seed=1).load()
BUDGET = PrivacyBudget(8.0, 1e-5)
RECORDS = (STUDY.records.x, STUDY.records.a, STUDY.records.y)


def screened(**rest):
    arguments = {
        "nuisance": ConvexNuisanceConfig(),
        "second_stage": LinearSecondStage(ridge=0.05),
        "screen": Screening(most=4),
    }
    return RLearner(STUDY.domain, BUDGET, **(arguments | rest))


@pytest.fixture(scope="module")
def model():
    return screened().fit(*RECORDS)


def test_the_chosen_columns_are_all_that_is_seen(model):
    assert len(model.columns_) == 4
    assert model.stage_.block.x.shape[1] == model.stage_.features.domain.dimension == 4
    assert model.nuisances_.domain.names == tuple(STUDY.domain.names[c] for c in model.columns_)
    others = STUDY.queries.clone()
    others[:, [c for c in range(30) if c not in model.columns_]] = 0.5
    release = model.release_function(budget=PrivacyBudget(1.0, 1e-6))
    assert (release.effect(others) == release.effect(STUDY.queries)).all()
    assert release.effect(STUDY.queries).std() > 0


def test_screening_nuisances_and_threshold_share_one_budget(model):
    charges = [(e.event, e.count) for e in model.ledger_.entries if e.block == "nuisance"]
    assert len(charges) == 4  # of nuisances two
    cost = compose(charges, BUDGET.delta)
    assert 0.99 * BUDGET.epsilon < cost <= BUDGET.epsilon


def test_both_folds_pay_for_columns_when_cross_fitting():
    model = screened(split=CrossFit()).fit(*RECORDS)
    paid = [e.block for e in model.ledger_.entries if e.charge == SCREENING]
    assert paid == ["fold_1", "fold_2"]
    assert len(model.columns_) == 4


@pytest.mark.slow
def test_few_covariates_are_all_kept_for_nothing():
    model = screened(screen=Screening(most=30)).fit(*RECORDS)
    assert model.columns_ is None
    assert not any(entry.charge == SCREENING for entry in model.ledger_.entries)


def test_without_privacy_the_best_columns_are_chosen_openly():
    model = screened().set_params(budget=None, screen=Screening(most=6)).fit(*RECORDS)
    assert {0, 1} <= set(model.columns_)  # the effect is exp(2 x0) + 3 sin(4 x1)
    assert torch.as_tensor(model.nonprivate_effect(STUDY.queries)).isfinite().all()
