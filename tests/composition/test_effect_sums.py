"""A rule's effect by sums: its noise, its plan, and what its release is held against."""

import math

import pytest
import torch

from tests.composition.cases import rows
from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.pure_fits import (
    CLIP,
    OBJECTIVE,
    PUBLIC_SUMS,
    SUMS,
    EffectSums,
    clip_slopes,
    clipped,
    private_sums,
    sums_regression,
)
from torchdpcate.composition.steps import EpsilonShares, NoisySteps
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.verify.file import verify_release

ONE, CONSTANTS = PrivacyBudget(1.0, 0.0), RuleConstants()


def plan(n: int, covariates: int = 4, **settings) -> ComposedPlan:
    return composed_plan(n, ONE, covariates, **{"constants": CONSTANTS, **settings})


def test_the_slope_is_that_of_normal_covariates():
    z = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    mean = torch.trapezoid(z * (z / CLIP).clamp(-1, 1) * density, z)
    assert float(clip_slopes([False], looked_at=True)) == pytest.approx(float(mean), rel=1e-6)


def test_whatever_the_records_sums_move_by_at_most_two():
    generator = torch.Generator().manual_seed(2)
    z = 9 * torch.randn(500, 3, generator=generator, dtype=torch.float64)
    features, half = clipped(z, looked_at=True), torch.full((500,), 0.5).double()
    assert float(features.abs().max()) == 1.0
    steps = NoisySteps(FitSession(NoiseSource.fixed(1)), EpsilonShares(1e6, {"effect": 1.0}))
    records = rows(z, 9 * half, 7 * half, half)  # pulls out of range are cut
    found = private_sums(records, EffectSums(1.0, 3, True), "effect", steps)
    torch.testing.assert_close(found, features.sum(0), rtol=0, atol=0.01)


@pytest.mark.slow
def test_planned_variances_are_those_of_draws():
    runs, epsilon, n = 1_500, 0.5, 10
    steps = NoisySteps(FitSession(NoiseSource.fixed(3)), EpsilonShares(epsilon, {"effect": 1.0}))
    records, sums = rows(torch.ones(n, 2).double(), pi=torch.full((n,), 0.5).double()), EffectSums(1.0, 2, True)
    draws = torch.stack([private_sums(records, sums, "effect", steps) for _ in range(runs)])
    planned = sums_regression([False, False], 2 / epsilon, 1.0)
    slopes = torch.tensor([1.0, *clip_slopes([False, False], looked_at=True).tolist()]).double()
    ratio = (draws / slopes).square().mean(0) / (planned.noise / planned.basis.feature_weights)
    assert bool(((ratio - 1).abs() < 0.3).all())  # six standard errors are 0.26
    assert float(planned.basis.feature_weights.sum()) == pytest.approx(1.0)


def records(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator) < 0.5).double()
    return x, a, ((2 * a - 1) * (x[:, 0] - 0.5) * 2).clamp(-1, 1)


@pytest.mark.parametrize(
    ("propensity", "n", "epsilon", "way"),
    [(0.5, 50, 0.02, PUBLIC_SUMS), (None, 100, 0.5, PUBLIC_SUMS), (None, 400, 1.0, SUMS)],
)
def test_releases_cost_the_budget_and_verify(propensity, n, epsilon, way, tmp_path):
    domain = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25, propensity=propensity, better="higher")
    learner = EffectRule(domain, PrivacyBudget(epsilon, 0.0)).fit(*records(n))
    assert learner.plan_.way == way
    assert math.fsum(e.count * e.event.epsilon for e in learner.ledger_.entries) == pytest.approx(epsilon, rel=1e-6)
    rule = learner.release()
    assert (rule.privacy.level, rule.privacy.public["effect_by"]) == ("certified", way)
    verify_release(rule.save(tmp_path / "rule.safetensors"))
    rule.privacy.public["effect_by"] = OBJECTIVE
    with pytest.raises(Exception, match="effect_by"):
        verify_release(rule.save(tmp_path / "other.safetensors"))
