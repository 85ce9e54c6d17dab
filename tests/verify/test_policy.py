"""A statement of a chosen policy that contradicts itself does not verify."""

from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.forgeries import refusal, with_public
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import FunctionPolicies
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.fit.arms.fixed import FixedNuisances, FrozenNuisances
from torchdpcate.fit.arms.stable import StableNuisances
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Purpose
from torchdpcate.release.rule import PolicyRelease
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, better="higher")


def released(policies=None, **settings) -> PolicyRelease:
    x, a = torch.rand(400, 1, dtype=torch.float64), torch.arange(400) % 2
    policies = policies or [Thresholds("x0", [0.4, 0.6])]
    settings = {"nuisance_guarantee": None if "nuisance" in settings else "stability"} | settings
    selector = PolicySelector(DOMAIN, PrivacyBudget(1.0, 1e-6), policies=policies, **settings)
    return selector.fit(x, a, torch.zeros(400)).release()


def with_blocks(release: PolicyRelease, change) -> PolicyRelease:
    return replace(release, privacy=replace(release.privacy, blocks=tuple(map(change, release.privacy.blocks))))


PURE, SOME = PrivacyBudget(1.0, 0.0), PrivacyBudget(1.0, 1e-6)
KNOWN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, propensity=0.4, better="higher")
COUNTS = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0, overlap=0.1, outcome_kind="binary", better="higher")
THREE = {"actions": (0, 1, 2), "policies": [Constants([0, 1, 2])]}
SETTINGS = {
    "stability": (DOMAIN, PURE, {"nuisance_guarantee": "stability"}),
    "stability, public target": (DOMAIN, PURE, {"nuisance": StableNuisances(target={"propensity": 0.4})}),
    "stability, no target": (DOMAIN, PURE, {"nuisance": StableNuisances(target=None, constants="bounded_range")}),
    "stability of three arms": (DOMAIN, PURE, {"nuisance_guarantee": "stability", **THREE}),
    "stability, exponential": (DOMAIN, PURE, {"nuisance_guarantee": "stability", "mechanism": "exponential"}),
    "private": (DOMAIN, SOME, {"nuisance_guarantee": "private_nuisances"}),
    "private of three arms": (DOMAIN, SOME, {"nuisance_guarantee": "private_nuisances", **THREE}),
    "fixed": (DOMAIN, PURE, {"nuisance": FixedNuisances(propensity=0.4, outcome=0.5)}),
    "fixed, known": (KNOWN, PURE, {"nuisance_guarantee": "fixed", "mechanism": "exponential"}),
    "centred": (KNOWN, PURE, {}),
    "centred, clipped at half": (KNOWN, PrivacyBudget(8.0, 0.0), {"nuisance_guarantee": "centred"}),
    "composed": (DOMAIN, SOME, {}),
    "composed, pure": (DOMAIN, PURE, {}),
    "composed, binary": (COUNTS, SOME, {}),
    "composed, given clip": (DOMAIN, SOME, {"nuisance": ComposedScores(clip=3.0)}),
    "composed, by noisy max": (DOMAIN, SOME, {"mechanism": "permute_and_flip"}),
    "composed of three arms": (DOMAIN, SOME, THREE),
}
OF_SCORES = ("seed", "learner", "policy", "centre")  # the last is a released number
FREE = {name: ("policies",) for name in SETTINGS if not name.startswith("composed")} | {
    "stability of three arms": ("policies", "target_outcome"),  # the bound follows from the farthest one
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
    default = ("composed",)
    untold = OF_SCORES
    untold_in = FREE


@pytest.mark.parametrize(
    "public",
    [
        {"nuisance_guarantee": "fixed"},
        {"nuisance_guarantee": "private_nuisances"},
        {"range_sensitivity": "wide"},
    ],
)
def test_constants_that_contradict_each_other(public, tmp_path):
    assert "plan" in refusal(with_public(released(), **public), tmp_path)


def known_effect(x):
    return np.hstack([0.5 * x, 0.2 + 0.5 * x])


FROZEN = {
    "functions": FrozenNuisances(lambda x: 0.2 + 0.6 * x[:, 0], lambda x: np.hstack([x, 1 - x])),
    "one function": FrozenNuisances(0.4, known_effect),
    "numbers of arms": FrozenNuisances([0.6, 0.4], known_effect),
}


class OwnRecipe(ConvexNuisanceConfig):
    """A user's."""


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_nuisances_verify_with_the_range_of_what_is_known_of_them(name, tmp_path):
    release = released(nuisance=FROZEN[name])
    assert "conditional" in dict(verify_release(release.save(tmp_path / "honest.safetensors")))["level"]
    wide = release.privacy.public["range_sensitivity"]
    assert "range_sensitivity" in refusal(with_public(release, range_sensitivity=wide / 2), tmp_path)
    assert "choice" in refusal(with_public(release, choice_epsilon=2.0), tmp_path)


def test_private_nuisances_of_a_users_recipe_are_conditional(tmp_path):
    release = released(nuisance=OwnRecipe(), nuisance_guarantee="private_nuisances")
    assert "conditional" in dict(verify_release(release.save(tmp_path / "honest.safetensors")))["level"]

    def unpaid(block):
        if block.name != "nuisance":
            return block
        return replace(block, charges=(), epsilon=0.0, naive_epsilon=0.0, delta=0.0)

    assert "no charge is for their training" in refusal(with_blocks(release, unpaid), tmp_path)
    assert "certified" in refusal(replace(release, privacy=certified(release)), tmp_path)


def certified(release):
    claim = release.privacy.claim.replace("conditional", "certified")
    return replace(release.privacy, level="certified", conditions=[], claim=claim)


@pytest.mark.slow
def test_private_networks_verify(tmp_path):
    recipe = NuisanceConfig(epochs=2, batch_size=50)
    release = released(nuisance=recipe, nuisance_guarantee="private_nuisances")
    verify_release(release.save(tmp_path / "honest.safetensors"))
    assert "are not those of one release" in refusal(with_public(release, requested_epsilon=1e9), tmp_path)


def test_a_training_block_that_did_not_pay(tmp_path):
    release = released()

    def unpaid(block):
        if block.name != "nuisance":
            return block
        kept = tuple(charge for charge in block.charges if charge.purpose is not Purpose.RELEASE)
        return replace(block, charges=kept, epsilon=0.0, naive_epsilon=0.0, delta=0.0)

    assert "choice of training records" in refusal(with_blocks(release, unpaid), tmp_path)


def test_a_guess_that_is_called_bought(tmp_path):
    free = released(nuisance=StableNuisances(target=None))
    assert "plan" in refusal(with_public(free, target="private"), tmp_path)
    paid = {"target": "private", "choice_share": 0.9, "requested_epsilon": 1.0}
    assert "arms: its charges" in refusal(with_public(free, **paid), tmp_path)


def upper(x):
    return x[:, 0] > 0.5


def lower(x):
    return x[:, 0] <= 0.5


def test_a_python_function_that_is_called_certified(tmp_path):
    release = released([FunctionPolicies([upper, lower])], nuisance_guarantee="fixed")
    assert "Python functions" in refusal(replace(release, privacy=certified(release)), tmp_path)
