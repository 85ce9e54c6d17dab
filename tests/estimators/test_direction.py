"""Which outcomes are good: rules and choices of a policy need to be told, and keep to it."""

import pytest
import torch

from tests.registered import EffectRule, OutcomeWeightedLearner, PolicySelector, RLearner, TwoStageRule
from tests.verify import forgeries as forge
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

N = 4000
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.5]), Thresholds("x0", [0.5], above=0, below=1)]
LEARNERS = {
    "effect": (EffectRule, {}, 1e-5),
    "owl": (OutcomeWeightedLearner, {}, 0.0),
    "owl shifted": (OutcomeWeightedLearner, {"outcome": "shifted"}, 0.0),
    "two stage": (TwoStageRule, {}, 0.0),
    "composed choice": (PolicySelector, {"policies": POLICIES, "nuisance_guarantee": "composed"}, 1e-5),
    "choice by centred scores": (PolicySelector, {"policies": POLICIES}, 0.0),
}
KNOWN = ("effect", "owl", "owl shifted", "choice by centred scores")


def domain(better: str | None, known: bool = False) -> Domain:
    """Return a domain of pain from 0 to 10."""
    facts = {"propensity": 0.5} if known else {}
    return Domain([0.0, 0.0], [1.0, 1.0], 0.0, 10.0, overlap=0.4, better=better, **facts)


def pain() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return records of a trial in which the drug lessens pain where x0 is above one half, and adds to it below."""
    random = torch.Generator().manual_seed(5)
    x = torch.rand(N, 2, generator=random, dtype=torch.float64)
    a = (torch.rand(N, generator=random, dtype=torch.float64) < 0.5).double()
    y = 5 - 5 * (a - 0.5) * (2 * x[:, 0] - 1) + torch.rand(N, generator=random, dtype=torch.float64)
    return x, a, y


def released(name: str, better: str):
    """Return what a learner releases of these records."""
    kind, settings, delta = LEARNERS[name]
    learner = kind(domain(better, name in KNOWN), PrivacyBudget(8.0, delta), **settings)
    return learner.fit(*pain()).release()


@pytest.mark.parametrize("name", LEARNERS)
def test_without_a_direction_nothing_is_spent(name):
    kind, settings, delta = LEARNERS[name]
    learner = kind(domain(None, name in KNOWN), PrivacyBudget(8.0, delta), **settings)
    with pytest.raises(InputError, match=r"better: lower to the outcome in the domain file"):
        learner.fit(*pain())
    assert not hasattr(learner, "ledger_")


def test_an_effect_needs_no_direction_and_its_rule_does():
    release = RLearner(domain(None, known=True), PrivacyBudget(8.0, 1e-5)).fit(*pain()).release_function()
    with pytest.raises(InputError, match="better"):
        release.rule()


@pytest.mark.first(4)
@pytest.mark.parametrize("name", LEARNERS)
def test_who_is_treated_is_better_off(name, tmp_path):
    release = released(name, "lower")
    x = torch.tensor([[0.05, 0.5], [0.95, 0.5]], dtype=torch.float64)
    assert release.decide(x).tolist() == [0, 1]
    path = release.save(tmp_path / "r.safetensors")
    verify_release(path)
    assert load_release(path).privacy.bounds["better_outcomes"] == "lower"
    assert "better outcomes: lower" in release.privacy.to_markdown()


def test_a_reader_may_not_be_told_another_direction(tmp_path):
    def turned(draft):
        draft.schema["outcome"]["better"] = "higher"

    made = forge.written({"owl": lambda: released("owl", "lower")}, tmp_path)
    with pytest.raises(VerificationError, match="its bounds"):
        verify_release(forge.forged(made("owl"), turned, tmp_path / "turned.safetensors"))


def test_a_budget_of_treatments_goes_to_who_gains_most():
    release = released("effect", "lower").effect
    population = torch.tensor([[0.6, 0.5], [0.7, 0.5], [0.8, 0.5], [0.95, 0.5]], dtype=torch.float64)
    rule = release.rule(budget=0.25, population=population)
    assert rule.decide(population).tolist() == [0, 0, 0, 1]
    assert release.rule(cost=9.0).decide(population).tolist() == [0, 0, 0, 0]
