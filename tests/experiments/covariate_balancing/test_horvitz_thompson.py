"""Horvitz-Thompson peer: the plan's constants, the sum's sensitivity by search, law of its noise, learner, attack."""

import math

import pytest
import torch

from experiments.covariate_balancing.peers import (
    HorvitzThompson,
)
from tests.estimators.average.confounded import FEATURES, SCHEMA, data_sets
from torchdpcate import PrivacyBudget
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.private_fit import logistic_jacobian
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

ATE, PURE = make_estimand("ATE", 0.1), PrivacyBudget(1.0, 0.0)


def planned(n: int, epsilon: float, ridge: float | None = None) -> HorvitzThompson:
    return HorvitzThompson(n, SCHEMA, ATE, PrivacyBudget(epsilon, 0.0), ridge=ridge)


def summed(records: StackedRecords, plan: HorvitzThompson, theta: torch.Tensor) -> NoisyEstimate:
    """The estimate by these coefficients."""
    return plan.estimate(plan.sums(records, FitSession(NoiseSource.fixed(0)), {"weights": theta}))


def test_constants_of_the_plan():
    plan = planned(5000, 2.0)
    assert plan.readout({}).sums("sum", {}).moved.item() == pytest.approx(20)  # 2 / eta
    assert plan.readout({}).scales({})["sum"].item() == pytest.approx(20, rel=1e-6)  # 2 / (eta epsilon / 2)
    # gamma = (1/4) / (exp(0.15 * 0.99) - 1), and a box of slope 2 / sqrt(5) at what determinants leave of 0.99
    assert plan.fit.ridge == pytest.approx(0.25 / math.expm1(0.15 * 0.99), rel=1e-8)
    left = 0.99 - logistic_jacobian(0.99, 1.0, plan.fit.ridge)
    assert plan.fit.public["perturbation_scale"] == pytest.approx(2 / math.sqrt(5) / left, rel=1e-8)


def test_no_neighbour_moves_the_sum_by_more_than_its_sensitivity_and_one_attains_it():
    """All records on a grid of the domain, at many coefficients; a neighbour changes one term of the sum.

    Of each by its own, which is 2 / eta at the largest coefficients.
    """
    x = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0]).double()] * 4)
    kinds = torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.3, 1.0])).double()
    z, y = kinds.repeat_interleave(len(x), 0).T
    every = Batch(x.repeat(6, 1)[:, None], FEATURES(x).repeat(6, 1)[:, None], z[:, None], y[:, None])
    theta = torch.randn(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta *= torch.linspace(0.1, 20, 50)[:, None]
    plan = planned(5000, 1.0)
    terms = []
    for row in theta:
        rows = row.expand(len(z), -1)
        terms.append(plan.readout({"weights": rows}).sums("sum", {}).exact(every))
    every_term, units = torch.cat(terms, 1), plan.readout({"weights": theta}).sums("sum", {}).moved[:, 0]
    moved = every_term.amax(0) - every_term.amin(0)
    assert bool((moved <= units).all())
    torch.testing.assert_close(moved, units, rtol=1e-9, atol=0)
    assert units.amax().item() == pytest.approx(20)
    assert units.amin().item() < 5


@pytest.mark.slow
def test_the_sum_is_the_textbook_one_and_its_noise_has_the_stated_scale():
    records = StackedRecords(Batch(*(part[0] for part in data_sets(1, 400, seed=1).batch)))
    plan = planned(records.n, 1.0)
    theta = torch.randn(1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    e = torch.sigmoid(linear_predictor(records.batch.psi, theta)).clamp(0.1, 0.9)
    z, y = records.batch.z, records.batch.y
    exact = (z * y / e - (1 - z) * y / (1 - e)).sum()
    runs = 20_000
    found = summed(records, plan, theta.expand(runs, -1))
    errors = found.released["sum"] - exact
    # the mean absolute value of Laplace noise is its scale, with deviation scale / sqrt(runs): six of them
    scale = plan.readout({"weights": theta}).scales({})["sum"].item()
    assert errors.abs().mean().item() == pytest.approx(scale, rel=6 / math.sqrt(runs))
    assert errors.mean().abs().item() < 6 * math.sqrt(2 / runs) * scale
    assert scale < 0.75 * plan.readout({}).scales({})["sum"].item()
    assert found.estimate.abs().max() <= 1
