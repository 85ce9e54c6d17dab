"""Balance of the arms, the curator's: differences of means by hand, and of learners and averages alike."""

from dataclasses import replace

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, FEATURES, arrays
from torchdpcate import AverageEffect, NoiseSource, PrivacyBudget, RLearner
from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.balance import comparability, exact_balance, names_of, weighted_balance
from torchdpcate.fit.feature_maps import Legendre, on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords

THETA = torch.tensor([[0.2, 1.0, -0.5, 0.3, 0.1]], dtype=torch.float64)


def test_differences_of_the_arms_are_those_of_their_means():
    x, z, y = arrays(4_000, 8)
    psi = FEATURES(x)
    found = exact_balance(StackedRecords(Batch(x, psi, z, y)), ATE(0.1), FEATURES, THETA)
    assert found.before == pytest.approx((x[z == 1].mean(0) - x[z == 0].mean(0)).tolist(), rel=1e-9)
    w = ATE(0.1).weights(psi @ THETA[0], z)
    after = ((2 * z - 1) * w) @ x / (w.sum() / 2)
    assert found.after == pytest.approx(after.tolist(), rel=1e-9)


def test_features_have_names():
    assert names_of(FEATURES) == list(DOMAIN.names)
    assert names_of(on_domain(Legendre(2), DOMAIN))[:2] == ["feature 1", "feature 2"]


def test_weighted_differences_by_hand_and_of_a_covariate_that_does_not_vary():
    domain = Domain([0.0, 0.0], [10.0, 1.0], -5.0, 5.0, overlap=0.1)
    x = torch.tensor([[0.0, 1.0], [10.0, 1.0], [10.0, 1.0], [10.0, 1.0]]).double()
    a = torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    found = weighted_balance(domain, CausalData(x, a, a), torch.tensor([0.5, 0.75, 0.5, 0.5]).double())
    # values -1 and 1 three times: deviation sqrt(3)/2; controls weigh 2 and 4
    assert found.before == pytest.approx([1.0 / (3**0.5 / 2), 0.0])
    assert found.after == pytest.approx([(1 - (4 - 2) / 6) / (3**0.5 / 2), 0.0])


def wards(a: torch.Tensor, ward: torch.Tensor, **design: object):
    """Records with a number and a ward among four, and their schema."""
    facts = {
        "treatment": "a",
        "outcome": {"name": "y", "low": 0, "high": 1},
        "covariates": {"age": {"low": 0, "high": 1}, "ward": {"categories": [1, 2, 3, 4]}},
    }
    schema = TableSchema.from_dict(facts | (design or {"overlap": 0.1}))
    x = torch.cat([torch.linspace(0, 1, len(a)).double()[:, None], torch.nn.functional.one_hot(ward, 4).double()], 1)
    return schema, CausalData(x, a.double(), 0 * a.double())


@pytest.mark.parametrize("stated", [0.05, 0.1, 0.2])
def test_the_share_beyond_the_overlap_is_that_of_the_law(stated):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40_000, 1, generator=generator, dtype=torch.float64)
    pi = (6 * x[:, 0] - 3).sigmoid()
    a = (torch.rand(len(x), generator=generator) < pi).double()
    schema = TableSchema.of(Domain([0.0], [1.0], 0.0, 1.0, overlap=stated))
    found = comparability(schema, CausalData(x, a, a), pi)
    truth = float(((pi < stated) | (pi > 1 - stated)).double().mean())
    assert found.beyond == pytest.approx(truth, abs=0.01)
    assert found.propensity == pytest.approx(pi.numpy(), abs=0.02)
    said = found.words()
    assert len(said) == (truth > 0.05)
    assert all(f"beyond the stated overlap of {stated:g}" in words and "ATO" in words for words in said)


def test_a_treatment_by_a_rule_lies_beyond_every_overlap():
    """Cases 39: everybody of 60 and older is treated, and nobody else."""
    age = torch.linspace(20, 90, 1_500).double()
    schema = TableSchema.of(Domain([18.0], [90.0], 0.0, 1.0, overlap=0.05))
    records = CausalData(age[:, None], (age >= 60).double(), 0 * age)
    found = comparability(schema, records, torch.full_like(age, 0.05))
    assert found.beyond > 0.7
    assert found.at_clip == 1


def test_what_is_kept_of_a_propensity_is_the_slope_of_its_log_odds():
    x = torch.linspace(-1, 1, 1_000).double()
    schema = TableSchema.of(Domain([-1.0], [1.0], 0.0, 1.0, overlap=0.05))
    records = CausalData(x[:, None], (torch.arange(1_000) % 10 < 5 + 3 * x).double(), 0 * x)
    whole = torch.as_tensor(comparability(schema, records, 0 * x + 0.5).propensity)
    assert comparability(schema, records, (whole.logit() / 2).sigmoid()).kept == pytest.approx(0.5)
    assert comparability(schema, records, 0 * x + 0.5).kept == pytest.approx(0)
    assert comparability(schema, records, whole).at_clip == 0


def test_levels_whose_records_all_got_one_treatment_are_named():
    ward = torch.arange(80) % 4
    schema, records = wards((ward > 1).long(), ward, propensity=0.5)
    found = comparability(schema, records, torch.full((80,), 0.5))
    assert found.alike == ("ward",)
    assert found.overlap is None  # of a trial nothing is said of propensities
    assert [words.partition(":")[0] for words in found.words()] == ["all records of each ward got the same treatment"]
    assert "clusters: ward" in found.words()[0]


def test_records_of_no_weight_say_nothing():
    """One whose treatment is missing counts as a control of weight 0."""
    ward = torch.arange(80) % 4
    a = (ward > 1).long()
    a[3] = 0
    schema, records = wards(a, ward, propensity=0.5)
    assert comparability(schema, records, torch.full((80,), 0.5)).alike == ()
    weighted = replace(records, weight=(torch.arange(80) != 3).double())
    found = comparability(schema, weighted, torch.full((80,), 0.5))
    assert found.alike == ("ward",)
    assert len(found.treated) == 79


@pytest.mark.parametrize("places", [[0], [0, 1]])
def test_one_other_treatment_in_a_level_is_enough(places):
    ward = torch.arange(80) % 4
    a = (ward > 1).long()
    a[places] = 1 - a[places]
    schema, records = wards(a, ward, propensity=0.5)
    assert comparability(schema, records, torch.full((80,), 0.5)).words() == []


def test_levels_of_one_record_each_say_nothing():
    schema, records = wards(torch.tensor([0, 1, 0, 1]), torch.arange(4), propensity=0.5)
    assert comparability(schema, records, torch.full((4,), 0.5)).alike == ()


@pytest.mark.parametrize("learner", [AverageEffect, RLearner])
def test_learners_tell_the_curator_of_balance_and_whether_arms_can_be_compared(learner):
    x, a, y = arrays(3_000, 8)
    fitted = learner(DOMAIN, PrivacyBudget(8.0, 1e-5), noise=NoiseSource.fixed(0)).fit(x, a, y)
    found, own = fitted.nonprivate_balance(), fitted.nonprivate_comparability()
    assert list(found.frame().columns) == ["before", "after"]
    assert max(map(abs, found.after)) < max(map(abs, found.before))
    assert own.overlap == DOMAIN.overlap
    assert own.treated.tolist() == a.tolist()
    assert own.propensity[own.treated > 0].mean() > own.propensity[own.treated < 1].mean()
