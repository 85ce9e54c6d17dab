"""Plans of binary outcomes, and what a statement says of constants."""

from dataclasses import fields, replace

import pytest

from torchdpcate import Domain, PrivacyBudget
from torchdpcate.composition.builder import composed_plan, plan_within
from torchdpcate.composition.constants import PlanConstants, RuleConstants, SelectionConstants
from torchdpcate.composition.planned import planned_regret
from torchdpcate.composition.steps import QUANTILES
from torchdpcate.errors import InputError

DOMAIN = Domain([-1.0, -1.0], [1.0, 1.0], 0.0, 1.0, overlap=0.1, outcome_kind="binary")


def test_no_quantile_is_asked_for():
    plan = plan_within(5_000, PrivacyBudget(1.0, 1e-5), DOMAIN)
    assert plan.binary
    assert not set(QUANTILES) & set(plan.shares.shares)
    assert abs(sum(plan.shares.shares.values()) - 1) < 1e-12


def test_effects_and_their_noise_of_one_scale_have_plans_that_do_not_depend_on_it():
    """A plan at n mu has the features and regrets, over sizes, of one at r n mu and variances over r^2."""
    wide = replace(RuleConstants(), binary_part=0.04, linear_below=0.0, kinds="1")
    small = replace(wide, binary_part=0.01)
    budget = PrivacyBudget(4.0, 1e-5)
    first, second = (
        composed_plan(n, budget, 6, known_propensity=True, binary=True, constants=constants)
        for n, constants in ((20_000, wide), (40_000, small))
    )
    assert second.effect().basis.features == first.effect().basis.features
    assert planned_regret(second).rule == pytest.approx(planned_regret(first).rule / 2, rel=1e-6)


@pytest.mark.parametrize("constants", [PlanConstants(most=3), RuleConstants(pairs=0), SelectionConstants(spike=0.1)])
def test_statements_have_all_constants_and_give_them_back(constants):
    lines = constants.to_text()
    assert [line.split("=")[0] for line in lines] == [f.name for f in fields(constants)]
    assert type(constants).from_text(lines) == constants
    for other in (lines[1:], lines[:-1], [*lines, lines[0]], lines[::-1]):
        with pytest.raises(InputError, match="other names"):
            type(constants).from_text(other)
