import numpy as np
import pytest

from torchdpcate.errors import InputError
from torchdpcate.release.composed import _example

EFFECT = _example().effect  # (2 x - 1) 2 / sqrt(2), clipped at 2
POINTS = np.linspace(0, 1, 41)[:, None]


def test_a_rule_treats_whose_effect_exceeds_cost_and_threshold():
    effect = EFFECT.effect(POINTS)
    for cost, threshold in ((0.0, 0.0), (0.5, 0.0), (0.2, 0.3), (-1.0, 0.0)):
        rule = EFFECT.rule(cost=cost, threshold=threshold)
        np.testing.assert_array_equal(rule.decide(POINTS), effect > cost + threshold)
        np.testing.assert_allclose(rule.score(POINTS), effect - cost - threshold, atol=1e-12)
        assert rule.privacy is EFFECT.privacy


@pytest.mark.parametrize("budget", [0.0, 0.3, 1.0])
def test_a_budget_is_kept_by_those_who_gain_most(budget):
    rule = EFFECT.rule(budget=budget, population=POINTS)
    treated = rule.decide(POINTS)
    assert treated.mean() <= budget
    assert treated.sum() == min(np.floor(budget * len(POINTS)), (EFFECT.effect(POINTS) > 0).sum())
    assert np.all(np.diff(treated) >= 0)  # the effect grows along the points
    assert rule.cutoff >= rule.threshold


def test_who_gain_alike_are_treated_alike():
    alike = [[0.9]] * 6 + [[1.0]] * 2
    assert EFFECT.rule(budget=0.5, population=alike).decide([[0.9], [1.0]]).tolist() == [0, 1]
    assert EFFECT.rule(budget=0.1, population=alike).decide([[0.9], [1.0]]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cost": float("nan")}, "cost = nan: give a finite number"),
        ({"threshold": "high"}, "threshold = 'high': give a finite number"),
        ({"budget": 1.2, "population": POINTS}, "budget = 1.2: .* from 0 to 1"),
        ({"budget": 0.3}, "budget = 0.3: .* give population="),
        ({"population": POINTS}, "population: .* give the share"),
        ({"budget": 0.3, "population": POINTS + 1}, "population: query 'x0'"),
    ],
)
def test_bad_choices_are_refused_in_one_line(settings, words):
    with pytest.raises(InputError, match=words) as refused:
        EFFECT.rule(**settings)
    assert "\n" not in str(refused.value)
