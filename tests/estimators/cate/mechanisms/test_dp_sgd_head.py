"""The head trained by DP-SGD: its loss, its plan, its charge, and that it finds the ridge minimum."""

import math

import pytest
import torch

from tests.sessions import noted
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.dp_sgd_head import DPSGDHead
from torchdpcate.estimators.cate.mechanisms.worst_pairs import given_stage
from torchdpcate.heads.dp_sgd import HeadModule
from torchdpcate.heads.linear import LinearProblem, solve
from torchdpcate.privacy.accounting import dp_sgd_epsilon
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)


def problem(n=400, threshold=0.4, ridge=0.05) -> LinearProblem:
    generator = torch.Generator().manual_seed(0)
    psi = torch.nn.functional.normalize(torch.randn(n, 2, generator=generator, dtype=torch.float64))
    w = 0.9 * torch.rand(n, generator=generator, dtype=torch.float64)
    s = w * (psi @ torch.tensor([0.5, -0.3], dtype=torch.float64))
    s += 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return LinearProblem(psi, s.clamp(-1, 1), w, ridge, 0.9, 1.0, threshold)


@pytest.mark.parametrize("threshold", [0.4, math.inf])
def test_the_loss_is_the_heads_own_objective(threshold):
    given = problem(threshold=threshold)
    unit = 1.0 if math.isinf(threshold) else threshold
    fit = solve(given)
    head = HeadModule(2, given.ridge, 0.5).double()
    head.linear.weight.data = (fit.theta / unit)[None]
    loss = head.record_loss((given.psi, given.w, given.s / unit)).mean() * unit**2
    if math.isinf(threshold):  # a record beyond one bound of |s| is linear there; none is
        assert bool(((given.s - given.v @ fit.theta).abs() <= 1).all())
    penalty = given.ridge * head.linear.weight.square().sum() * unit**2
    (gradient,) = torch.autograd.grad(loss + penalty, head.linear.weight)
    assert gradient.norm() < 1e-8  # the minimum of one is the minimum of the other
    assert head.configure_optimizers().param_groups[0]["weight_decay"] == 2 * given.ridge


@pytest.mark.slow
def test_with_a_vast_budget_it_finds_the_minimum():
    given = problem()
    mechanism = DPSGDHead(batch_size=400, epochs=300, learning_rate=0.5, max_grad_norm=1.8)
    ready = mechanism.prepare(given_stage(given), PrivacyBudget(1e6, 1e-5))
    theta = ready.draw(NoiseSource.system(), 1)[0]
    torch.testing.assert_close(theta, solve(given).theta, atol=2e-3, rtol=0)


def test_the_charge_is_the_full_run_at_once():
    given = problem()
    mechanism = DPSGDHead(batch_size=100, epochs=4)
    ready = mechanism.prepare(given_stage(given), BUDGET)
    plan = mechanism.plan(given.n, given.weight_bound, BUDGET)
    assert (ready.count, plan.sampling_rate, plan.max_grad_norm) == (16, 0.25, 0.9)
    cost = dp_sgd_epsilon(plan.noise_multiplier, BUDGET.delta, plan.sampling_rate, plan.steps)
    assert 0.99 < cost <= 1.0
    made = []
    mechanism.privatize(given_stage(given), BUDGET, noted(NoiseSource.fixed(0), lambda *charge: made.append(charge)))
    assert [(event, count) for event, _, count in made] == [(plan.event, 16)]


def test_a_batch_larger_than_the_block_is_the_block():
    plan = DPSGDHead(batch_size=1024).plan(400, 0.9, BUDGET)
    assert plan.sampling_rate == 1.0


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"epochs": 1.5}, {"learning_rate": 0.0}, {"max_grad_norm": -1.0}, {"average": 2.0}],
)
def test_bad_settings_are_refused(arguments):
    with pytest.raises(InputError, match=f"mechanism.{next(iter(arguments))}"):
        DPSGDHead(**arguments)
