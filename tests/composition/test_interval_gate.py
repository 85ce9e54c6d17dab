"""The public gate of intervals with an estimated propensity."""

import math

import pytest
import torch

from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import GATE, PLANNED, least, propensity_noise, require_little_noise
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget


def plan(n: int, epsilon: float | None = 1.0, **settings) -> ComposedPlan:
    budget = None if epsilon is None else PrivacyBudget(epsilon, 1e-5)
    return composed_plan(n, budget, 6, **{"overlap": 0.1, "intervals": True} | settings)


def test_planned_noise_is_that_of_a_dense_computation() -> None:
    """A sum over features of v / (1 + v/g)^2: the variance of a ridge's estimates, noise and sampling together."""
    of = plan(4_000)
    regression = of.propensity()
    feature_weights = regression.basis.feature_weights
    curvature = 0.2 * of.n * feature_weights.diag()
    noise = math.sqrt(1.1) * 2 * (1 - of.overlap) / of.shares.of("propensity")
    meat = noise**2 * torch.eye(len(feature_weights), dtype=torch.float64) + 0.2 * of.n * feature_weights.diag()
    prior = torch.cat([torch.tensor([4.0]).double() / feature_weights[:1], 3 * regression.prior / feature_weights[1:]])
    unshrunk = torch.linalg.inv(curvature) @ meat @ torch.linalg.inv(curvature)
    drawn = torch.linalg.inv(torch.linalg.inv(unshrunk) + (1 / prior).diag())
    found = drawn @ torch.linalg.inv(unshrunk) @ drawn
    # the constant's prior is of the logit itself
    assert propensity_noise(of) == pytest.approx(0.2 * math.sqrt(float((found * feature_weights.diag()).sum())))


def test_the_gate_refuses_and_says_from_where_on_not() -> None:
    require_little_noise(plan(16_000), True)
    require_little_noise(plan(500, known_propensity=True), True)
    require_little_noise(plan(500, intervals=False), True)
    with pytest.raises(InputError, match=r"planned noise of at most 0.054; here it is .* at about 2,600 records"):
        require_little_noise(plan(1_500), True)
    with pytest.raises(InputError, match="nuisances made of the plan's features"):
        require_little_noise(plan(16_000), False)
    records, epsilon = least(plan(1_500).made_of)
    assert records is not None
    assert epsilon is not None
    assert propensity_noise(plan(records)) <= PLANNED < GATE
    assert propensity_noise(plan(1_500, epsilon)) <= PLANNED
    assert propensity_noise(plan(1_500, epsilon / 1.3)) > PLANNED
