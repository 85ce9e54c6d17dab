"""The public plan: shares, rungs, expected noise."""

import math

import pytest
import torch
from scipy.optimize import minimize

from torchdpcate import Domain, PrivacyBudget
from torchdpcate.composition.builder import composed_plan, plan_within, rebuilt
from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.plan import ARMS
from torchdpcate.composition.planned import (
    effect_error,
    effect_errors,
    effect_noise,
    planned_error,
    planned_noise,
)
from torchdpcate.composition.priors import expected_error, water_filling
from torchdpcate.composition.steps import Shares, total_mu
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import Feature
from torchdpcate.privacy.accounting import compose

ONE = PrivacyBudget(1.0, 1e-5)


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


def test_large_n_mu_takes_steps_with_momentum_unless_others_are_given():
    size, own, given = 10_000 / total_mu(ONE), PlanConstants(), PlanConstants(step_bounds=(40, 50))
    asked = ((0.99 * size, own), (size + 1, own), (11 * size, own), (101 * size, own), (size, given))
    plans = [composed_plan(n, ONE, 6, constants=of) for n, of in asked]
    found = [(plan.steps, plan.burn_in, plan.step_size, plan.momentum) for plan in plans]
    large = [(60, 12, 0.27, 0.6), (30, 12, 0.5, 0.5), (16, 8, 0.5, 0.5)]
    assert found == [(60, 12, 0.27, 0.0), *large, (50, 10, 0.27, 0.0)]
    assert composed_plan(11 * size, ONE, 6, ARMS, arms=3).steps == 30


def test_the_rung_rises_with_records_and_budget():
    rungs = [composed_plan(n, ONE, 6).form for n in (100, 1_000, 100_000)]
    assert rungs[0] == "constant"
    assert rungs[-1] == "additive"
    order = [("constant", "linear", "additive").index(form) for form in rungs]
    assert order == sorted(order)
    assert composed_plan(100_000, ONE, 6, constant_only=True).form == "constant"


def test_products_with_a_step_are_chosen_from_a_size_on():
    small, large = composed_plan(20_000, ONE, 6), composed_plan(100_000, ONE, 6)
    assert (small.pairs, large.pairs) == (0, 3)
    assert "effect pairs" not in small.shares.shares
    assert large.shares.shares["effect pairs"] == pytest.approx(0.04)
    assert math.fsum(large.shares.shares.values()) == pytest.approx(1.0)
    given = (Feature("t", 0, 3), Feature("t", 5, 1))
    assert large.effect([False] * 6, given).basis.features[-2:] == given
    for other in (
        rebuilt(large, constant_only=True),
        rebuilt(large, constants=RuleConstants()),
        rebuilt(large, covariates=1),
        composed_plan(100_000, ONE, 6, ARMS, arms=3),
        composed_plan(10**6, PrivacyBudget(1.0, 0.0), 6),
    ):
        assert other.pairs == 0
        assert "effect pairs" not in other.shares.shares


def test_expected_noise_falls_and_is_in_outcome_units():
    noise = [
        planned_noise(rebuilt(composed_plan(n, ONE, 6), constant_only=True), 12.0) for n in (500, 2_000, 8_000, 32_000)
    ]
    assert noise == sorted(noise, reverse=True)
    errors = [effect_error(composed_plan(n, ONE, 6)) for n in (500, 2_000, 8_000, 32_000)]
    assert errors == sorted(errors, reverse=True)
    plan = composed_plan(2_000, ONE, 6)
    assert planned_noise(plan, 24.0) == pytest.approx(2 * planned_noise(plan, 12.0))
    assert planned_noise(plan, 1e9, scale=1.0) == pytest.approx(effect_noise(plan))
    constant = rebuilt(plan, constant_only=True)
    unit = 2 / (constant.shares.of("effect") * 2_000 * constant.inside * 0.3)  # sensitivity over curvature
    assert effect_noise(constant) == pytest.approx(1.3 * unit)


