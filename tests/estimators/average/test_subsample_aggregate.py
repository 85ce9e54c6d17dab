"""Subsample and aggregate: groups, their estimates one by one, sensitivities by search, noise, interval, attack."""

import math

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, EFFECT, FEATURES, SCHEMA, arrays, data_sets
from tests.sums import given
from torchdpcate import Domain, PrivacyBudget, TableSchema
from torchdpcate.audit.attack import audit
from torchdpcate.audit.registry import find
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.records import Batch, StackedRecords
from torchdpcate.erm.solver import minimise
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.peers import (
    SubsampleAggregate,
    SubsampleAggregateEffect,
    group_estimates,
    group_positions,
)
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.estimators.average.worst_case import _groups, _plan_of_groups
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.estimate import half_width
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

ATE, PURE = make_estimand("ATE", 0.1), PrivacyBudget(1.0, 0.0)


def planned(n: int, estimand, epsilon: float, **settings) -> SubsampleAggregate:
    return SubsampleAggregate(n, SCHEMA, estimand, PrivacyBudget(epsilon, 0.0), **settings)


def released(estimates: torch.Tensor, plan: SubsampleAggregate, runs: int = 1) -> NoisyEstimate:
    """What follows from these estimates of groups."""
    exact = plan.readout({}).sums("sums", {}).exact(estimates)
    return plan.estimate({"sums": plan.ask_each(FitSession(NoiseSource.fixed(0)), runs, "sums", exact)})


@pytest.mark.parametrize(("n", "groups"), [(10, 3), (9, 3), (5000, 70), (7, 7)])
def test_groups_share_out_all_records_evenly_and_publicly(n, groups):
    positions, there = group_positions(n, groups, seed=4)
    assert sorted(positions[there].tolist()) == list(range(n))
    assert set(there.sum(1).tolist()) <= {n // groups, n // groups + 1}
    assert torch.equal(positions[there], group_positions(n, groups, seed=4)[0][there])
    if n > 100:
        assert not torch.equal(positions[there], group_positions(n, groups, seed=5)[0][there])


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


def test_a_group_with_an_empty_arm_counts_zero():
    x, y = torch.zeros(12, 4, dtype=torch.float64), torch.ones(12, dtype=torch.float64)
    plan = planned(12, ATE, 1.0)
    positions, _ = group_positions(12, plan.groups, 0)
    z = torch.zeros(12, dtype=torch.float64)
    z[positions[0]] = 1.0  # all treated in one group, all controls in the others
    assert group_estimates(StackedRecords(Batch(x, FEATURES(x), z, y)), plan).tolist() == [[0.0, 0.0, 0.0]]
    z[positions[1][0]], y[positions[1][1:]] = 1.0, 0.0
    assert group_estimates(StackedRecords(Batch(x, FEATURES(x), z, y)), plan).tolist() == [[0.0, 1.0, 0.0]]


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


def test_intervals_cover_on_the_confounded_design():
    """120 data sets; a coverage of .95 gives fewer than 98 less often than once in 10^6 runs."""
    plan = planned(2000, ATE, 5.0)
    found = plan.run(data_sets(120, 2000, seed=5), NoiseSource.fixed(0))
    inside = (found.estimate - EFFECT).abs() <= half_width(0.95, found.gaussian, found.laplace)
    assert inside.sum().item() >= 98
    # Laplace noise of scale 2 / (44 * 5) and sampling
    assert (found.estimate - EFFECT).square().mean().item() < 2 * (2 * (2 / 220) ** 2 + 1 / 2000)


def learner(budget: PrivacyBudget | None = PURE, **settings) -> SubsampleAggregateEffect:
    return SubsampleAggregateEffect(DOMAIN, budget, **{"noise": NoiseSource.fixed(0), "overlap": 0.1, **settings})


@pytest.mark.parametrize("estimand", ["ATE", "ATT", "ATC", "ATO"])
def test_a_release_pays_tells_and_survives_its_file(tmp_path, estimand):
    fitted = learner(estimand=estimand, noise=None).fit(*arrays(900, seed=0))
    assert fitted.ledger_.spent("records")["epsilon"] == 0  # nothing is learnt before the estimate
    release = fitted.release()
    low, high = release.interval()
    assert -1 <= low <= release.estimate <= high <= 1
    assert release.privacy.level == "certified"
    assert 1 - 1e-6 < release.privacy.epsilon <= 1
    assert release.privacy.public["groups"] == 30
    path = release.save(tmp_path / "release.safetensors")
    verify_release(path)
    assert load_release(path).estimate == release.estimate


def test_without_noise():
    fitted = learner(None).fit(*arrays(20_000, seed=0))
    assert fitted.nonprivate_estimate().value == pytest.approx(EFFECT, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "n", "words"),
    [
        ({}, 3, "groups"),
        ({"groups": 1}, 100, "groups"),
        ({"groups": 101}, 100, "groups"),
        ({"ridge": 0.0}, 100, "ridge"),
        ({"seed": -1}, 100, "seed"),
        ({"overlap": 0.0}, 100, "overlap"),
    ],
)
def test_refusals(settings, n, words):
    X, A, Y = arrays(n, seed=1)
    A[:2] = torch.tensor([0.0, 1.0])
    with pytest.raises(InputError, match=words):
        learner(**settings).fit(X, A, Y)


def test_it_needs_all_records_at_once():
    with pytest.raises(InputError, match="at once"):
        learner().fit_stream(None)


def test_the_declared_pair_differs_in_one_record_and_moves_one_estimate_over_its_range():
    before, after = (torch.cat([b.x, b.z[:, None], b.y[:, None]], 1) for b in (_groups(w).batch for w in (0, 1)))
    assert (before != after).any(1).sum() == 1
    found = [group_estimates(_groups(world), _plan_of_groups(1.0))[0] for world in (0, 1)]
    assert (found[0] - found[1]).abs().tolist() == pytest.approx([2, 0, 0], abs=2e-3)


def test_attack_finds_what_the_pair_gives_away():
    game = find("subsample_aggregate").make(PURE)
    evidence = [game.evidence(game.draw(world, 3000, NoiseSource.fixed(world))).abs().max().item() for world in (0, 1)]
    assert 0.99 < max(evidence) <= 1
    result = audit(find("subsample_aggregate"), PURE, trials=5000, noise=NoiseSource.fixed(3))
    assert result.bound > 0.8
    assert not result.refuted


def test_sums_are_the_same_bit_by_bit_in_any_order_of_the_groups(monkeypatch):
    estimates = 2 * torch.rand(1, 700, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    plan, seen = planned(500_000, ATE, 1.0, groups=700), given(monkeypatch)
    for part in (estimates, estimates[:, torch.randperm(700)]):
        released(part, plan)
    assert torch.equal(*seen)
