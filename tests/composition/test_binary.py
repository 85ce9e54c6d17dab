"""Binary outcomes: a logistic outcome regression, no quantiles, no clipped residuals."""

import math
from dataclasses import fields, replace

import pytest
import torch

from torchdpcate import Domain, PrivacyBudget
from torchdpcate.composition.builder import composed_plan, plan_within
from torchdpcate.composition.constants import PlanConstants, RuleConstants, SelectionConstants
from torchdpcate.composition.fit_plans import effect_coefficients
from torchdpcate.composition.planned import effect_error, planned_regret
from torchdpcate.composition.priors import EmpiricalBayes
from torchdpcate.composition.steps import QUANTILES
from torchdpcate.errors import InputError

DOMAIN = Domain([-1.0, -1.0], [1.0, 1.0], 0.0, 1.0, overlap=0.1, outcome_kind="binary")


def test_no_quantile_is_asked_for():
    plan = plan_within(5_000, PrivacyBudget(1.0, 1e-5), DOMAIN)
    assert plan.binary
    assert not set(QUANTILES) & set(plan.shares.shares)
    assert abs(sum(plan.shares.shares.values()) - 1) < 1e-12


# -- prior variances: S is the outcome's range, and effects are small beside it

ONE = PrivacyBudget(1.0, 1e-5)


@pytest.mark.parametrize("constants", [PlanConstants(), RuleConstants()])
def test_prior_variances_are_a_part_of_those_of_other_outcomes(constants):
    part = constants.binary_part
    plan, other = (composed_plan(20_000, ONE, 6, constants=constants, binary=binary) for binary in (True, False))
    assert other.head_variance == constants.head_variance
    assert plan.shrinking_variance == pytest.approx(part * other.shrinking_variance, rel=1e-12)
    assert plan.sign.rules.linear_variance == pytest.approx(part * other.sign.rules.linear_variance, rel=1e-12)
    assert plan.sign.rules.constant_variance == pytest.approx(part * other.sign.rules.constant_variance, rel=1e-12)
    assert plan.effect_size == pytest.approx(math.sqrt(part))
    assert plan.requests["outcome"].variance == constants.outcome_variance
    assert (plan.constants, other.effect_size) == (constants, 1.0)


def test_effects_and_their_noise_of_one_scale_have_plans_that_do_not_depend_on_it():
    """A plan at n mu has the features, errors and regrets, over sizes, of one at r n mu and variances over r^2."""
    wide = replace(RuleConstants(), binary_part=0.04, linear_below=0.0, kinds="1")
    small = replace(wide, binary_part=0.01)
    budget = PrivacyBudget(4.0, 1e-5)
    first, second = (
        composed_plan(n, budget, 6, known_propensity=True, binary=True, constants=constants)
        for n, constants in ((20_000, wide), (40_000, small))
    )
    assert second.effect().basis.features == first.effect().basis.features
    assert planned_regret(second).rule == pytest.approx(planned_regret(first).rule / 2, rel=1e-6)
    assert effect_error(second) == pytest.approx(effect_error(first) / 2, rel=1e-6)


def test_parts_are_drawn_to_zero_at_the_size_of_effects_on_binary_outcomes():
    t = torch.tensor([0.01, 0.04, 0.04], dtype=torch.float64)
    found = []
    for part in (1.0, 0.01):
        plan = composed_plan(
            20_000, ONE, 2, binary=True, constants=replace(PlanConstants(), binary_part=part, kinds="1")
        )
        regression = composed_plan(10**6, ONE, 2, constants=PlanConstants(kinds="1", pairs=0)).effect()
        assert regression.basis.dimension == 3
        found.append(effect_coefficients(plan, regression, t, torch.full_like(t, 0.01**2), 1.0))
    assert found[0][0] == found[1][0] == t[0]
    sizes = 1 / (2 * regression.basis.feature_weights[1:]).sqrt()
    for part, shrunk in zip((1.0, 0.01), found, strict=True):
        means = EmpiricalBayes(0.7).mean(t[1:], torch.full_like(t[1:], 1.3 * 0.01**2), math.sqrt(part) * sizes)
        torch.testing.assert_close(shrunk[1:], means, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("constants", [PlanConstants(most=3), RuleConstants(pairs=0), SelectionConstants(spike=0.1)])
def test_statements_have_all_constants_and_give_them_back(constants):
    lines = constants.to_text()
    assert [line.split("=")[0] for line in lines] == [f.name for f in fields(constants)]
    assert type(constants).from_text(lines) == constants
    for other in (lines[1:], lines[:-1], [*lines, lines[0]], lines[::-1]):
        with pytest.raises(InputError, match="other names"):
            type(constants).from_text(other)
