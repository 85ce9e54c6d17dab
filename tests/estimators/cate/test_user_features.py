"""CATE heads on feature maps that are not the library's: conditional in every kind of release, or refused."""

import pytest
import torch

from tests.fit import own_maps
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.feature_maps import FEATURE_MAPS, Legendre
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget

AGE = Domain([0.0], [90.0], 0.0, 1.0, overlap=0.25)
BUDGET = PrivacyBudget(4.0, 1e-5)


def records(n: int = 600):
    generator = torch.Generator().manual_seed(0)
    x, a = 90 * torch.rand(n, 1, generator=generator).double(), torch.arange(n).double() % 2
    return x, a, (0.2 + 0.3 * a * x[:, 0] / 90)


def learner(features, **settings) -> RLearner:
    stage = LinearSecondStage(features=features)
    return RLearner(AGE, BUDGET, nuisance=ConvexNuisanceConfig(), second_stage=stage, **settings)


def conditions_stated(statement) -> str:
    """The one condition of a conditional statement."""
    assert statement.level == "conditional"
    assert statement.claims
    (condition,) = statement.conditions
    assert condition["holds"] is None
    return condition["text"]


@pytest.mark.parametrize(
    "mechanism",
    [
        "objective",
        "output",
    ],
)
def test_functions_on_a_user_s_map_are_conditional(mechanism):
    fitted = learner(own_maps.RawCovariates()).fit(*records())
    assert fitted.stage_.features(AGE.grid(100)).norm(dim=1).max().item() <= 1
    release = fitted.release_function(mechanism)
    assert "features = RawCovariates" in conditions_stated(release.privacy)
    own = release.privacy.blocks[1].charges
    assert [charge.level for charge in own] == ["conditional"]
    x = AGE.grid(20)
    torch.testing.assert_close(release.features(x), fitted.stage_.features(x), rtol=0, atol=0)


def test_queries_and_services_on_a_user_s_map_are_conditional(tmp_path, monkeypatch):
    fitted = learner(own_maps.RawCovariates()).fit(*records())
    assert "RawCovariates" in conditions_stated(
        fitted.release_queries([[45.0]], "output", PrivacyBudget(1.0, 1e-6)).privacy
    )
    spent = fitted.ledger_.spent()
    with pytest.raises(InputError, match="has no name"):
        fitted.answer_online(tmp_path / "unnamed", budget=PrivacyBudget(1.0, 1e-6))
    assert fitted.ledger_.spent() == spent
    assert not (tmp_path / "unnamed").exists()
    monkeypatch.setitem(FEATURE_MAPS, "raw", own_maps.RawCovariates)
    service = fitted.answer_online(tmp_path / "service", budget=PrivacyBudget(1.0, 1e-6))
    assert "RawCovariates" in conditions_stated(service.privacy)


def test_what_does_not_rest_on_the_map_stays_certified():
    fitted = learner(own_maps.RawCovariates()).fit(*records())
    assert fitted.release_function("plug_in").privacy.level == "certified"
    assert learner(Legendre(2)).fit(*records()).release_function().privacy.level == "certified"
