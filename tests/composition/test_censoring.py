"""Outcomes by a horizon that follow-up may end before: the private curve, and what counts by it."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.verify.words import check_words
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.censoring import CountedByFollowUp, FollowUpCells
from torchdpcate.composition.line_laws import curve_noise, line_facts, means_of, unlike
from torchdpcate.composition.lines import line_clip
from torchdpcate.composition.planned import lost_of, planned_line
from torchdpcate.composition.regressions import residuals
from torchdpcate.data.censoring import EVENT_BY_HORIZON, RESTRICTED_MEAN, Censoring, censoring_curve, curve_errors
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import MissingError
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.averages import PARTS, LineFacts

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


def restricted_mean(time: np.ndarray, event: np.ndarray, horizon: float = TAU) -> float:
    at, survival = kaplan_meier(time, event)
    inside = at < horizon
    ends = np.concatenate([[0.0], at[inside], [horizon]])
    return float(np.diff(ends) @ np.concatenate([[1.0], survival[inside]]))


def records(outcome: Censoring, n: int = 4_000) -> CausalData:
    """Of which the early events are others, where others compete."""
    x, a, both = followed(n)
    both = both * (1.0 + torch.stack([0 * a, (both[:, 0] < TAU / 3) * outcome.competes], 1))
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
    assert release.averages.estimate() == pytest.approx(arms[1] - arms[0], abs=0.01)
    assert abs(release.average_effect - release.averages.estimate()) <= release.averages.error()
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


# -- what noise in a curve does


def noisy_means(outcome: Censoring, given: CausalData, counts: torch.Tensor) -> np.ndarray:
    """Weighted mean outcome of each of two arms, by curves of counts."""
    found = CountedByFollowUp(outcome, counts)(given)
    by_arm = [(found.weight[found.a == arm], found.y[found.a == arm]) for arm in (0, 1)]
    return np.array([float((v * y).sum() / v.sum()) for v, y in by_arm])


@pytest.mark.parametrize("kind", [EVENT_BY_HORIZON, RESTRICTED_MEAN])
@pytest.mark.parametrize("by_arm", [False, True])
@pytest.mark.parametrize("levels", [(0, 1), ()])
def test_the_error_of_a_noisy_curve_is_that_of_weighted_records(kind, by_arm, levels):
    outcome, noise = Censoring("t", "d", TAU, kind, bins=8, by_arm=by_arm, levels=levels), 30.0
    given, random = records(outcome), np.random.default_rng(1)
    counts = FollowUpCells(outcome)(given).double()
    exact = noisy_means(outcome, given, counts)
    draws = [noisy_means(outcome, given, counts + noise * random.normal(size=len(counts))) for _ in range(200)]
    change = np.array(draws) - exact
    change = change[:, 1] - change[:, 0] if by_arm else change.mean(1)
    found = float(curve_errors(counts, outcome, noise)[0])
    assert found == pytest.approx(np.sqrt((change**2).mean()), rel=0.2)


@pytest.mark.parametrize("model", [0.0, 3.0])
def test_the_error_of_a_noisy_curve_counts_how_far_a_model_is_off(model):
    """Scores divide by a share of all weights, which the curve of an arm moves: its sum is not that of its records."""
    outcome, noise, random = Censoring("t", "d", TAU, bins=8), 30.0, np.random.default_rng(1)
    given, models = records(outcome), (torch.tensor([model, model + 1]).double(), torch.full((2,), 0.5).double())
    counts = FollowUpCells(outcome)(given).double()

    def effect(counts: torch.Tensor) -> float:
        found = CountedByFollowUp(outcome, counts)(given)
        sums = [(found.weight * (found.y - m))[given.a == arm].sum() for arm, m in enumerate(models[0])]
        return float((sums[1] - sums[0]) / found.weight.sum() / 0.5)

    draws = [effect(counts + noise * torch.from_numpy(random.normal(size=len(counts)))) for _ in range(200)]
    found = curve_errors(counts, outcome, noise, 2, models)
    assert float(found) == pytest.approx(np.std(np.array(draws) - effect(counts)), rel=0.2)


def test_an_error_of_a_curve_is_one_for_each_arm_and_none_without_noise():
    outcome = Censoring("t", "d", TAU, bins=4)
    counts = 50 + torch.arange(27).double()
    assert curve_errors(counts, outcome, 0.0, arms=3).tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    found = curve_errors(counts, outcome, 10.0, arms=3)
    assert found.shape == (2,)
    assert bool((found > 0).all())


@pytest.mark.parametrize(("floor", "taken"), [(0.1, 0.0), (0.5, 0.625)])
def test_an_error_of_a_curve_below_the_floor_is_what_the_floor_takes(floor, taken):
    """50 of 1,050 have an event while 900 leave, a share of .122 stays: 50 have one later, 50 none."""
    counts = torch.tensor([50.0, 50, 900, 0, 50, 0.0, 500, 0, 0, 500]).double()
    stays = 1 - 900 / 1025
    early, late = 50 / ((1 + stays) / 2), 50 / stays
    error = (early + late) / (early + 2 * late) - taken if taken else 0.0
    outcome = Censoring("t", "d", 2.0, EVENT_BY_HORIZON, floor, bins=2)
    assert curve_errors(counts, outcome, 0.0).tolist() == pytest.approx([abs(error)])


def test_intervals_count_the_noise_of_the_curve():
    x, a, both = followed(4_000)
    outcome = Censoring("t", "d", TAU, EVENT_BY_HORIZON)
    release = RLearner(domain(outcome), PrivacyBudget(1.0, 1e-5)).fit(x, a, both).release_function()
    plan = plan_within(4_000, PrivacyBudget(1.0, 1e-5), domain(outcome), lines=("groups",))
    models = means_of(release.line_numbers, 2)
    error = float(curve_errors(release.follow_up, outcome, curve_noise(outcome, plan), 2, models)[0])
    assert release.averages.variances[0, PARTS.index("nuisances")].sqrt() == pytest.approx(error)


# -- design and plan


def differently_followed(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Covariates that say nothing, arms of one law, and time and event; one arm is censored much, the other little."""
    rng = np.random.default_rng(3)
    a = np.arange(n) % 2
    event, end = rng.exponential(4.0, n), rng.exponential(np.where(a > 0, 4.0, 60.0))
    both = np.stack([np.minimum(event, end), event <= end], 1)
    return torch.zeros(n, 1).double(), torch.from_numpy(a).double(), torch.from_numpy(both)


