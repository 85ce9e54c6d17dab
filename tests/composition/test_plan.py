"""The public plan: shares, rungs, expected noise."""

import math

import pytest
import torch
from scipy.optimize import minimize

from torchdpcate import PrivacyBudget
from torchdpcate.composition.builder import composed_plan, rebuilt, retained_of, steps_of
from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.plan_numbers import PlanFacts, numbers_of
from torchdpcate.composition.planned import effect_errors, expected_scale, lost_of
from torchdpcate.composition.priors import expected_error, held_shares, water_filling
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose

ONE = PrivacyBudget(1.0, 1e-5)
DOMAIN = Domain([0.0] * 6, [1.0] * 6, 0.0, 20.0, outcome_sd=2.0)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 0.1422105587), (1.0, 0.2680511232), (4.0, 0.9249308976)])
def test_mu_of_a_budget(epsilon, mu):
    assert total_mu(PrivacyBudget(epsilon, 1e-5)) == pytest.approx(mu, abs=1e-10)  # composed_estimator


def test_energies_minimise_the_expected_error():
    prior, noise = torch.tensor([0.3, 0.1, 0.02, 0.001], dtype=torch.float64), 0.01
    constant, feature_weights = water_filling(prior, noise)
    assert constant + feature_weights.sum().item() == pytest.approx(1)

    def error(logits):
        e = torch.softmax(torch.from_numpy(logits), 0)
        return float(noise / e[0] + (prior * noise / (prior * e[1:] + noise)).sum())

    found = minimize(error, torch.zeros(5).double().numpy(), tol=1e-12)
    assert sum(expected_error(prior, noise)) == pytest.approx(found.fun, rel=1e-5)
    assert sum(expected_error(prior, noise)) <= found.fun * (1 + 1e-9)


def test_shares_spend_all_of_the_budget_and_no_more():
    for known in (False, True):
        for n in (200, 1_500, 16_000, 10**6):
            plan = composed_plan(n, ONE, 40, known_propensity=known)
            assert math.fsum(plan.shares.shares.values()) == pytest.approx(1)
            events = [(plan.shares.event(step), 1) for step in plan.shares.shares if step != "screening"]
            assert compose(events, 1e-5) <= 1.0
            assert ("propensity" in plan.shares.shares) == (not known)


@pytest.mark.parametrize("n", [1_500, 100_000])
def test_arms_divide_the_share_of_the_propensity_and_have_all_others_as_two(n):
    facts = n, ONE, 40, 0.05, False, False, PlanConstants(window_rank=0.0, pairs=0)
    two, five = (numbers_of(PlanFacts(*facts, arms=arms)) for arms in (2, 5))
    own, each = (dict(steps_of(numbers, retained_of(two)).shares.shares) for numbers in (two, five))
    assert {own.pop("propensity") / 5} == {each.pop(f"propensity {arm}") for arm in range(1, 6)}
    assert own == each


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        ({"arms": 3, "budget": PrivacyBudget(1.0, 0.0)}, "delta = 0: effects of 3 arms .* privacy.delta above 0"),
        ({"arms": 3, "intervals": True}, "intervals = true: .* compare two arms"),
        ({"budget": PrivacyBudget(1.0, 0.0), "intervals": True}, "intervals = true: .* privacy.delta above 0"),
    ],
)
def test_facts_that_no_plan_has_are_refused(facts, refused):
    with pytest.raises(InputError, match=refused):
        composed_plan(**{"n": 4_000, "budget": ONE, "covariates": 6} | facts)


@pytest.mark.parametrize(("n", "covariates", "known"), [(400, 6, False), (400, 6, True), (3_000, 82, True)])
@pytest.mark.parametrize("binary", [False, True])
def test_an_effect_of_one_number_has_the_plan_that_it_would_have_on_request(n, covariates, known, binary):
    """Below n mu = 270, or in a trial 10 a covariate, or where features are not worth their noise: the same steps."""
    facts = {"known_propensity": known, "binary": binary, "lines": (), "intervals": known}
    found, asked = (composed_plan(n, ONE, covariates, constant_only=one, **facts) for one in (False, True))
    assert found.form == "constant"
    assert (found.retained, found.choices, found.shares) == (asked.retained, asked.choices, asked.shares)
    assert found.effect().noise == asked.effect().noise
    assert found.facts() == asked.facts() | {"constant_only": False}
    assert rebuilt(found, n=300_000).form != "constant"  # it is not what was requested


def test_much_budget_gives_an_effect_lines_of_all_covariates_and_no_more():
    plans = [composed_plan(20_000, PrivacyBudget(epsilon, 1e-5), 40) for epsilon in (1.0, 1_000.0)]
    found = [{kind: {f.j for f in p.effect().basis.features if f.kind == kind} for kind in "12"} for p in plans]
    assert found == [{"1": set(range(count)), "2": set(range(12))} for count in (12, 40)]


