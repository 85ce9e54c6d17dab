import math

import pytest
import torch

from tests.verify import forgeries as forge
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.composed import ComposedRule
from torchdpcate.verify.file import verify_release

N, BUDGET, PURE = 600, PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0, 0.0)
DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, better="higher")
WIDE = Domain([0.0] * 13, [1.0] * 13, -1.0, 1.0, overlap=0.25, better="higher")
TRIAL = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, propensity=0.5, better="higher")

PAIRED = PlanConstants(pair_size=1.0, head_variance=3.0)


class OwnSolver(NoisyNewton):
    """A user's."""


def fitted(domain: Domain = DOMAIN, budget: PrivacyBudget = BUDGET, **settings) -> RLearner:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(N, domain.dimension, generator=generator, dtype=torch.float64)
    x[:, 1] += settings.pop("alike", 0.0) * (x[:, 0] - x[:, 1])
    a = (torch.rand(N, generator=generator) < 0.5).double()
    y = ((2 * a - 1) * (x[:, 0] - 0.3) + 0.2 * torch.rand(N, generator=generator, dtype=torch.float64)).clamp(-1, 1)
    records = CausalData(x, a, y)
    noise = settings.pop("noise", None)
    learner = RLearner(domain, budget, second_stage=AdaptiveSecondStage(**settings), noise=noise)
    return learner.fit(records.x, records.a, records.y)


def planned_rule(budget: PrivacyBudget) -> ComposedRule:
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.5).double()
    return EffectRule(TRIAL, budget).fit(x, a, ((2 * a - 1) * (x[:, 0] - 0.5)).clamp(-1, 1)).release()


MADE = {
    "function": lambda: fitted().release_function(),
    "constant": lambda: fitted(constant_only=True).release_function(),
    "small budget": lambda: fitted(budget=PrivacyBudget(0.3, 1e-6)).release_function(),
    "chosen covariates": lambda: fitted(WIDE).release_function(),
    "trial": lambda: fitted(TRIAL).release_function(),
    "pairs": lambda: fitted(constants=PAIRED).release_function(),
    "pairs, chosen covariates": lambda: fitted(WIDE, constants=PAIRED).release_function(),
    "pairs of a trial": lambda: fitted(TRIAL, constants=PAIRED).release_function(),
    "collinear": lambda: fitted(budget=PrivacyBudget(60.0, 1e-5), alike=0.8).release_function(),
    "queries": lambda: fitted().release_queries(torch.rand(5, 2, dtype=torch.float64)),
    "rule": lambda: fitted().release_function().rule(cost=0.1, budget=0.3, population=DOMAIN.grid(64)),
    "planned rule": lambda: planned_rule(BUDGET),
    "small planned rule": lambda: planned_rule(PrivacyBudget(1.0, 1e-5)),
    "wide, one number": lambda: fitted(WIDE, constant_only=True).release_function(),
    "fixed noise": lambda: fitted(noise=NoiseSource.fixed(0)).release_function(),
    "pure": lambda: fitted(budget=PURE).release_function(),
    "pure and constant": lambda: fitted(budget=PrivacyBudget(0.5, 0.0)).release_function(),
    "pure trial": lambda: fitted(TRIAL, budget=PURE).release_function(),
    "pure, chosen covariates": lambda: fitted(WIDE, budget=PrivacyBudget(8.0, 0.0)).release_function(),
    "own solver": lambda: fitted(solver=OwnSolver()).release_function(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the path of a release of a kind, in a folder as a run writes it; made once."""
    return forge.written(MADE, tmp_path_factory.mktemp("composed"))


@pytest.mark.parametrize("kind", ["queries", "fixed noise", "own solver"])  # the others keep the contract of plans
def test_an_honest_release_verifies(kind, made):
    assert "3 files match" in dict(verify_release(made(kind)))["SHA256SUMS"]


def test_code_of_the_user_s_is_conditional():
    privacy = MADE["own solver"]().privacy
    assert privacy.level == "conditional"
    assert [condition["name"] for condition in privacy.conditions] == ["second stage"]
    assert {charge.level for charge in privacy.charges} == {"conditional"}


def test_its_ledger_is_the_plan_s():
    learner = fitted()
    squared = {}
    for entry in learner.ledger_.entries:
        part = entry.charge.part
        squared[part] = squared.get(part, 0.0) + entry.count / entry.event.noise_multiplier**2
    shares = learner.plan_.shares
    assert list(squared) == ["centre", "outcome scale", *[name for name in squared if name in shares.shares][2:]]
    assert squared == pytest.approx({step: shares.of(step) ** 2 for step in shares.shares}, rel=1e-8)
    assert math.fsum(squared.values()) <= learner.plan_.shares.total**2
    assert math.fsum(shares.shares.values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("budget", [PURE, PrivacyBudget(0.5, 0.0)])
def test_a_pure_ledger_is_the_plan_s_and_adds_up_to_epsilon(budget):
    learner = fitted(budget=budget)
    spent = {}
    for entry in learner.ledger_.entries:
        spent[entry.charge.part] = spent.get(entry.charge.part, 0.0) + entry.count * entry.event.epsilon
    shares = learner.plan_.shares
    assert spent == pytest.approx({step: budget.epsilon * share for step, share in shares.shares.items()}, rel=1e-8)
    assert budget.epsilon * (1 - 1e-8) <= math.fsum(spent.values()) <= budget.epsilon
    assert learner.ledger_.spent()["records"]["delta"] == 0.0
