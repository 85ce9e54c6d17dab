"""What intervals hold beside the features' error: what these miss, and what clipped residuals hide."""

import math

import pytest
import torch

from torchdpcate.composition.builder import composed_plan, rebuilt
from torchdpcate.composition.effect_law import Estimates
from torchdpcate.composition.interval_events import interval_plan, missed_variance, with_hidden, with_missed
from torchdpcate.composition.priors import held_shares
from torchdpcate.composition.summaries import LEAST_SCALE, unseen_scale
from torchdpcate.fit.weighted_basis import WeightedBasis
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.effect_law import EffectLaw

PLAN = composed_plan(4_000, PrivacyBudget(1.0, 1e-5), 30, known_propensity=True, intervals=True)
BASIS = PLAN.effect().basis
LEVELS = [False] * PLAN.retained


def missed(plan=PLAN, basis=BASIS, size=1.0, noise=0.0, tails=1.0):
    """The variance where each feature's part of the effect has the mean square ``size``, and noise as large."""
    facts = interval_plan(basis, 1.0, (0.5, 0.5), 20.0, plan)
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


def hidden(correction: float, directions: int = 2) -> tuple[EffectLaw, EffectLaw, Estimates]:
    """A law of two features beside the constant, as it was and with what clipping hides."""
    two = WeightedBasis(BASIS.features[:2], torch.tensor([0.5, 0.3, 0.2]).double())
    facts = interval_plan(two, 1.0, (0.5, 0.5), 20.0, PLAN)
    v, b = 0.01 * torch.eye(3).double(), torch.eye(3).double()[:, : directions + 1]
    found = Estimates(torch.ones(3).double(), v, b, facts.planned.diag(), 0.25)
    law = EffectLaw(found.t, v, b, found.t, correction, 0.01, 0.0, 0.01)
    return law, with_hidden(law, found, facts), found


def test_what_clipping_hides_follows_the_correction():
    law, wider, _ = hidden(0.2)
    added = (wider.covariance - law.covariance).diagonal()
    # over features of the mean squares that the plan expects, sqrt(2) times (.9 c)^2
    assert float((added[1:] * torch.tensor([0.3, 0.2]).double()).sum()) == pytest.approx(2**0.5 * (0.9 * 0.2) ** 2)
    assert wider.average_variance - law.average_variance == pytest.approx((0.3 * 0.2) ** 2)
    assert wider.correction_variance == law.correction_variance
    twice = hidden(0.4)[1]
    assert torch.allclose(twice.covariance - law.covariance, 4 * (wider.covariance - law.covariance))


def test_a_constant_hides_nothing_that_varies_and_two_values_nothing_at_all():
    law, wider, found = hidden(0.2, directions=0)
    assert torch.equal(wider.covariance, law.covariance)
    assert wider.average_variance > law.average_variance
    events, alone = rebuilt(PLAN, binary=True), WeightedBasis((), torch.ones(1).double())
    facts = interval_plan(alone, 1.0, (0.5, 0.5), 1.0, events)
    kept = with_missed(law, found, events, facts, LEVELS)
    assert torch.equal(kept.covariance, law.covariance)
    assert kept.average_variance == law.average_variance
    assert facts.spread == 1.0


def test_the_clip_of_the_correction_is_within_the_range_and_that_where_no_quantile_was_found():
    def spread(scale: float, of: float = 20.0) -> float:
        return interval_plan(BASIS, scale, (0.5, 0.5), of, PLAN).spread

    assert 4 < spread(1.0) / 1.0 < 12
    assert spread(10.0) == 20.0
    assert spread(unseen_scale(PLAN, 20.0)) == spread(20.0 * LEAST_SCALE) == 20.0
