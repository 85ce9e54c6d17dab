"""Plans whose effect is requested its sign: what they request, what they spend, and the regret to expect."""

import math

import pytest
import torch

from torchdpcate.composition.builder import composed_plan, plan_of, rebuilt, retained_of, steps_of
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.plan_numbers import numbers_of
from torchdpcate.composition.planned import planned_regret
from torchdpcate.composition.priors import expected_error, pure_filling, water_filling
from torchdpcate.privacy.budget import PrivacyBudget

ONE, CONSTANTS = PrivacyBudget(1.0, 1e-5), RuleConstants()


def plan(n: int, budget: PrivacyBudget = ONE, covariates: int = 6, **settings) -> ComposedPlan:
    return composed_plan(n, budget, covariates, **{"constants": CONSTANTS, **settings})


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.3])
def test_water_filling_with_a_prior_of_the_constant_has_the_least_error(noise):
    prior, constant = torch.tensor([0.5, 0.2, 0.02], dtype=torch.float64), 0.6
    everything = torch.cat([torch.tensor([constant], dtype=torch.float64), prior])

    def error(feature_weights: torch.Tensor) -> float:
        return float((everything * noise / (everything * feature_weights + noise)).sum())

    first, rest = water_filling(prior, noise, constant)
    feature_weights = torch.cat([torch.tensor([first], dtype=torch.float64), rest])
    assert float(feature_weights.sum()) == pytest.approx(1.0)
    assert error(feature_weights) == pytest.approx(sum(expected_error(prior, noise, constant)))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        other = torch.rand(4, generator=generator, dtype=torch.float64).log()
        assert error(0.9 * feature_weights + 0.1 * other / other.sum()) >= error(feature_weights) - 1e-12


@pytest.mark.slow
def test_the_planned_regret_is_that_of_its_prior():
    """Against draws of effects by the prior and of scores with the planned noise; false alarm < 1e-6."""
    requested = plan(1_500)
    regression, runs = requested.effect(), 200_000
    generator = torch.Generator().manual_seed(2)
    prior = torch.cat([torch.tensor([CONSTANTS.constant_variance], dtype=torch.float64), regression.prior])
    rest = CONSTANTS.linear_variance - float(regression.prior.sum())
    noise = 1.3**2 * regression.noise / regression.basis.feature_weights

    def normal(size: int) -> torch.Tensor:
        return torch.randn(runs, size, generator=generator, dtype=torch.float64)

    lost, alone = torch.zeros(runs, dtype=torch.float64), torch.zeros(runs, dtype=torch.float64)
    sizes = CONSTANTS.effect_sizes
    for size in sizes:
        known = size * normal(len(prior)) * prior.sqrt()
        effect = known.sum(1) + size * math.sqrt(rest) * normal(1)[:, 0]
        score = (known + normal(len(prior)) * noise.sqrt()).sum(1)
        lost += (effect.clamp_min(0) - effect * (score > 0)) / sum(sizes)
        alone += (effect.clamp_min(0) - effect * (known[:, 0] > 0)) / sum(sizes)
    planned = planned_regret(requested)
    assert abs(float(lost.mean()) - planned.rule) < 5.5 * float(lost.std()) / math.sqrt(runs)
    assert abs(float(alone.mean()) - planned.constant) < 5.5 * float(alone.std()) / math.sqrt(runs)


def test_the_planned_regret_falls_with_records_and_budget():
    for values in (
        [planned_regret(plan(n)).rule for n in (100, 300, 1_000, 3_000, 10_000, 100_000)],
        [planned_regret(plan(2_000, PrivacyBudget(e, 1e-5))).rule for e in (0.1, 0.5, 1.0, 4.0, 16.0)],
    ):
        assert values == sorted(values, reverse=True)


@pytest.mark.first(1)
@pytest.mark.parametrize("covariates", [2, 6, 30])
@pytest.mark.parametrize("n", [150, 400, 1_000])
def test_no_other_number_of_covariates_and_no_constant_rule_has_less_planned_regret(n, covariates):
    requested = plan(n, covariates=covariates)
    here = planned_regret(requested).rule
    full, reduced = (numbers_of(requested.made_of, reduced=reduced) for reduced in (False, True))
    either = [planned_regret(plan_of(steps_of(numbers, retained_of(numbers)))).rule for numbers in (full, reduced)]
    assert here == either[0] if covariates > CONSTANTS.most else here == min(either)
    assert requested.form == "constant" or here < planned_regret(rebuilt(requested, constant_only=True)).rule
    for k in range(1, min(covariates, 12) + 1):
        assert here <= planned_regret(plan_of(steps_of(full, k))).rule + 1e-12


def test_pure_filling_with_a_prior_of_the_constant_is_what_its_features_need():
    prior, unit, constant = torch.tensor([0.5, 0.3, 0.001], dtype=torch.float64), 0.01, 0.6
    found = pure_filling(prior, unit, constant)
    requested = int((found.feature_weights > 0).sum())
    own, feature_weights = water_filling(prior[:requested], unit * (2 + requested) / 2, constant)
    assert found.constant == pytest.approx(own)
    torch.testing.assert_close(found.feature_weights[:requested], feature_weights)
    rest = float((prior * found.noise / (prior * found.feature_weights + found.noise)).sum())
    alone = constant * found.noise / (constant * found.constant + found.noise)
    assert found.error == pytest.approx(alone + rest)
