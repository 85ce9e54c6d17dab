"""The study of rules: effects of mixed sign, and regret over that of the best constant rule."""

import pytest
import torch

from experiments.rules_and_selection.rule_cases import MEANS, OBSERVED, TRIAL, rule_case
from experiments.rules_and_selection.rule_pages import page


@pytest.mark.parametrize("law", MEANS)
def test_neither_treating_all_nor_nobody_is_much_better(law):
    case = rule_case(law, OBSERVED, 200, 0)
    assert abs(float(case.truth.mean())) < 6 * float(case.truth.std()) / len(case.truth) ** 0.5
    ones = torch.ones(len(case.truth))
    regrets = [case.regret(ones), case.regret(0 * ones)]
    assert min(regrets) == pytest.approx(1.0)
    assert max(regrets) < 1.5
    assert case.regret(case.truth > 0) == 0


def test_a_trial_is_by_a_coin_that_the_domain_knows():
    case = rule_case("E", TRIAL, 400, 1)
    assert case.schema.domain.known_propensity is not None
    assert abs(float(case.records.a.mean()) - 0.5) < 6 * 0.5 / 20
    assert rule_case("E", OBSERVED, 400, 1).schema.domain.known_propensity is None


def test_a_page_holds_the_means_of_its_lines():
    line = {"design": TRIAL, "n": "500", "law": "A", "method": "rule"}
    lines = [{**line, "seed": str(seed), "regret": str(regret)} for seed, regret in enumerate((0.2, 0.4))]
    assert "0.300 ± 0.100 (2)" in page(lines)
