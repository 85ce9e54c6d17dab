"""Outcomes by a horizon that follow-up may end before: the private curve, and what counts by it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchdpcate.composition.censoring import CountedByFollowUp, FollowUpCells, censoring_curve
from torchdpcate.data.censoring import EVENT_BY_HORIZON, Censoring
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget

TAU = 3.0
FINE = Censoring("t", "d", TAU, floor=0.1, bins=600)
MUCH = PrivacyBudget(1_000.0, 1e-5)


def followed(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Covariates that say nothing, arms, and time and event, of which a quarter are censored."""
    rng = np.random.default_rng(seed)
    a = np.arange(n) % 2
    event, end = rng.exponential(1 / np.exp(-0.7 - 0.6 * a)), rng.exponential(1 / np.exp(-1.3), n)
    both = np.stack([np.minimum(event, end), event <= end], 1)
    return torch.zeros(n, 1).double(), torch.from_numpy(a).double(), torch.from_numpy(both)


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times of events, and survival from each on."""
    at = np.unique(time[event > 0])
    hazards = [((time == t) & (event > 0)).sum() / (time >= t).sum() for t in at]
    return at, np.cumprod(1 - np.array(hazards))


def restricted_mean(time: np.ndarray, event: np.ndarray) -> float:
    at, survival = kaplan_meier(time, event)
    inside = at < TAU
    ends = np.concatenate([[0.0], at[inside], [TAU]])
    return float(np.diff(ends) @ np.concatenate([[1.0], survival[inside]]))


def records(outcome: Censoring, n: int = 4_000) -> CausalData:
    x, a, both = followed(n)
    both = outcome.within(both)
    return CausalData(x, a, outcome.outcome(both), follow_up=both)


def counted(outcome: Censoring, given: CausalData) -> CausalData:
    return CountedByFollowUp(outcome, FollowUpCells(outcome)(given).double())(given)


def test_the_curve_of_fine_parts_is_kaplan_meier_s():
    given = records(FINE)
    alike = replace(FINE, by_arm=False)
    curve = censoring_curve(FollowUpCells(alike)(given).double(), FINE.bins)[0]
    time, event = given.follow_up.numpy().T
    at, survival = kaplan_meier(time, (event == 0) & (time < TAU))
    ends = np.linspace(0, TAU, FINE.bins + 1)
    exact = np.concatenate([[1.0], survival])[np.searchsorted(at, ends, side="right")]
    assert np.abs(curve.numpy() - exact).max() < 2e-3


def test_a_curve_of_noise_alone_leads_to_weights_in_nought_to_one():
    outcome = Censoring("t", "d", TAU, by_arm=True)
    noise = 50 * torch.randn(FollowUpCells(outcome).size, generator=torch.Generator().manual_seed(0)).double()
    found = CountedByFollowUp(outcome, noise)(records(outcome))
    assert bool(((found.weight >= 0) & (found.weight <= 1)).all())
    assert found.follow_up is None


@pytest.mark.parametrize("by_arm", [False, True])
def test_weighted_means_are_the_restricted_means_of_kaplan_meier(by_arm):
    outcome = replace(FINE, by_arm=by_arm)
    found = counted(outcome, records(outcome))
    time, event = followed(4_000)[2].numpy().T
    for arm in (0, 1):
        v, y = (column[found.a == arm] for column in (found.weight, found.y))
        own = found.a.numpy() == arm
        expected = restricted_mean(time[own], event[own])
        assert float((v * y).sum() / v.sum()) == pytest.approx(expected, abs=2e-3 if by_arm else 0.02)


def test_the_event_by_the_horizon_has_the_survival_of_kaplan_meier():
    outcome = replace(FINE, kind=EVENT_BY_HORIZON, by_arm=False)
    found = counted(outcome, records(outcome))
    time, event = followed(4_000)[2].numpy().T
    at, survival = kaplan_meier(time, event)
    expected = 1 - survival[at <= TAU][-1]
    assert float((found.weight * found.y).sum() / found.weight.sum()) == pytest.approx(expected, abs=2e-3)


def domain(outcome: Censoring, **facts) -> Domain:
    known = facts or {"propensity": 0.5}
    own = outcome.facts
    return Domain([0.0], [1.0], own["low"], own["high"], outcome_kind=own["kind"], censoring=outcome, **known)


@pytest.mark.first(1)
@pytest.mark.parametrize("facts", [{"propensity": 0.5}, {"overlap": 0.3}])
def test_with_much_epsilon_the_average_effect_is_the_difference_of_restricted_means(facts):
    x, a, both = followed(8_000)
    outcome = Censoring("t", "d", TAU, bins=40, by_arm=True)
    release = AverageEffect(domain(outcome, **facts), MUCH).fit(x, a, both).release()
    time, event = both.numpy().T
    arms = [restricted_mean(time[a == arm], event[a == arm]) for arm in (0, 1)]
    assert release.lines.estimate() == pytest.approx(arms[1] - arms[0], abs=0.01)
    assert abs(release.average_effect - release.lines.estimate()) <= release.lines.error()
    low, high = release.average(0.95)
    assert low < arms[1] - arms[0] < high
    assert "followed to the horizon" in release.privacy.bounds["censoring"]


def test_with_much_epsilon_a_constant_effect_is_that_of_kaplan_meier_s_survival():
    x, a, both = followed(8_000)
    outcome = Censoring("t", "d", TAU, EVENT_BY_HORIZON, bins=40, by_arm=True)
    release = RLearner(domain(outcome), MUCH).fit(x, a, both).release_function()
    survival = []
    for arm in (0, 1):
        at, own = kaplan_meier(*both[a == arm].numpy().T)
        survival.append(own[at <= TAU][-1])
    assert release.average_effect == pytest.approx(survival[0] - survival[1], abs=0.01)
    assert release.weight > outcome.floor + 0.1  # the least released survival takes the floor's place
