from functools import cache
from typing import ClassVar

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.registered import OutcomeWeightedLearner, TwoStageRule
from tests.verify import test_file
from tests.verify.forgeries import refusal, with_public
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.weights import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.rule import RuleRelease
from torchdpcate.verify.file import verify_release

PURE, SOME = PrivacyBudget(4.0, 0.0), PrivacyBudget(4.0, 1e-5)
SETTINGS = {
    "owl": (OutcomeWeightedLearner, PURE, {}),
    "shifted": (OutcomeWeightedLearner, PURE, {"mechanism": "output", "outcome": "shifted"}),
    "with delta": (OutcomeWeightedLearner, SOME, {"loss": "logistic"}),
    "signed": (OutcomeWeightedLearner, PURE, {"outcome": "signed_residual"}),
    "logistic": (OutcomeWeightedLearner, PrivacyBudget(0.5, 0.0), {"loss": "logistic", "ridge": 500.0}),
    "private weights": (TwoStageRule, PURE, {"loss": "logistic"}),
    "weights by squares": (
        TwoStageRule,
        SOME,
        {"weights": PrivateWeights(features=Legendre(2)), "mechanism": "output"},
    ),
    "constant weights": (TwoStageRule, PURE, {"weights": "constant"}),
}


@cache
def released(name: str) -> RuleRelease:
    learner, budget, settings = SETTINGS[name]
    domain = test_file.TRIAL if learner is OutcomeWeightedLearner else test_file.DOMAIN
    rule, data = learner(domain, budget, **settings), test_file.records()
    return rule.fit(data.x, data.a, data.y).release()


class TestContract(PlanContract):
    made: ClassVar = {name: lambda name=name: released.__wrapped__(name) for name in SETTINGS}
    default = ("owl",)
    untold = ("features", "outcome_low", "outcome_high", "outcome_centre", "outcome_clip")
    untold_in: ClassVar = {  # public constants of the user's; and of the budget something may be left
        "shifted": ("epsilon",),
        "with delta": ("delta",),
        "signed": ("epsilon",),
    }


class Steep(HuberHinge):
    """A loss of a user's with a wider corner."""

    curvature = 2.0


def test_bounds_of_a_loss_of_the_user_s_are_those_of_its_noise(tmp_path):
    data = test_file.records()
    learner = OutcomeWeightedLearner(test_file.TRIAL, PURE, loss=Steep(0.25)).fit(data.x, data.a, data.y)
    release = learner.release()
    assert release.privacy.level == "conditional"
    verify_release(release.save(tmp_path / "release.safetensors"))
    for name in ("loss_slope", "loss_curvature"):
        assert "perturbation_scale" in refusal(with_public(release, **{name: 0.5}), tmp_path)
