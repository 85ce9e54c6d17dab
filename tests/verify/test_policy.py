"""A statement of a chosen policy that contradicts itself does not verify."""

from dataclasses import replace

import pytest
import torch

from torchdpcate.candidates.functions import FunctionPolicies
from torchdpcate.candidates.thresholds import Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.errors import VerificationError
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.nuisance.arms.stable import StableNuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Purpose
from torchdpcate.release.policy import PolicyRelease
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1)


def released(policies=None, **settings) -> PolicyRelease:
    x, a = torch.rand(400, 1, dtype=torch.float64), torch.arange(400) % 2
    policies = policies or [Thresholds("x0", [0.4, 0.6])]
    settings = {"nuisance_guarantee": None if "nuisance" in settings else "stability"} | settings
    selector = PolicySelector(DOMAIN, PrivacyBudget(1.0, 1e-6), policies=policies, **settings)
    return selector.fit(x, a, torch.zeros(400)).release()


def refused(release: PolicyRelease, folder) -> str:
    with pytest.raises(VerificationError) as problem:
        verify_release(release.save(folder / "release.safetensors", overwrite=True))
    return str(problem.value)


def with_public(release: PolicyRelease, **public) -> PolicyRelease:
    return replace(release, privacy=replace(release.privacy, public={**release.privacy.public, **public}))


def with_blocks(release: PolicyRelease, change) -> PolicyRelease:
    return replace(release, privacy=replace(release.privacy, blocks=tuple(map(change, release.privacy.blocks))))


@pytest.mark.parametrize("guarantee", ["stability", "private_nuisances", "fixed"])
def test_an_honest_release_verifies(guarantee, tmp_path):
    assert verify_release(released(nuisance_guarantee=guarantee).save(tmp_path / "release.safetensors"))


@pytest.mark.parametrize(
    ("public", "problem"),
    [
        ({"nuisance_guarantee": "none"}, "called none"),
        ({"nuisance_guarantee": "fixed"}, "blocks are not those"),
        ({"nuisance_guarantee": "private_nuisances"}, "no charge is for their training"),
        ({"range_sensitivity": 0.01}, "range sensitivity is below"),
        ({"range_sensitivity": "wide"}, "no numbers"),
        ({"policies": 0}, "among no policies"),
        ({"actions": [5, 6]}, "actions are not those"),
    ],
)
def test_constants_that_contradict_each_other(public, problem, tmp_path):
    assert problem in refused(with_public(released(), **public), tmp_path)


def test_a_training_block_that_did_not_pay(tmp_path):
    release = released()

    def unpaid(block):
        if block.name != "nuisance":
            return block
        kept = tuple(charge for charge in block.charges if charge.purpose is not Purpose.RELEASE)
        return replace(block, charges=kept, epsilon=0.0, naive_epsilon=0.0, delta=0.0)

    assert "did not pay" in refused(with_blocks(release, unpaid), tmp_path)


def test_a_guess_that_is_called_bought(tmp_path):
    free = released(nuisance=StableNuisances(target=None))
    assert "no charge is for them" in refused(with_public(free, target="private"), tmp_path)


def upper(x):
    return x[:, 0] > 0.5


def lower(x):
    return x[:, 0] <= 0.5


def test_a_python_function_that_is_called_certified(tmp_path):
    release = released([FunctionPolicies([upper, lower])], nuisance_guarantee="fixed")
    claim = release.privacy.claim.replace("conditional", "certified")
    privacy = replace(release.privacy, level="certified", conditions=[], claim=claim)
    assert "Python functions" in refused(replace(release, privacy=privacy), tmp_path)
