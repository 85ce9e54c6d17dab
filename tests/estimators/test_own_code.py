"""What a user brings in place of the library's own makes a release conditional, whatever it says of itself."""

import math
import sys
import types

import pytest
import torch

from tests.fit import own_maps
from tests.registered import CovariateBalancingEffect, OutcomeWeightedLearner, PolicySelector, RLearner, TwoStageRule
from torchdpcate import Domain, LinearSecondStage, NuisanceConfig, PrivacyBudget
from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.fit.feature_maps import FEATURE_MAPS, Identity
from torchdpcate.fit.weights import KnownWeights, PrivateWeights
from torchdpcate.privacy.guarantee import of_library, user_code
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, better="higher")
TRIAL = Domain.from_dict(DOMAIN.to_dict() | {"propensity": 0.5})
BUDGET, PURE = PrivacyBudget(6.0, 1e-5), PrivacyBudget(6.0, 0.0)


class OwnWeights(KnownWeights):
    """A scheme of the user's."""


class OwnRecipe(NuisanceConfig):
    """A recipe of the user's."""


class OwnStage(LinearSecondStage):
    """A second stage of the user's."""


class OwnNuisances(FixedNuisances):
    """Nuisances of the user's."""


class OwnPolicy(Thresholds):
    """Decides by the mean of the rows that it sees: no policy of one record."""

    def _decide(self, x):
        return (x[:, :1] > x[:, :1].mean()).to(torch.int8)


def records(n=600):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator).double()
    a = torch.arange(n).double() % 2
    return x, a, (2 * a - 1) * (2 * x[:, 0] - 1)


MAP = own_maps.Vouching()
NETWORKS = NuisanceConfig(width=0, batch_size=50, epochs=1)
CASES = {
    "weights": lambda: OutcomeWeightedLearner(TRIAL, PURE, weights=OwnWeights()),
    "weights of two stages": lambda: TwoStageRule(TRIAL, PURE, weights=OwnWeights()),
    "nuisances of a choice": lambda: PolicySelector(
        DOMAIN, PURE, policies=Thresholds("x0", [0.3, 0.6]), nuisance=OwnNuisances()
    ),
    "policy": lambda: PolicySelector(DOMAIN, PURE, policies=OwnPolicy("x0", [0.3, 0.6]), nuisance_guarantee="fixed"),
    "nuisances": lambda: RLearner(
        DOMAIN, BUDGET, nuisance=OwnRecipe(width=0, batch_size=50, epochs=1), second_stage=LinearSecondStage()
    ),
    "second stage": lambda: RLearner(DOMAIN, BUDGET, nuisance=NETWORKS, second_stage=OwnStage()),
    "map of a rule": lambda: OutcomeWeightedLearner(TRIAL, PURE, features=MAP),
    "map of weights": lambda: TwoStageRule(DOMAIN, PURE, weights=PrivateWeights(features=MAP)),
    "map of a head": lambda: RLearner(DOMAIN, BUDGET, nuisance=NETWORKS, second_stage=LinearSecondStage(features=MAP)),
    "map of an average effect": lambda: CovariateBalancingEffect(DOMAIN, PURE, basis=MAP),
}


def released(learner):
    learner.fit(*records())
    return learner.release_function() if isinstance(learner, RLearner) else learner.release()


@pytest.mark.parametrize("name", CASES)
def test_code_of_the_user_s_is_a_condition(name):
    privacy = released(CASES[name]()).privacy
    assert (privacy.level, privacy.claims) == ("conditional", True)
    [condition] = privacy.conditions
    assert condition["holds"] is None
    assert condition["text"] in privacy.to_markdown()
    assert ("features = Vouching" in condition["text"]) == name.startswith("map")


@pytest.mark.parametrize("name", ["weights", "nuisances", "nuisances of a choice", "second stage"])
def test_its_file_is_verified(name, tmp_path):
    assert verify_release(released(CASES[name]()).save(tmp_path / "release.safetensors"))


@pytest.mark.parametrize("name", ["map of a rule", "map of weights", "map of a head", "map of an average effect"])
def test_rows_that_depend_on_each_other_are_refused_before_anything_is_spent(name, monkeypatch):
    monkeypatch.setitem(globals(), "MAP", own_maps.Centred())
    learner = CASES[name]()
    with pytest.raises(InputError, match="features = Centred: a row depends on the other rows"):
        learner.fit(*records())
    session = getattr(learner, "_session", None)
    assert session is None or {spent["epsilon"] for spent in session.ledger.spent().values()} == {0}


def test_a_registered_map_is_read_back_with_its_bounds_and_its_condition(tmp_path, monkeypatch):
    domain = Domain([0.0], [90.0], -1.0, 1.0, overlap=0.25, propensity=0.5, better="higher")
    x, a, y = records()
    learner = OutcomeWeightedLearner(domain, PURE, features=own_maps.RawCovariates()).fit(90 * x[:, :1], a, y)
    assert learner.problem_.psi.norm(dim=1).max().item() <= 1
    release = learner.release()
    expected = (release.theta[0] + 45 * release.theta[1]).item() / math.hypot(1, 45)
    assert release.score([[45.0]])[0] == pytest.approx(expected, rel=1e-9)
    with pytest.raises(InputError, match="features = RawCovariates: has no name"):
        release.save(tmp_path / "rule.safetensors")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(FEATURE_MAPS, "raw", own_maps.RawCovariates)
    back = load_release(release.save(tmp_path / "rule.safetensors"))
    grid = domain.grid(50)
    torch.testing.assert_close(back.score_tensor(grid), release.score_tensor(grid), rtol=1e-12, atol=1e-12)
    assert back.privacy.conditions == release.privacy.conditions


def test_queries_and_services_on_a_user_s_map_are_conditional(tmp_path, monkeypatch):
    fitted = CASES["map of a head"]().fit(*records())
    part = PrivacyBudget(1.0, 1e-6)
    assert "Vouching" in str(fitted.release_queries([[0.5, 0.0]], "output", part).privacy.conditions)
    spent = fitted.ledger_.spent()
    with pytest.raises(InputError, match="has no name"):
        fitted.answer_online(tmp_path / "unnamed", budget=part)
    assert fitted.ledger_.spent() == spent
    assert not (tmp_path / "unnamed").exists()
    monkeypatch.setitem(FEATURE_MAPS, "mine", own_maps.Vouching)
    assert fitted.answer_online(tmp_path / "service", budget=part).privacy.level == "conditional"


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
