"""The study of rules: effects of mixed sign, and regret over that of the best constant rule."""

import pytest
import torch

from experiments.defaults.random_laws import random_setting
from experiments.rules_and_selection.designs import LAWS, OWL_TRIAL, RARE_KNOWN, design_case
from experiments.rules_and_selection.rule_cases import MEANS, OBSERVED, rule_case
from experiments.rules_and_selection.trials import RealTrial, influence, less_cost, line
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema


@pytest.mark.parametrize(("kind", "values"), [("binary", 2), ("count", 40)])
def test_random_laws_have_outcomes_of_two_values_and_counts_within_their_bounds(kind, values):
    for seed in range(4):
        drawn = random_setting(seed, 400, 1.0, kind=kind)
        y, domain = drawn.case.records.y, drawn.case.schema.domain
        assert domain.outcome_kind == kind
        assert bool((y == y.round()).all())
        assert 2 <= len(y.unique()) <= values
        assert bool(((y >= domain.outcome_low) & (y <= domain.outcome_high)).all())
        assert float(drawn.effects.abs().mean()) < domain.outcome_range / 2


@pytest.mark.parametrize("law", MEANS)
def test_neither_treating_all_nor_nobody_is_much_better(law):
    case = rule_case(law, OBSERVED, 200, 0)
    assert abs(float(case.truth.mean())) < 6 * float(case.truth.std()) / len(case.truth) ** 0.5
    ones = torch.ones(len(case.truth))
    regrets = [case.regret(ones), case.regret(0 * ones)]
    assert min(regrets) == pytest.approx(1.0)
    assert max(regrets) < 1.5
    assert case.regret(case.truth > 0) == 0


@pytest.mark.parametrize("design", [OWL_TRIAL, RARE_KNOWN, "ITR tree, confounded", *LAWS])
def test_designs_know_their_effects(design):
    case = design_case(design, 150, 0)
    assert case.records.n == 150
    assert case.regret(case.truth > 0) == 0
    known = case.schema.domain.known_propensity is not None
    assert known == (design in (OWL_TRIAL, RARE_KNOWN))


def test_the_value_of_a_rule_is_that_of_its_own_arm():
    a = torch.tensor([0.0, 1.0] * 50)
    domain = Domain([0.0], [1.0], 0.0, 1.0, propensity=0.5)
    records = CausalData(torch.zeros(100, 1, dtype=torch.float64), a, 0.2 + 0.3 * a)
    trial = RealTrial(TableSchema.from_domain(domain), records, 0.01, cost=0.1)
    value, own = influence(torch.ones(100), trial)
    assert value == pytest.approx(0.5)
    assert float(own.abs().max()) < 1e-6
    numbers = line(torch.ones(100), less_cost(trial))
    assert numbers[:2] == pytest.approx([40.0, 0.0])
    assert numbers[3] == pytest.approx(20.0)
    assert numbers[-1] == pytest.approx(1.0)
