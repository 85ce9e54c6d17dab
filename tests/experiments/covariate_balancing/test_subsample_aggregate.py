"""Subsample and aggregate: groups, their estimates one by one, sensitivities by search, noise, interval, attack."""

import math

import pytest
import torch

from experiments.covariate_balancing.peers import (
    SubsampleAggregate,
    group_estimates,
    group_positions,
)
from tests.estimators.average.confounded import EFFECT, SCHEMA, data_sets
from torchdpcate import Domain, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import Logistic
from torchdpcate.fit.minimise import minimise
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.estimate import half_width

ATE, PURE = make_estimand("ATE", 0.1), PrivacyBudget(1.0, 0.0)


def planned(n: int, estimand, epsilon: float, **settings) -> SubsampleAggregate:
    return SubsampleAggregate(n, SCHEMA, estimand, PrivacyBudget(epsilon, 0.0), **settings)


def released(estimates: torch.Tensor, plan: SubsampleAggregate, runs: int = 1) -> NoisyEstimate:
    """What follows from these estimates of groups."""
    exact = plan.readout({}).sums("sums", {}).exact(estimates)
    return plan.estimate({"sums": plan.ask_each(FitSession(NoiseSource.fixed(0)), runs, "sums", exact)})


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC", "ATO"])
def test_groups_as_one_batch_are_groups_one_by_one(estimand):
    records, estimand = data_sets(2, 103, seed=2), make_estimand(estimand, 0.1)
    plan = planned(103, estimand, 1.0, groups=6)
    found = group_estimates(records, plan)
    positions, there = group_positions(103, 6, 0)
    for run in range(2):
        for group in range(6):
            own = positions[group][there[group]]
            psi, z, y = (part[run][own] for part in (records.batch.psi, records.batch.z, records.batch.y))
            start = torch.zeros(1, 5, dtype=torch.float64)
            theta = minimise(psi, 2 * z - 1, torch.ones_like(z), Logistic(), 0.01 / 5, start, 1e-9)[0]
            w = estimand.weights(psi @ theta, z)
            hajek = (w * z * y).sum() / (w * z).sum() - (w * (1 - z) * y).sum() / (w * (1 - z)).sum()
            assert found[run, group].item() == pytest.approx(hajek.item(), abs=1e-5)


def contrasts(x: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Estimates [runs] of single groups of records x [runs, n, 1]."""
    domain = Domain([-1.0], [1.0], 0.0, 1.0)
    psi = on_domain(None, domain)(x.reshape(-1, 1)).reshape(*x.shape[:2], 2)
    plan = SubsampleAggregate(6, TableSchema.of(domain), ATE, None, groups=2)
    twice = Batch(*(part.repeat_interleave(2, 1) for part in (x, psi, z, y)))
    order = group_positions(6, 2, 0)[0].T.flatten().argsort()  # two groups of the same records
    return group_estimates(StackedRecords(Batch(*(part[:, order] for part in twice))), plan)[:, 0]


def test_one_record_moves_one_group_and_its_estimate_by_less_than_its_range():
    """Worst neighbours of the ATE over all groups of three on a grid: 1.29 of the 2 that the noise answers for."""
    kinds = torch.cartesian_prod(torch.tensor([-1.0, 1.0]), *[torch.tensor([0.0, 1.0])] * 2).double()
    trios = kinds[torch.cartesian_prod(*[torch.arange(8)] * 3)]  # of which the last record is replaced
    found = contrasts(trios[:, :, :1], trios[:, :, 1], trios[:, :, 2]).reshape(64, 8)
    most = (found.amax(1) - found.amin(1)).amax().item()
    assert most == pytest.approx(1.2857, abs=1e-3)
    assert most < 2

    records = data_sets(1, 200, seed=3).batch
    records = Batch(*(part[0] for part in records))
    plan = planned(200, ATE, 1.0)
    before = group_estimates(StackedRecords(records), plan)
    records.z[17], records.y[17] = 1 - records.z[17], 1 - records.y[17]
    moved = (group_estimates(StackedRecords(records), plan) != before)[0]
    assert (
        moved.nonzero()[:, 0].tolist()
        == (group_positions(200, plan.groups, 0)[0] == 17).any(1).nonzero()[:, 0].tolist()
    )


def test_noise_and_variance_are_those_of_the_page():
    groups, epsilon, runs = 70, 2.0, 20_000
    estimates = 0.1 + 0.4 * torch.randn(1, groups, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    estimates = estimates.clamp(-1, 1)
    plan = planned(5000, ATE, epsilon)
    found = released(estimates, plan, runs)
    assert found.laplace[0, 0].item() == pytest.approx(2 / (groups * epsilon), rel=1e-5)
    errors = (found.estimate - estimates.mean()).abs()
    assert errors.mean().item() == pytest.approx(2 / (groups * epsilon), rel=6 / math.sqrt(runs))
    errors = (found.released["spread"] - estimates.square().sum()).abs()
    assert errors.mean().item() == pytest.approx(4 / epsilon, rel=6 / math.sqrt(runs))
    # S^2 / M, pushed up so that nine in ten are not below the truth
    above = (found.gaussian.square() >= estimates.var().item() / groups).double().mean().item()
    assert 0.9 - 6 * math.sqrt(0.09 / runs) < above < 0.93
    assert found.gaussian.square().max().item() <= 1 / groups


@pytest.mark.slow
def test_intervals_cover_on_the_confounded_design():
    """120 data sets; a coverage of .95 gives fewer than 98 less often than once in 10^6 runs."""
    plan = planned(2000, ATE, 5.0)
    found = plan.run(data_sets(120, 2000, seed=5), NoiseSource.fixed(0))
    inside = (found.estimate - EFFECT).abs() <= half_width(0.95, found.gaussian, found.laplace)
    assert inside.sum().item() >= 98
    # Laplace noise of scale 2 / (44 * 5) and sampling
    assert (found.estimate - EFFECT).square().mean().item() < 2 * (2 * (2 / 220) ** 2 + 1 / 2000)
