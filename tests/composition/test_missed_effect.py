"""What effects have beyond their released features: its closed form, and its expectation where nothing is requested."""

import math

import pytest
import torch

from torchdpcate.composition.builder import composed_plan, rebuilt
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.effect_law import Estimates, missed_variance
from torchdpcate.composition.interval_events import interval_plan
from torchdpcate.composition.priors import held_shares
from torchdpcate.fit.weighted_basis import WeightedBasis
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.effect_law import EffectLaw

PLAN = composed_plan(4_000, PrivacyBudget(1.0, 1e-5), 30, known_propensity=True, intervals=True)
BASIS = PLAN.effect().basis
LEVELS = [False] * PLAN.retained


def missed(plan=PLAN, basis=BASIS, size=1.0, noise=0.0, tails=1.0):
    """The variance where each feature's part of the effect has the mean square ``size``, and noise as large."""
    facts = interval_plan(basis, 1.0, (0.5, 0.5), plan)
    p, total = basis.dimension, facts.n * 0.25
    normal = (facts.spread / plan.interval_spread) ** 2
    law_variance = (facts.correction_noise**2 + tails * normal * total) / total**2
    t, v = (size / basis.feature_weights).sqrt(), noise / basis.feature_weights
    found = Estimates(t, v.diag(), torch.eye(p).double(), torch.eye(p).double(), 0.25)
    law = EffectLaw(t, v.diag(), torch.eye(p).double(), t, 0.0, law_variance, 0.0, law_variance)
    return missed_variance(law, found, plan, facts, LEVELS)


def test_it_is_the_found_variance_times_what_the_prior_leaves_out():
    assert {feature.kind for feature in BASIS.features} == {"1"}
    k = len(BASIS.features)
    held = 0.62 * k / PLAN.retained * float(held_shares(BASIS.features[:1], PLAN.retained, 30))
    assert missed() == pytest.approx(2 * k * (1 - held) / held, rel=1e-6)
    assert missed(size=3.0) == pytest.approx(3 * missed())
    assert missed(tails=2.0) == pytest.approx(4 * missed(), rel=1e-6)
    assert missed(tails=0.5) == pytest.approx(missed())


def test_noise_is_taken_off_but_for_one_deviation():
    k, unit = len(BASIS.features), missed() / len(BASIS.features)
    assert missed(noise=0.5) == pytest.approx(unit * (0.5 * k + math.sqrt(2 * k) * 0.5))
    assert missed(size=0.0, noise=1.0) == pytest.approx(unit * math.sqrt(2 * k))


def test_a_constant_misses_the_prior():
    constant = WeightedBasis((), torch.ones(1).double())
    assert missed(basis=constant) == pytest.approx(2 * PLAN.constants.head_variance)
    assert missed(rebuilt(PLAN, constant_only=True), constant) == missed(basis=constant)
    assert missed(rebuilt(PLAN, constants=PlanConstants(missed=0.0))) == 0.0