@pytest.mark.parametrize("covariates", [1, 6, 30, 82])
def test_the_error_to_expect_falls_with_every_record_and_budget(covariates):
    sizes, budgets = [round(100 * 2.2**i) for i in range(11)], (0.25, 1.0, 4.0)
    plans = [[composed_plan(n, PrivacyBudget(e, 1e-5), covariates) for n in sizes] for e in budgets]
    errors = torch.tensor([[effect_error(plan) for plan in line] for line in plans]).double()
    assert bool((errors[:, 1:] <= errors[:, :-1] * 1.005).all())
    assert bool((errors[1:] <= errors[:-1] * 1.05).all())  # how many covariates are retained follows from noise alone


def test_what_sampling_alone_would_blur_is_not_asked_for():
    kinds = [
        "".join(sorted({f.kind for f in plan.effect().basis.features}))
        for plan in (composed_plan(n, PrivacyBudget(8.0, 1e-5), 12) for n in (4_000, 100_000))
    ]
    assert kinds == ["12", "12cstx"]
    for plan in (composed_plan(4_000, PrivacyBudget(e, 1e-5), 12) for e in (8.0, 1e6)):
        sampling = 0.6 / (4_000 * plan.inside**2 * 0.3)
        assert float(plan.effect().prior.min()) > sampling


def test_what_is_not_asked_for_counts_as_error():
    variance, plan = PlanConstants().head_variance, composed_plan(2_000, ONE, 6)
    nothing = composed_plan(200, ONE, 6)
    assert nothing.form == "constant"
    assert effect_errors(nothing)[1] == pytest.approx(math.sqrt(variance))
    assert effect_errors(rebuilt(nothing, constant_only=True))[1] == 0
    assert plan.retained == 6  # the mean squared error of posterior means, by draws from the prior
    effect, generator = plan.effect(), torch.Generator().manual_seed(0)
    noise = effect.noise / effect.basis.feature_weights[1:]
    theta = effect.prior.sqrt() * torch.randn(40_000, len(noise), generator=generator, dtype=torch.float64)
    seen = theta + noise.sqrt() * torch.randn(40_000, len(noise), generator=generator, dtype=torch.float64)
    found = (seen * effect.prior / (effect.prior + noise) - theta).square().sum(1).mean()
    left_out = variance - float(effect.prior.sum())
    assert effect_errors(plan)[1] ** 2 == pytest.approx(float(found) + left_out, rel=0.02)


def test_delta_of_zero_is_refused():
    with pytest.raises(InputError, match="delta = 0"):
        composed_plan(500, PrivacyBudget(1.0, 0.0), 3, ARMS, arms=3)


def test_shares_above_one_are_refused():
    with pytest.raises(InputError, match="shares"):
        Shares(1.0, {"a": 0.7, "b": 0.5})


def test_rare_treatments_are_planned_with_the_noise_that_they_have():
    facts = {"covariates": 6, "overlap": 0.005}
    even, rare = (composed_plan(20_000, PrivacyBudget(1.0, 1e-5), **facts, treated=share) for share in (None, 0.02))
    assert rare.effect_weight == pytest.approx(0.02 * (1 - 0.8 * 0.02))
    assert rare.effect().noise > 100 * even.effect().noise
    assert planned_error(rare, 1.0) > planned_error(even, 1.0)
    most = composed_plan(20_000, PrivacyBudget(1.0, 1e-5), **facts, treated=0.98)
    assert most.effect_weight == pytest.approx(rare.effect_weight)
    domain = Domain([0.0], [1.0], 0.0, 1.0, propensity=0.1)
    assert plan_within(1_000, None, domain).effect_weight == pytest.approx(0.1)
    assert plan_within(1_000, None, Domain([0.0], [1.0], 0.0, 1.0, propensity=0.5)).effect_weight == 0.3
