"""Which outcomes are good: rules and choices of a policy need to be told, and keep to it."""

import pytest
import torch

from tests.estimators.families import BUDGET, TRIALS, made
from tests.verify import forgeries as forge
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

N = 4000
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.5]), Thresholds("x0", [0.5], above=0, below=1)]
DECIDING = {
    "weighted rule": {"outcome": "shifted"},
    "fixed policies": {"policies": POLICIES},
    "rule": {},
    "two stages": {},
    "policies": {"policies": POLICIES},
}


def learner(name: str, better: str | None):
    """Return a learner of rules for pain from 0 to 10."""
    known = {"propensity": 0.5} if name in (*TRIALS, "rule") else {}
    return made(name, Domain([0.0, 0.0], [1.0, 1.0], 0.0, 10.0, overlap=0.4, better=better, **known), **DECIDING[name])


def pain() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return records of a trial in which the drug lessens pain where x0 is above one half, and adds to it below."""
    random = torch.Generator().manual_seed(5)
    x = torch.rand(N, 2, generator=random, dtype=torch.float64)
    a = (torch.rand(N, generator=random, dtype=torch.float64) < 0.5).double()
    y = 5 - 5 * (a - 0.5) * (2 * x[:, 0] - 1) + torch.rand(N, generator=random, dtype=torch.float64)
    return x, a, y


@pytest.mark.parametrize("name", DECIDING)
def test_without_a_direction_nothing_is_spent(name):
    told = learner(name, None)
    with pytest.raises(InputError, match=r"better: lower to the outcome in the domain file"):
        told.fit(*pain())
    assert not hasattr(told, "ledger_")


def test_an_effect_needs_no_direction_and_its_rule_does():
    domain = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 10.0, propensity=0.5)
    release = made("effect", domain, BUDGET).fit(*pain()).release_function()
    with pytest.raises(InputError, match="better"):
        release.rule()


@pytest.mark.first(4)
@pytest.mark.parametrize("name", DECIDING)
def test_who_is_treated_is_better_off(name, tmp_path):
    release = learner(name, "lower").fit(*pain()).release()
    x = torch.tensor([[0.05, 0.5], [0.95, 0.5]], dtype=torch.float64)
    assert release.decide(x).tolist() == [0, 1]
    path = release.save(tmp_path / "r.safetensors")
    verify_release(path)
    assert load_release(path).privacy.bounds["better_outcomes"] == "lower"
    assert "better outcomes: lower" in release.privacy.to_markdown()


def test_a_reader_may_not_be_told_another_direction(tmp_path):
    def turned(draft):
        draft.schema["outcome"]["better"] = "higher"

    written = forge.written({"rule": lambda: learner("weighted rule", "lower").fit(*pain()).release()}, tmp_path)
    with pytest.raises(VerificationError, match="its bounds"):
        verify_release(forge.forged(written("rule"), turned, tmp_path / "turned.safetensors"))


def test_a_budget_of_treatments_goes_to_who_gains_most():
    release = learner("rule", "lower").fit(*pain()).release().effect
    population = torch.tensor([[0.6, 0.5], [0.7, 0.5], [0.8, 0.5], [0.95, 0.5]], dtype=torch.float64)
    rule = release.rule(budget=0.25, population=population)
    assert rule.decide(population).tolist() == [0, 0, 0, 1]
    assert release.rule(cost=9.0).decide(population).tolist() == [0, 0, 0, 0]
