"""Rules, weights and choices on feature maps that are not the library's: conditional, bounded, or refused."""

import math

import pytest
import torch

from tests.fit import own_maps
from tests.registered import CovariateBalancingEffect, OutcomeWeightedLearner, RLearner, TwoStageRule
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.feature_maps import FEATURE_MAPS
from torchdpcate.fit.weights import PrivateWeights
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.file import load_release

AGE = Domain([0.0], [90.0], -1.0, 1.0, overlap=0.25, better="higher")
TRIAL = Domain([0.0], [90.0], -1.0, 1.0, overlap=0.25, propensity=0.5, better="higher")
BUDGET = PrivacyBudget(4.0, 0.0)
RAW, CENTRED = own_maps.RawCovariates(), own_maps.Centred()


def records(n: int = 400):
    generator = torch.Generator().manual_seed(0)
    x = 90 * torch.rand(n, 1, generator=generator).double()
    a = torch.arange(n).double() % 2
    return x, a, (2 * a - 1) * (x[:, 0] / 45 - 1)


LEARNERS = [
    lambda features: OutcomeWeightedLearner(TRIAL, BUDGET, features=features),
    lambda features: OutcomeWeightedLearner(TRIAL, BUDGET, features=features, mechanism="output"),
    lambda features: TwoStageRule(AGE, BUDGET, features=features),
    lambda features: TwoStageRule(AGE, BUDGET, weights=PrivateWeights(features=features)),
]
CASES = range(len(LEARNERS))


@pytest.mark.parametrize("case", CASES)
def test_a_user_s_map_makes_the_release_conditional_and_names_the_condition(case):
    statement = LEARNERS[case](RAW).fit(*records()).release().privacy
    assert statement.level == "conditional"
    assert "conditional" in statement.claim
    assert statement.claims
    (text,) = [c["text"] for c in statement.conditions]
    assert "features = RawCovariates" in text
    assert statement.conditions[0]["holds"] is None
    assert any(c.level == "conditional" for c in statement.charges)
    assert text in statement.to_markdown()


AVERAGE = [lambda features: CovariateBalancingEffect(AGE, BUDGET, basis=features)]


@pytest.mark.parametrize("make", LEARNERS + AVERAGE)
def test_rows_that_depend_on_each_other_are_refused_before_anything_is_spent(make):
    learner = make(CENTRED)
    with pytest.raises(InputError, match="features = Centred: a row depends on the other rows"):
        learner.fit(*records())
    assert not hasattr(learner, "_session")  # no ledger was opened


def test_a_head_on_rows_that_depend_on_each_other_is_refused_before_anything_is_spent():
    head = LinearSecondStage(features=CENTRED)
    learner = RLearner(AGE, PrivacyBudget(4.0, 1e-5), nuisance=ConvexNuisanceConfig(), second_stage=head)
    with pytest.raises(InputError, match="features = Centred: a row depends"):
        learner.fit(*records())
    assert {spent["epsilon"] for spent in learner._session.ledger.spent().values()} == {0}


def test_fit_and_release_see_the_same_bounded_rows():
    learner = OutcomeWeightedLearner(TRIAL, BUDGET, features=RAW).fit(*records())
    psi = learner.problem_.psi
    assert psi.norm(dim=1).max().item() <= 1
    release = learner.release()
    length = math.hypot(1, 45)
    expected = (release.theta[0] + 45 * release.theta[1]).item() / length
    assert release.score([[45.0]])[0] == pytest.approx(expected, rel=1e-9)


def test_a_registered_map_is_read_back_with_its_bounds_and_its_condition(tmp_path, monkeypatch):
    release = OutcomeWeightedLearner(TRIAL, BUDGET, features=RAW).fit(*records()).release()
    with pytest.raises(InputError, match="features = RawCovariates: has no name"):
        release.save(tmp_path / "rule.safetensors")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(FEATURE_MAPS, "raw", own_maps.RawCovariates)
    back = load_release(release.save(tmp_path / "rule.safetensors"))
    x = AGE.grid(50)
    torch.testing.assert_close(back.score_tensor(x), release.score_tensor(x), rtol=1e-12, atol=1e-12)
    assert back.privacy.level == "conditional"
    assert back.privacy.conditions == release.privacy.conditions
