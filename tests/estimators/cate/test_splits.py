"""Disjoint blocks and cross-fitting: who enters what, who pays, and that the costs compose."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.estimators.cate.test_learner import BUDGET, QUICK, RECORDS, STUDY
from tests.estimators.cate.test_learner import learner as convex_learner
from torchdpcate import DRLearner, RLearner
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.splits import CrossFit, DisjointSplit, Fold
from torchdpcate.fit.nuisance_kinds import AveragedNuisances
from torchdpcate.fit.nuisances import NuisanceValues
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.events import ApproximateEvent, GaussianEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

learner = partial(convex_learner, nuisance=QUICK)  # networks, which pay by DP-SGD and a threshold


@pytest.mark.parametrize("split", [DisjointSplit(0.3), CrossFit()])
def test_blocks_are_disjoint_and_together_all(split):
    blocks = split.blocks(101, seed=4)
    positions = torch.cat(list(blocks.values())).sort().values
    assert torch.equal(positions, torch.arange(101))


@pytest.mark.slow
def test_both_folds_fit_the_second_stage_by_the_other_folds_nuisances():
    crossed = learner(split=CrossFit(), noise=NoiseSource.fixed(1)).fit(*RECORDS)  # keeps the order of the records
    block, (first, second) = crossed.stage_.block, crossed.blocks_.values()
    x, a, y = RECORDS
    assert torch.equal(block.x, torch.cat([x[second], x[first]]))
    offset = crossed.nuisances_.effect(block.x)
    for rows, model in ((slice(0, len(second)), "fold_1"), (slice(len(second), None), "fold_2")):
        values = crossed._fitted.first.models[model].predict(block.x[rows])
        order = torch.cat([second, first])[rows]
        s, w = crossed.regression_score.regression(a[order], y[order], values, offset[rows])
        torch.testing.assert_close(block.s[rows], s, rtol=0, atol=0)
        torch.testing.assert_close(block.w[rows], w, rtol=0, atol=0)
    assert crossed.stage_.problem.n == len(x)  # the sensitivity is that of all records


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "filter"),
    [
        ("output", "gaussian"),
        ("output", "sums"),
        ("objective", "sums"),
    ],
)
def test_costs_of_the_two_stages_compose_in_each_fold(mechanism, filter, tmp_path):
    model = learner(split=CrossFit(), filter=filter).fit(*RECORDS)
    release = model.release_function(mechanism)
    spent = model.ledger_.spent()
    for fold in ("fold_1", "fold_2"):
        entries = [e for e in model.ledger_.entries if e.block == fold]
        assert [e.fixed for e in entries] == [True, True, False]  # DP-SGD, threshold, release
        charges = [(e.event, e.count) for e in entries[:2]]
        cost = entries[2].cost
        charges.append((GaussianEvent(1 / cost.size) if filter == "gaussian" else ApproximateEvent(*cost), 1))
        assert spent[fold]["epsilon"] == pytest.approx(compose(charges, BUDGET.delta))
        assert compose(charges[:1], BUDGET.delta) < spent[fold]["epsilon"] <= BUDGET.epsilon
    assert release.privacy.epsilon == max(spent[fold]["epsilon"] for fold in ("fold_1", "fold_2"))
    assert release.privacy.public["split"] == "two folds, cross-fitted"
    path = release.save(tmp_path / "r.safetensors")
    verify_release(path)
    assert (load_release(path).effect(STUDY.queries) == release.effect(STUDY.queries)).all()


def test_a_gaussian_filter_with_another_mechanism_is_refused_before_anything_is_paid():
    model = convex_learner(split=CrossFit(), filter="gaussian")
    with pytest.raises(InputError, match=r"filter = gaussian.*mechanism = objective is none"):
        model.check(len(RECORDS[0]), "objective")
    model.check(len(RECORDS[0]), "output")


@pytest.mark.parametrize("kind", [RLearner, DRLearner])
def test_targets_keep_their_bound_whatever_the_other_folds_nuisances_say(kind):
    """With the mean of two effects as offset, |s| could reach 1.475 and 20.5 outcome ranges' bounds of 1 and 20."""
    model = learner(kind, split=CrossFit(), budget=None).fit(*RECORDS)
    low, high = STUDY.domain.outcome_low, STUDY.domain.outcome_high

    class Extreme(torch.nn.Module):
        def __init__(self, mu0, mu1):
            super().__init__()
            self.mu0, self.mu1 = mu0, mu1

        def predict(self, x):
            one = torch.ones(len(x), dtype=torch.float64)
            return NuisanceValues(0.05 * one, self.mu0 * one, self.mu1 * one)

        def values(self, records):
            return self.predict(records.x)

        def effect(self, x):
            return torch.full((len(x),), self.mu1 - self.mu0, dtype=torch.float64)

    first = replace(model._fitted.first, models={"fold_1": Extreme(low, low), "fold_2": Extreme(high, low)})
    first.__dict__["nuisances"] = AveragedNuisances(list(first.models.values()))
    blocks = {"fold_2": CausalData(STUDY.queries, torch.ones(20).double(), torch.full((20,), high).double())}
    block = first.block(blocks, (Fold("fold_1", "fold_2"),), torch.device("cpu"))
    assert (block.s.abs() <= block.bounds.target).all()
    assert block.s.abs().max() == block.bounds.target  # it does bind
