from dataclasses import replace
from functools import cache
from typing import ClassVar

import torch

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.forgeries import refusal
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import FunctionPolicies
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.rule import PolicyRelease

DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, better="higher")


def released(policies=None, **settings) -> PolicyRelease:
    x, a = torch.rand(400, 1, dtype=torch.float64), torch.arange(400) % 2
    policies = policies or [Thresholds("x0", [0.4, 0.6])]
    settings = {"nuisance_guarantee": None if "nuisance" in settings else "fixed"} | settings
    selector = PolicySelector(DOMAIN, PrivacyBudget(1.0, 1e-6), policies=policies, **settings)
    return selector.fit(x, a, torch.zeros(400)).release()


PURE, SOME = PrivacyBudget(1.0, 0.0), PrivacyBudget(1.0, 1e-6)
KNOWN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, propensity=0.4, better="higher")
COUNTS = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0, overlap=0.1, outcome_kind="binary", better="higher")
THREE = {"actions": (0, 1, 2), "policies": [Constants([0, 1, 2])]}
SETTINGS = {
    "fixed": (DOMAIN, PURE, {"nuisance": FixedNuisances(propensity=0.4, outcome=0.5)}),
    "fixed, known": (KNOWN, PURE, {"nuisance_guarantee": "fixed"}),
    "centred": (KNOWN, PURE, {}),
    "centred, clipped at half": (KNOWN, PrivacyBudget(8.0, 0.0), {"nuisance_guarantee": "centred"}),
    "composed": (DOMAIN, SOME, {}),
    "composed, pure": (DOMAIN, PURE, {}),
    "composed, binary": (COUNTS, SOME, {}),
    "composed, given clip": (DOMAIN, SOME, {"nuisance": ComposedScores(clip=3.0)}),
    "composed of three arms": (DOMAIN, SOME, THREE),
}
OF_SCORES = ("learner", "policy", "centre")  # the last is a released number
FREE = {name: ("policies",) for name in SETTINGS if not name.startswith("composed")} | {
    "centred, clipped at half": ("policies", "requested_epsilon"),  # its centre costs 60/n, whatever epsilon is
    "composed, given clip": ("policies", "residual_scale"),  # which are needed for a clip that is not given
}


@cache
def made(name: str) -> PolicyRelease:
    domain, budget, settings = SETTINGS[name]
    arms = len(settings.get("actions", (0, 1)))
    x, a = torch.rand(400, 1, dtype=torch.float64), torch.arange(400) % arms
    settings = {"policies": [Thresholds("x0", [0.4, 0.6])]} | settings
    return PolicySelector(domain, budget, **settings).fit(x, a, (x[:, 0] > 0.5).double()).release()


class TestContract(PlanContract):
    made: ClassVar = {name: lambda name=name: made.__wrapped__(name) for name in SETTINGS}
    default = ("centred",)
    untold = OF_SCORES
    untold_in = FREE


def certified(release):
    claim = release.privacy.claim.replace("conditional", "certified")
    return replace(release.privacy, level="certified", conditions=[], claim=claim)


def upper(x):
    return x[:, 0] > 0.5


def lower(x):
    return x[:, 0] <= 0.5


def test_a_python_function_that_is_called_certified(tmp_path):
    release = released([FunctionPolicies([upper, lower])], nuisance_guarantee="fixed")
    assert "Python functions" in refusal(replace(release, privacy=certified(release)), tmp_path)
