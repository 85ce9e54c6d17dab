"""What a user brings in place of the library's own makes a release conditional, whatever it says of itself."""

import sys
import types

import pytest
import torch

from tests.fit import own_maps
from tests.registered import CovariateBalancingEffect, OutcomeWeightedLearner, PolicySelector, RLearner, TwoStageRule
from torchdpcate import ConvexNuisanceConfig, Domain, LinearSecondStage, PrivacyBudget
from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.losses import Logistic
from torchdpcate.fit.weights import KnownWeights, PrivateWeights
from torchdpcate.privacy.guarantee import of_library, user_code
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, better="higher")
TRIAL = Domain.from_dict(DOMAIN.to_dict() | {"propensity": 0.5})
BUDGET, PURE = PrivacyBudget(6.0, 1e-5), PrivacyBudget(6.0, 0.0)


class OwnWeights(KnownWeights):
    """A scheme of the user's."""


class OwnRecipe(ConvexNuisanceConfig):
    """A recipe of the user's."""


class OwnStage(LinearSecondStage):
    """A second stage of the user's."""


class OwnNuisances(FixedNuisances):
    """Nuisances of the user's."""


class VouchingLoss(Logistic):
    """Says that its claims rest on nothing."""

    @property
    def conditions(self):
        return ()


def records(n=600):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator).double()
    a = torch.arange(n).double() % 2
    return x, a, (2 * a - 1) * (2 * x[:, 0] - 1)


MAP = own_maps.Vouching()
CONVEX = ConvexNuisanceConfig(degree=1)
CASES = {
    "weights": lambda: OutcomeWeightedLearner(TRIAL, PURE, weights=OwnWeights()),
    "weights of two stages": lambda: TwoStageRule(TRIAL, PURE, weights=OwnWeights()),
    "nuisances of a choice": lambda: PolicySelector(
        DOMAIN, PURE, policies=Thresholds("x0", [0.3, 0.6]), nuisance=OwnNuisances()
    ),
    "nuisances": lambda: RLearner(DOMAIN, BUDGET, nuisance=OwnRecipe(degree=1), second_stage=LinearSecondStage()),
    "second stage": lambda: RLearner(DOMAIN, BUDGET, nuisance=CONVEX, second_stage=OwnStage()),
    "map of a rule": lambda: OutcomeWeightedLearner(TRIAL, PURE, features=MAP),
    "map of weights": lambda: TwoStageRule(DOMAIN, PURE, weights=PrivateWeights(features=MAP)),
    "map of a head": lambda: RLearner(DOMAIN, BUDGET, nuisance=CONVEX, second_stage=LinearSecondStage(features=MAP)),
    "map of an average effect": lambda: CovariateBalancingEffect(DOMAIN, PURE, basis=MAP),
    "loss": lambda: OutcomeWeightedLearner(TRIAL, PURE, loss=VouchingLoss()),
}


@pytest.mark.parametrize("name", CASES)
def test_code_of_the_user_s_is_a_condition(name, monkeypatch):
    learner = CASES[name]().fit(*records())
    release = learner.release_function() if isinstance(learner, RLearner) else learner.release()
    assert release.privacy.level == "conditional"
    assert [condition["holds"] for condition in release.privacy.conditions] == [None]


@pytest.mark.parametrize("name", ["weights", "nuisances", "nuisances of a choice", "second stage"])
def test_its_file_is_verified(name, tmp_path):
    learner = CASES[name]().fit(*records())
    release = learner.release_function() if isinstance(learner, RLearner) else learner.release()
    assert verify_release(release.save(tmp_path / "release.safetensors"))


def test_a_name_of_the_library_s_vouches_for_nothing(monkeypatch):
    module = types.ModuleType("torchdpcate.mine")
    monkeypatch.setitem(sys.modules, "torchdpcate.mine", module)
    inside = type("Inside", (Identity,), {"__module__": "torchdpcate.mine"})
    module.Inside = inside
    named = type("Identity", (Identity,), {"__module__": Identity.__module__})
    for value in (inside(), named()):
        assert not of_library(value)
        assert user_code("map", value)[0].holds is None
    assert of_library(Identity())
    assert user_code("map", Identity()) == ()
