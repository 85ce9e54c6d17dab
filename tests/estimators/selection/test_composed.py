"""The choice by composed scores: its range, its charges, what public facts pick, and files that were changed."""

import pytest
import torch

from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.composition.constants import SelectionConstants
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.composed import AutoScores, ComposedScores
from torchdpcate.estimators.selection.scores import clipped_range, gains_as_scores, utilities
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.estimators.selection.worst_case import reaching_utilities
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([-3.0] * 3, [3.0] * 3, -8.0, 8.0, overlap=0.1, better="higher")
BUDGET = PrivacyBudget(4.0, 1e-5)
TRIAL = Domain([-3.0] * 3, [3.0] * 3, -8.0, 8.0, overlap=0.1, propensity=0.3, better="higher")
POLICIES = [Constants([0, 1]), Thresholds(["x0", "x1", "x2"], [0.0, 0.0, 0.0]), Thresholds("x1", [-1.0, 1.0])]


def records(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Treatment helps by x1, and is given by x0."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64).clamp(-3, 3)
    a = (torch.rand(n, generator=random, dtype=torch.float64) < torch.sigmoid(x[:, 0])).double()
    y = x[:, 0] + a * x[:, 1] + 0.5 * torch.randn(n, generator=random, dtype=torch.float64)
    return x, a, y.clamp(-8, 8)


def selector(domain: Domain = DOMAIN, budget: PrivacyBudget | None = BUDGET, **settings) -> PolicySelector:
    return PolicySelector(domain, budget, **{"policies": POLICIES, "noise": NoiseSource.fixed(0), **settings})


@pytest.fixture(scope="module")
def chosen() -> PolicySelector:
    return selector(noise=None).fit(*records(2_000))


def test_no_neighbours_move_two_policies_further_apart_than_two_clips():
    random = torch.Generator().manual_seed(0)
    library = PolicyLibrary.of(POLICIES).setup(DOMAIN, (0, 1))
    x = 6 * torch.rand(1_000, 1, 3, generator=random, dtype=torch.float64) - 3
    x2 = 6 * torch.rand(1_000, 1, 3, generator=random, dtype=torch.float64) - 3
    gains = 2 * torch.rand(1_000, 2, generator=random, dtype=torch.float64) - 1
    most = 0.0
    for k in range(1_000):
        before = utilities(gains_as_scores(gains[k, :1, None].sign()), library, x[k])
        after = utilities(gains_as_scores(gains[k, 1:, None].sign()), library, x2[k])
        most = max(most, float((after - before).max() - (after - before).min()))
    assert most == 2.0
    assert clipped_range(100, 1.0) >= 2.0


def test_the_declared_pair_reaches_two_clips():
    moved = reaching_utilities()[0] - reaching_utilities()[1]
    assert float(moved.max() - moved.min()) == 6.0


@pytest.mark.slow
def test_a_few_large_gains_open_the_clip():
    # one in twenty records gains 20 times the residual scale
    x, _, _ = records(4_000)
    random = torch.Generator().manual_seed(1)
    a = (torch.rand(4_000, generator=random) < 0.5).double()
    y = (0.1 * torch.randn(4_000, generator=random, dtype=torch.float64) + a * 6 * (x[:, 1] > 1.6)).clamp(-8, 8)
    found = selector().fit(x, a, y).composed_
    plan = found.plan
    assert plan.clips_by_quantile
    assert found.clip > 1.3 * plan.first_clip(found.scale)
    without = selector(nuisance=ComposedScores(constants=SelectionConstants(farthest=0.0)))
    assert without.fit(x, a, y).composed_.clip == pytest.approx(plan.first_clip(found.scale), rel=0.2)


@pytest.mark.parametrize(
    ("domain", "actions", "budget", "guarantee"),
    [
        (DOMAIN, (0, 1), BUDGET, "composed"),
        (DOMAIN, (0, 1), None, "composed"),
        (DOMAIN, (0, 1), PrivacyBudget(1.0, 0.0), "composed"),
        (DOMAIN, (0, 1, 2), BUDGET, "composed"),
        (TRIAL, (0, 1), BUDGET, "centred"),
        (TRIAL, (0, 1), PrivacyBudget(1.0, 0.0), "centred"),
    ],
)
def test_public_facts_pick_the_scores(domain, actions, budget, guarantee):
    assert AutoScores().chosen(domain).guarantee == guarantee
    made = PolicySelector(domain, budget, policies=[Constants(actions)], actions=actions)
    assert made.nuisances().guarantee == guarantee
    gaussian = guarantee == "composed" and (budget is None or budget.delta > 0)
    assert made.chance.name == ("exponential" if gaussian else "permute_and_flip")


PURE = PrivacyBudget(4.0, 0.0)


@pytest.fixture(scope="module")
def purely() -> PolicySelector:
    return selector(budget=PURE, noise=None).fit(*records(4_000))


def test_with_delta_zero_half_of_epsilon_finds_the_scores_and_half_chooses(purely):
    plan, release = purely.plan(4_000), purely.release()
    assert not plan.clips_by_quantile
    assert plan.eta == 2.0
    (block,) = release.privacy.blocks
    charges = [c for c in block.charges if c.event is not None]
    assert all(type(c.event) is PureEvent for c in charges)
    (choice,) = [c.event for c in charges if c.is_release("permute_and_flip")]
    assert choice.epsilon == 2.0
    steps = {c.charge.part: c.count * c.event.epsilon for c in charges if not c.is_release("permute_and_flip")}
    assert steps == {step: pytest.approx(2.0 * s, rel=1e-8) for step, s in plan.composed.shares.shares.items()}
    assert sum(steps.values()) == pytest.approx(2.0, rel=1e-8)
    assert 4.0 * (1 - 1e-8) <= release.privacy.epsilon <= 4.0
    assert release.privacy.delta == 0
    assert release.privacy.level == "certified"
    clip = purely.composed_.clip
    assert clip == pytest.approx(plan.first_clip(purely.composed_.scale))
    assert purely.mechanism_.scale == pytest.approx(clipped_range(4_000, clip) / 2.0)
