"""Released rules that contradict themselves do not verify; honest ones do."""

from functools import cache
from typing import ClassVar

import pytest

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.registered import OutcomeWeightedLearner, TwoStageRule
from tests.verify import test_file
from tests.verify.forgeries import refusal, with_public
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.weights.private import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.rule import RuleRelease
from torchdpcate.verify.file import verify_release

PURE, SOME = PrivacyBudget(4.0, 0.0), PrivacyBudget(4.0, 1e-5)
SETTINGS = {
    "owl": (OutcomeWeightedLearner, PURE, {}),
    "shifted": (OutcomeWeightedLearner, PURE, {"mechanism": "output", "outcome": "shifted"}),
    "gaussian": (OutcomeWeightedLearner, SOME, {"perturbation": "gaussian", "loss": "logistic"}),
    "gamma": (OutcomeWeightedLearner, PURE, {"perturbation": "gamma", "outcome": "signed_residual"}),
    "logistic": (OutcomeWeightedLearner, PrivacyBudget(0.5, 0.0), {"loss": "logistic", "ridge": 500.0}),
    "squared": (OutcomeWeightedLearner, PURE, {"loss": "squared", "radius": 1.0}),
    "private weights": (TwoStageRule, PURE, {"loss": "logistic"}),
    "weights of a block": (TwoStageRule, PURE, {"weights": PrivateWeights(block_fraction=0.25)}),
    "gaussian weights": (
        TwoStageRule,
        SOME,
        {
            "weights": PrivateWeights(perturbation="gaussian", features=Legendre(2)),
            "mechanism": "output",
            "perturbation": "gaussian",
        },
    ),
    "inverse propensity": (TwoStageRule, PrivacyBudget(40.0, 1e-5), {"weights": "ipw", "mechanism": "output"}),
    "mmd": (TwoStageRule, PrivacyBudget(40.0, 0.0), {"weights": "mmd", "mechanism": "output"}),
    "constant weights": (TwoStageRule, PURE, {"weights": "constant", "radius": 2.0}),
}


@cache
def released(name: str) -> RuleRelease:
    learner, budget, settings = SETTINGS[name]
    rule, data = learner(test_file.DOMAIN, budget, **settings), test_file.records()
    return rule.fit(data.x, data.a, data.y).release()


class TestContract(PlanContract):
    made: ClassVar = {name: lambda name=name: released.__wrapped__(name) for name in SETTINGS}
    default = ("owl",)
    untold = ("features", "seed", "outcome_low", "outcome_high", "outcome_centre", "outcome_clip", "radius")
    untold += ("weights_bandwidth",)
    untold_in: ClassVar = {  # public constants of the user's; and of the budget something may be left
        "shifted": ("epsilon",),
        "gaussian": ("delta",),
        "gamma": ("epsilon",),
    }


def test_several_rules_of_one_fit_verify_while_the_budget_lasts(tmp_path):
    data, half = test_file.records(), PrivacyBudget(1.5, 0.0)
    learner = OutcomeWeightedLearner(test_file.DOMAIN, PURE).fit(data.x, data.a, data.y)
    for number, release in enumerate([learner.release(half), learner.release(half), learner.release()]):
        verify_release(release.save(tmp_path / f"{number}.safetensors"))
        assert release.privacy.epsilon == pytest.approx((1.9, 3.4, 4.0)[number])
    twice = with_public(release, epsilon=3.9)
    assert "cost more than the budget that was requested" in refusal(twice, tmp_path)


class Steep(HuberHinge):
    """A loss of a user's with a wider corner."""

    curvature = 2.0


def test_bounds_of_a_loss_of_the_user_s_are_those_of_its_noise(tmp_path):
    data = test_file.records()
    learner = OutcomeWeightedLearner(test_file.DOMAIN, PURE, loss=Steep(0.25)).fit(data.x, data.a, data.y)
    release = learner.release()
    assert release.privacy.level == "conditional"
    verify_release(release.save(tmp_path / "release.safetensors"))
    for name in ("loss_slope", "loss_curvature"):
        assert "perturbation_scale" in refusal(with_public(release, **{name: 0.5}), tmp_path)