def test_each_arm_has_a_curve_unless_the_design_ends_follow_up_alike():
    given, found = differently_followed(20_000), {}
    for by_arm in (None, False):
        settings = {} if by_arm is None else {"censoring": {"by_arm": by_arm}}
        outcome = Censoring.of({"time": "t", "event": "d", "horizon": TAU, "kind": EVENT_BY_HORIZON, **settings})
        release = AverageEffect(domain(outcome), MUCH).fit(*given).release()
        found[by_arm] = release.averages.estimate(), *release.averages.interval(), release.privacy.bounds["censoring"]
    estimate, low, high, words = found[None]
    assert low < 0 < high  # the truth
    assert abs(estimate) < 0.02
    assert "given the arm" in words
    estimate, low, high, words = found[False]
    assert low > 0.02
    assert "in both arms alike" in words


@pytest.mark.parametrize("kind", [EVENT_BY_HORIZON, RESTRICTED_MEAN])
def test_a_plan_expects_the_sampling_error_of_weighted_records(kind):
    """Within a factor of 1.5 of the standard deviation of weighted differences, of which a third are censored."""
    n, outcome = 2_000, Censoring("t", "d", TAU, kind)
    found = []
    for seed in range(60):
        x, a, both = followed(n, seed)
        both = outcome.within(both)
        given = CausalData(x, a, outcome.outcome(both), follow_up=both)
        control, treated = noisy_means(outcome, given, FollowUpCells(outcome)(given).double())
        found.append(treated - control)
    own = domain(outcome)
    noise = AverageEffect(own, PrivacyBudget(1.0, 1e-5)).expected_noise(n)
    assert noise.parts["sampling"] == pytest.approx(np.std(found), rel=0.5)
    plan = plan_within(n, PrivacyBudget(1.0, 1e-5), own, lines=())
    residual = noise.parts["sampling"] * np.sqrt(plan.mass) / 2
    assert planned_line(plan, own.outcome_range, residual)["sampling"] == pytest.approx(noise.parts["sampling"])


def test_at_a_released_weight_regressions_have_the_noise_of_a_plan_that_expects_it():
    facts = 20_000, PrivacyBudget(1.0, 1e-5)
    outcome = Censoring("t", "d", TAU, EVENT_BY_HORIZON, floor=0.25)
    plan = plan_within(*facts, domain(outcome, overlap=0.2))
    wanted = plan_within(*facts, domain(replace(outcome, floor=0.81), overlap=0.2))
    found = plan.at_weight(0.9)
    assert found.mass == wanted.mass
    for name, request in found.requests.items():
        budgets = plan.shares.of(name) / wanted.shares.of(name)
        assert request.noise * budgets**2 == pytest.approx(wanted.requests[name].noise)
        assert request.size == pytest.approx(wanted.requests[name].size)
    assert len(found.outcome([False]).basis.features) >= len(plan.outcome([False]).basis.features)


def test_of_times_up_to_a_horizon_nuisances_lose_what_hazards_make_of_them():
    own = domain(Censoring("t", "d", TAU), overlap=0.2)
    plan = plan_within(20_000, PrivacyBudget(1.0, 1e-5), own, lines=())
    unbounded = replace(plan, follow_up=0)
    assert lost_of(plan, treated=0.5).bias == pytest.approx(math.sqrt(0.3) * lost_of(unbounded, treated=0.5).bias)


