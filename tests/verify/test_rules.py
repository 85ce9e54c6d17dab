from functools import cache
from typing import ClassVar

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.registered import OutcomeWeightedLearner, TwoStageRule
from tests.verify import test_file
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.weights import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.rule import RuleRelease

PURE, SOME = PrivacyBudget(4.0, 0.0), PrivacyBudget(4.0, 1e-5)
SETTINGS = {
    "owl": (OutcomeWeightedLearner, PURE, {}),
    "shifted": (OutcomeWeightedLearner, PURE, {"mechanism": "output", "outcome": "shifted"}),
    "with delta": (OutcomeWeightedLearner, SOME, {}),
    "signed": (OutcomeWeightedLearner, PURE, {"outcome": "signed_residual"}),
    "private weights": (TwoStageRule, PURE, {}),
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