@pytest.mark.parametrize("covariates", [6, 82])
def test_the_error_to_expect_falls_with_every_record_and_budget(covariates):
    sizes, budgets = [round(100 * 4.8**i) for i in range(6)], (0.25, 1.0, 4.0)
    plans = [[composed_plan(n, PrivacyBudget(e, 1e-5), covariates) for n in sizes] for e in budgets]
    errors = torch.tensor([[effect_errors(plan, DOMAIN).total for plan in line] for line in plans]).double()
    assert bool((errors[:, 1:] <= errors[:, :-1] * 1.005).all())
    assert bool((errors[1:] <= errors[:-1] * 1.05).all())  # how many covariates are retained follows from noise alone


def test_the_scale_to_expect_is_the_quantile_of_normal_residuals():
    plan, residuals = composed_plan(2_000, ONE, 6), 1.4 * torch.randn(10**6, generator=torch.Generator().manual_seed(0))
    seen = residuals.abs().quantile(plan.huber_quantile).item()
    assert expected_scale(plan, DOMAIN) == pytest.approx(seen, rel=0.01)  # .7 of the stated deviation of 2
    assert expected_scale(plan, DOMAIN, 0.7) == pytest.approx(seen / 2, rel=0.01)
    assert expected_scale(composed_plan(2_000, ONE, 6, binary=True), DOMAIN) == DOMAIN.outcome_range


def test_what_is_not_asked_for_counts_as_error():
    nothing, scale = composed_plan(200, ONE, 6), 1.3
    found = effect_errors(nothing, DOMAIN)
    assert nothing.form == "constant"
    assert found.variation == found.deviation == pytest.approx(0.2 * 2.0)
    assert found.relative == pytest.approx(1.0)
    alone = effect_errors(rebuilt(nothing, constant_only=True), DOMAIN)
    assert (alone.variation, alone.relative) == (0.0, None)
    plan = composed_plan(2_000, ONE, 8)  # the mean squared error of posterior means, by draws from the prior
    effect, generator, found = plan.effect(), torch.Generator().manual_seed(0), effect_errors(plan, DOMAIN, scale)
    assert {feature.kind for feature in effect.basis.features} == {"1"}
    noise = 1.69 * scale**2 * (effect.noise / effect.basis.feature_weights[1:] + plan.unit_sampling(0.3))
    part = 0.9 * 0.4**2 / plan.retained * held_shares(effect.basis.features, plan.retained, 8)
    theta = part.sqrt() * torch.randn(40_000, len(noise), generator=generator, dtype=torch.float64)
    seen = theta + noise.sqrt() * torch.randn(40_000, len(noise), generator=generator, dtype=torch.float64)
    missed = (seen * part / (part + noise) - theta).square().sum(1).mean()
    assert found.variation**2 == pytest.approx(float(missed) + 0.4**2 - float(part.sum()), rel=0.02)
    assert 0.5 < found.relative < 1.0


def test_a_cohort_may_err_by_what_its_nuisances_lose():
    cohort, trial = (composed_plan(1_000, ONE, 6, known_propensity=known) for known in (False, True))
    lost, found = lost_of(cohort), effect_errors(cohort, DOMAIN)
    assert found.nuisances == pytest.approx(0.7 * 2.0 * math.sqrt(lost.bias**2 + lost.variance))
    assert effect_errors(trial, DOMAIN).nuisances == 0.0
    assert found.total == pytest.approx(math.hypot(*found[:4]))


def test_a_rule_whose_propensity_is_not_asked_for_may_err_by_all_that_confounds():
    facts = {"n": 200, "budget": PrivacyBudget(0.25, 0.0), "covariates": 6, "constants": RuleConstants()}
    unknown, known = (composed_plan(**facts, known_propensity=known) for known in (False, True))
    assert "propensity" not in unknown.requests
    assert lost_of(unknown).kept == 0.0
    assert effect_errors(unknown, DOMAIN).nuisances > effect_errors(known, DOMAIN).nuisances == 0.0


def test_effects_on_a_rare_outcome_are_expected_to_vary_less():
    plan = composed_plan(1_000, ONE, 6, binary=True)
    rare, often = (Domain([0.0] * 6, [1.0] * 6, 0.0, 1.0, outcome_kind="binary", outcome_sd=sd) for sd in (0.2, 0.4))
    assert effect_errors(plan, rare).deviation == pytest.approx(0.3 * 0.04)
    assert effect_errors(plan, often).deviation == pytest.approx(0.3 * 0.16)
    assert effect_errors(plan, rare).sampling == pytest.approx(0.5 * effect_errors(plan, often).sampling)