@pytest.mark.parametrize(("n", "square", "times"), [(500, 0.0, 0.5), (2_000_000, 4.0, 1.05)])
def test_scores_of_times_are_clipped_by_the_bounds_that_they_reach(n, square, times):
    """Half of the largest score that an outcome between its bounds makes, up to hardly more than it."""
    own = domain(Censoring("t", "d", TAU), overlap=0.2)
    plan = plan_within(n, PrivacyBudget(1.0, 1e-5), own, lines=())
    facts = facts_of(0.5, own)
    assert facts.largest == pytest.approx(TAU / 0.5)
    assert line_clip(plan, facts, square) == pytest.approx(times * facts.largest)


# -- a propensity that is far from the share of the treated


def facts_of(share: float, own: Domain) -> LineFacts:
    """Facts of lines where everybody has one propensity."""
    people = torch.full((8, 1), 0.5).double()
    plan = plan_within(20_000, PrivacyBudget(1.0, 1e-5), own, lines=())
    nuisances = partial(residuals, 0.2, share, 2, 0.05)
    return line_facts(people, torch.zeros(8).double(), nuisances, own, plan, 1.0)


@pytest.mark.parametrize(("mean", "there"), [(0.5, True), (0.42, True), (0.27, False), (0.8, False)])
@pytest.mark.parametrize("stated", [False, True])
def test_lines_need_a_propensity_near_the_share_of_the_treated(mean, there, stated):
    outcome = Censoring("t", "d", TAU, EVENT_BY_HORIZON)
    own = domain(outcome, overlap=0.05, **({"treated": 0.5} if stated else {}))
    plan = plan_within(20_000, PrivacyBudget(1.0, 1e-5), own, lines=())
    counts = torch.full((FollowUpCells(outcome).size,), 20_000 / FollowUpCells(outcome).size).double()
    found = unlike(facts_of(mean, own), plan, own, None if stated else counts)
    assert (found is None) is there
    if not there:
        assert f"have the mean {mean:.2g}, where about 0.5 are treated" in found


@pytest.mark.parametrize(("mean", "there"), [(0.12, True), (0.5, True), (0.88, True), (0.06, False), (0.94, False)])
def test_where_no_share_is_known_neither_arm_is_rare(mean, there):
    own = domain(Censoring("t", "d", TAU, EVENT_BY_HORIZON, by_arm=False), overlap=0.05)
    plan = plan_within(20_000, PrivacyBudget(1.0, 1e-5), own, lines=())
    found = unlike(facts_of(mean, own), plan, own, torch.full((21,), 900.0).double())
    assert (found is None) is there
    if not there:
        assert f"have the mean {mean:.2g}" in found
        assert "state treated: in the domain" in found


def test_a_stated_share_that_the_propensity_is_far_from_leaves_no_lines_and_says_so():
    x, a, both = followed(8_000)
    own = domain(Censoring("t", "d", TAU, EVENT_BY_HORIZON), overlap=0.05, treated=0.1)
    release = RLearner(own, PrivacyBudget(4.0, 1e-5)).fit(x, a, both).release_function()
    assert release.averages is None
    assert release.line_numbers is not None
    said = check_words(release).head
    assert "nothing can be concluded" in said[1]
    assert said[2].startswith("Estimated chances of treatment do not fit the share treated")
    with pytest.raises(MissingError, match=r"where about 0\.1 are treated"):
        _ = release.required_lines


def test_an_effect_of_a_rare_treatment_that_nobody_stated_varies_and_has_no_lines():
    """Two of a hundred are treated, with one effect: stated, nothing varies; else it does, and says what to state."""
    rng = np.random.default_rng(0)
    x = np.clip(rng.normal(size=(5000, 6)), -2, 2)
    a = (rng.uniform(size=5000) < 1 / (1 + np.exp(3.9 - 0.5 * x[:, 0]))).astype(float)
    y = np.clip(x @ np.full(6, 0.4) + 0.5 * a + rng.normal(size=5000), -20, 20)
    bounds = [-2.0] * 6, [2.0] * 6, -20.0, 20.0
    found = {}
    for share in (None, 0.02):
        own = Domain(*bounds, overlap=0.01, treated=share)
        learner = RLearner(own, PrivacyBudget(1.0, 1e-5), noise=NoiseSource.fixed(1))
        found[share] = learner.fit(x, a, y).release_function()
        assert found[share].averages is None
    spread = {share: float(np.std(release.effect(x))) for share, release in found.items()}
    assert spread[None] > 0.2
    assert spread[0.02] < 0.05
    assert "stating it, or more records, would help" in check_words(found[None]).head[2]
    assert "state treated: in the domain" in found[None].no_lines
