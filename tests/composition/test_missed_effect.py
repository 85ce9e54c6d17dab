"""What intervals hold beside the features' error: what these miss, and what clipped residuals hide."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from torchdpcate.composition.builder import composed_plan, rebuilt
from torchdpcate.composition.effect_law import Estimates
from torchdpcate.composition.interval_events import interval_plan, with_hidden, with_persons
from torchdpcate.composition.summaries import LEAST_SCALE, unseen_scale
from torchdpcate.fit.weighted_basis import WeightedBasis
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.effect_law import EffectLaw

PLAN = composed_plan(4_000, PrivacyBudget(1.0, 1e-5), 30, known_propensity=True, intervals=True)
BASIS = PLAN.effect().basis
LEVELS = [False] * PLAN.retained


KNOWN, ESTIMATED, UNCHOSEN = PLAN.constants.missed
SCALE, SPREAD = PLAN.head_variance, 0.7  # of the effect's variance over persons, where S = 1


def law_at(t: Tensor, v: float, basis=BASIS, tails=1.0, nuisances=None) -> EffectLaw:
    """The law of persons where estimates t have errors of the variance v in a part of the effect."""
    facts = interval_plan(basis, 1.0, (0.5, 0.5), 20.0, PLAN)
    one, total = torch.eye(basis.dimension).double(), facts.n * 0.25
    normal = (facts.spread / PLAN.interval_spread) ** 2
    variance = (facts.correction_noise**2 + tails * normal * total) / total**2
    covariance, directions = (v / basis.feature_weights).diag(), (1 / facts.planned.sqrt()).diag()
    law = EffectLaw(t, covariance, directions, one[0], 0.2, variance, 0.0, variance, nuisances)
    return with_persons(law, 0.25, PLAN, facts, LEVELS)


def held() -> float:
    """The share that each feature is expected to hold."""
    assert {feature.kind for feature in BASIS.features} == {"1"}
    return 0.62 / PLAN.retained


def test_effects_of_persons_are_the_mean_and_covariance_given_the_estimates():
    """By 2,001 sizes of effects in place of a few."""
    parts, v = torch.linspace(-0.4, 0.6, len(BASIS.features)).double(), 0.02
    law = law_at(torch.cat([torch.ones(1).double(), parts / BASIS.feature_weights[1:].sqrt()]), v)
    sizes = SCALE * np.exp(SPREAD * np.linspace(-6, 6, 2_001))
    prior = held() * sizes[:, None]
    fit = norm.logpdf(parts.numpy(), scale=np.sqrt(prior + v)).sum(1) + norm.logpdf(np.linspace(-6, 6, 2_001))
    chance = np.exp(fit - fit.max()) / np.exp(fit - fit.max()).sum()
    kept = prior / (prior + v)
    mean = chance @ kept * parts.numpy()
    own = (chance @ (kept * v))[0] + np.einsum("s,si->i", chance, (kept * parts.numpy() - mean) ** 2)
    roots = BASIS.feature_weights[1:].sqrt()
    np.testing.assert_allclose(law.shrunk[1:] * roots, mean, rtol=0.02)
    np.testing.assert_allclose(law.spread.diagonal()[1:] * roots**2, own, rtol=0.02)
    assert not law.spread[0].any()
    missed = KNOWN * (1 - held() * len(parts)) + UNCHOSEN
    assert law.missed == pytest.approx(chance @ sizes * missed, rel=0.02)
    assert law.shrunk[0] == law.estimates[0]  # the level is that at the centre


def test_intervals_of_persons_hold_what_the_prior_draws():
    draws, shares = np.random.default_rng(3), held()
    psi = torch.from_numpy(draws.normal(size=(40, BASIS.dimension)))
    psi[:, 0], roots, found = 1.0, BASIS.feature_weights.sqrt(), []
    for _ in range(300):
        size, v = SCALE * np.exp(SPREAD * draws.normal()), 0.02
        parts = np.sqrt(size * shares) * draws.normal(size=BASIS.dimension)
        seen = torch.from_numpy(parts + np.sqrt(v) * draws.normal(size=BASIS.dimension)) / roots
        law = replace(law_at(seen, v), correction_variance=0.0).of_persons(0.0, 0.0)
        missed = np.sqrt(size * (KNOWN * (1 - shares * len(BASIS.features)) + UNCHOSEN)) * draws.normal(size=40)
        at = torch.cat([psi[:, :1], psi[:, 1:] * roots[1:]], 1)
        truth = psi[:, 1:].numpy() @ parts[1:] + missed
        low, high = law.interval(at, 0.95).T.numpy()
        found.append(((low <= truth) & (truth <= high)).mean())
    assert 0.935 < np.mean(found) < 0.965


def test_what_is_missed_follows_tails_and_what_was_requested():
    none, alone = torch.zeros(BASIS.dimension).double(), WeightedBasis((), torch.ones(1).double())
    size = law_at(none[:1], 0.01, alone).missed / (2 * KNOWN)
    assert size == pytest.approx(SCALE * math.exp(SPREAD**2 / 2), rel=0.05)
    for tails, times in ((2.0, 4), (0.5, 2)):
        assert law_at(none[:1], 0.01, alone, tails=tails).missed == pytest.approx(times * KNOWN * size)
    assert law_at(none, 0.1).missed < law_at(none + 1, 0.1).missed
    # where the propensity is estimated the estimates stay, and more is expected to be missed
    cohort, nothing = law_at(none + 1, 0.1, nuisances=torch.zeros_like(none.diag())), len(none) - 1
    assert cohort.of_persons(7.0, 1.0) is cohort
    left = 1 - held() * nothing
    ratio = ESTIMATED * left / (KNOWN * left + UNCHOSEN)
    assert cohort.missed / law_at(none + 1, 0.1).missed == pytest.approx(ratio)


def hidden(correction: float, directions: int = 2) -> tuple[EffectLaw, EffectLaw, Estimates]:
    """A law of two features beside the constant, as it was and with what clipping hides."""
    two = WeightedBasis(BASIS.features[:2], torch.tensor([0.5, 0.3, 0.2]).double())
    facts = interval_plan(two, 1.0, (0.5, 0.5), 20.0, PLAN)
    v, b = 0.01 * torch.eye(3).double(), torch.eye(3).double()[:, : directions + 1]
    found = Estimates(torch.ones(3).double(), v, b, facts.planned.diag(), 0.25)
    law = EffectLaw(found.t, v, b, found.t, correction, 0.01, 0.0, 0.01)
    return law, with_hidden(law, found, facts, False), found


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
    alone = WeightedBasis((), torch.ones(1).double())
    facts = interval_plan(alone, 1.0, (0.5, 0.5), 1.0, rebuilt(PLAN, binary=True))
    assert with_hidden(law, found, facts, True) is law
    assert facts.spread == 1.0


def test_the_clip_of_the_correction_is_within_the_range_and_that_where_no_quantile_was_found():
    def spread(scale: float, of: float = 20.0) -> float:
        return interval_plan(BASIS, scale, (0.5, 0.5), of, PLAN).spread

    assert 4 < spread(1.0) / 1.0 < 12
    assert spread(10.0) == 20.0
    assert spread(unseen_scale(PLAN, 20.0)) == spread(20.0 * LEAST_SCALE) == 20.0
