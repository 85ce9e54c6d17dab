"""The designs of Lee & Chen: moments against integrals, and one small cell of each kind."""

import math

import pytest
import torch

from experiments.dp_2erm import certified, laws
from experiments.dp_2erm.printed import inverse_propensity
from experiments.dp_2erm.study import STUDY
from experiments.frame.study import CERTIFIED, FREE, OTHER, PRINTED, Settings

N = 200_000


@pytest.mark.parametrize(("scenario", "share"), [("linear", 0.5), ("tree", 0.390), ("nonlinear", 0.591)])
def test_the_best_rule_treats_the_share_that_the_notes_derive(scenario, share):
    x = laws.covariates(N, torch.Generator().manual_seed(0))
    treated = (laws.best(scenario, x) > 0).double().mean().item()
    # the notes' are of 100,000 draws, to three digits; the linear one is 1/2 by symmetry, there 0.502
    assert treated == pytest.approx(share, abs=6 * 0.5 * math.sqrt(1 / N + 1 / 100_000) + 0.0005)


def test_the_share_of_the_tree_is_that_of_its_leaves():
    """Treated: x1 > 1/2, or x1 < -1/2 and x4 > -1/2; the effect is 0 where -1/2 < x1 < -1/4 and x4 > -1/2."""
    mass = 2 * _cdf(1.0) - 1
    upper, lower = (_cdf(1.0) - _cdf(0.5)) / mass, (_cdf(-0.5) - _cdf(-1.0)) / mass
    x = laws.covariates(N, torch.Generator().manual_seed(1))
    treated = (laws.best("tree", x) > 0).double().mean().item()
    assert treated == pytest.approx(upper + lower * (1 - lower), abs=6 * 0.5 / math.sqrt(N))


@pytest.mark.parametrize("scenario", laws.SCENARIOS)
def test_records_have_the_means_variances_and_propensities_of_the_law(scenario):
    sample = laws.draw(scenario, N, torch.Generator().manual_seed(2))
    x, a, y, pi = sample.x[0], sample.a[0], sample.y[0], sample.propensity[0]
    assert 0.32 < pi.min() < pi.max() < 0.71
    variance = laws.noise_variance(scenario, x, a)
    z = (y - laws.main_effect(scenario, x) - (a - 0.5) * laws.best(scenario, x)) / variance.sqrt()
    assert abs(z.mean()) < 6 / math.sqrt(N)
    assert abs(z.square().mean() - 1) < 6 * math.sqrt(2 / N)
    assert abs((a - pi).mean()) < 6 * 0.5 / math.sqrt(N)
    low, high = laws.BOUNDS[scenario]
    assert ((y < low) | (y > high)).double().mean() < 0.005
    assert pi.min() > laws.OVERLAP


def test_one_small_cell_of_each_kind():
    assert all(cell["setting"] != "twins_semi_synthetic" for cell in STUDY.cells(Settings()))
    assert STUDY.missing(Settings())
    roles = {"ours": {CERTIFIED, FREE}, "EBW": {PRINTED, FREE, OTHER}, "IPW": {PRINTED, FREE}}
    for who, expected in roles.items():
        found = list(STUDY.compute({"setting": "linear", "n": 400, "who": who, "first": 0, "repeats": 1}, Settings()))
        assert {one.role for one in found} == expected
        assert all(one.level != "certified" for one in found if one.role == PRINTED or who == "EBW")
        free = [one.values[0] for one in found if one.role == FREE and "all to" not in one.method]
        assert min(free) > 0.8  # a linear rule can fit the linear scenario


def test_certified_rules_by_all_weights_and_a_refusal():
    found = list(STUDY.compute({"setting": "linear", "n": 400, "who": "weights", "first": 0, "repeats": 1}, Settings()))
    budgets = {one.place.epsilon for one in found if one.method == certified.PRIVATE}
    assert budgets == {"0.05", "0.1", "0.5", "1", "inf"}  # (0.01, n = 400) leaves no noise that would do
    assert {one.method for one in found} == set(certified.methods("linear", 400))
    assert {one.level for one in found if one.place.epsilon != "inf"} == {"certified"}
    assert min(one.values[0] for one in found if one.place.epsilon == "inf") > 0.9


def test_movement_of_estimated_inverse_propensities():
    assert inverse_propensity(400, 1.0) == (30.0, 20.0)


def _cdf(z):
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
