"""Horvitz-Thompson peer: the plan's constants, the sum's sensitivity by search, law of its noise, learner, attack."""

import math

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, EFFECT, FEATURES, SCHEMA, arrays, data_sets
from tests.sums import given
from torchdpcate import Domain, PrivacyBudget
from torchdpcate.audit.attack import audit
from torchdpcate.audit.registry import find
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.erm.private_fit import logistic_jacobian
from torchdpcate.erm.records import Batch, StackedRecords
from torchdpcate.erm.solver import linear_predictor
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.effect_estimator import EffectFacts
from torchdpcate.estimators.average.horvitz_thompson import (
    HorvitzThompson,
    HorvitzThompsonEffect,
    horvitz_thompson_terms,
    sum_unit,
)
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.worst_case_peers import _opposed
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

ATE, PURE = make_estimand("ATE", 0.1), PrivacyBudget(1.0, 0.0)


def planned(n: int, epsilon: float, ridge: float | None = None) -> HorvitzThompson:
    return HorvitzThompson(n, SCHEMA, ATE, PrivacyBudget(epsilon, 0.0), ridge=ridge)


def summed(records: StackedRecords, plan: HorvitzThompson, theta: torch.Tensor) -> NoisyEstimate:
    """The estimate by these coefficients."""
    return plan.estimate(plan.sums(records, FitSession(NoiseSource.fixed(0)), {"propensity": theta}))


def test_constants_of_the_plan():
    plan = planned(5000, 2.0)
    assert sum_unit(plan.facts).item() == pytest.approx(20)  # 2 / eta
    assert plan.sum_scale(plan.facts).item() == pytest.approx(20, rel=1e-6)  # 2 / (eta epsilon / 2)
    # gamma = (1/4) / (exp(0.15 * 0.99) - 1), and a box of slope 2 / sqrt(5) at what determinants leave of 0.99
    assert plan.fit.ridge == pytest.approx(0.25 / math.expm1(0.15 * 0.99), rel=1e-8)
    left = 0.99 - logistic_jacobian(0.99, 1.0, plan.fit.ridge)
    assert plan.fit.public["tilt_scale"] == pytest.approx(2 / math.sqrt(5) / left, rel=1e-8)


def test_a_penalty_raises_the_ridge_and_what_it_saves_goes_into_less_noise():
    plain, least = (planned(5000, 1.0, penalty) for penalty in (None, 0.01))
    assert least.fit.ridge == pytest.approx(5000 * 0.01 / 5)  # of features scaled to largest entry 1
    assert least.fit.public["tilt_scale"] < plain.fit.public["tilt_scale"]
    for plan in (plain, least):
        jacobian = logistic_jacobian(0.5 * 0.99, 1.0, plan.fit.ridge)
        spent = jacobian + 2 / math.sqrt(5) / plan.fit.public["tilt_scale"]
        assert spent == pytest.approx(0.5 * 0.99, rel=1e-6)
    small = planned(5000, 1.0, 1e-9)
    assert small.fit.ridge == plain.fit.ridge


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
        terms.append(horvitz_thompson_terms(every, plan.released(rows), rows))
    moved, units = (each.amax(0) - each.amin(0) for each in [torch.cat(terms, 1)]), sum_unit(plan.released(theta))
    (moved,) = moved
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
    scale = plan.sum_scale(plan.released(theta)).item()
    assert errors.abs().mean().item() == pytest.approx(scale, rel=6 / math.sqrt(runs))
    assert errors.mean().abs().item() < 6 * math.sqrt(2 / runs) * scale
    assert scale < 0.75 * plan.sum_scale(plan.facts).item()
    assert found.estimate.abs().max() <= 1


def test_data_sets_side_by_side_give_what_each_gives_alone():
    records, facts = data_sets(3, 300, seed=0), EffectFacts(300, ATE)
    theta = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = records.total(lambda batch: horvitz_thompson_terms(batch, facts, theta))
    for k in range(3):
        alone = StackedRecords(Batch(*(part[k] for part in records.batch)))
        found = alone.total(lambda batch, k=k: horvitz_thompson_terms(batch, facts, theta[k : k + 1]))
        assert together[k].item() == pytest.approx(found.item())


def test_mean_squared_error_on_the_confounded_design():
    """Sampling and the sum's noise predict it; the propensity's noise adds less than as much again (60 data sets)."""
    plan = planned(2000, 2.0)
    found = plan.run(data_sets(60, 2000, seed=0), NoiseSource.fixed(0))
    noise = 2 * (plan.sum_scale(plan.facts).item() / 2000) ** 2
    assert (found.estimate - EFFECT).square().mean().item() < 2 * (noise + 1.0 / 2000)


def learner(**settings) -> HorvitzThompsonEffect:
    settings = {"noise": NoiseSource.fixed(0), "overlap": 0.1, **settings}
    return HorvitzThompsonEffect(DOMAIN, PrivacyBudget(2.0, 0.0), **settings)


def test_learner_pays_both_halves_and_has_no_interval(tmp_path):
    fitted = learner(noise=None).fit(*arrays(2000, seed=0))
    assert fitted.ledger_.spent("records")["epsilon"] == pytest.approx(1.0, rel=1e-6)
    release = fitted.release()
    assert abs(release.estimate - EFFECT) < 0.5  # the noise's deviation is 0.03
    assert release.privacy.level == "certified"
    assert 2.0 * (1 - 1e-6) < release.privacy.epsilon <= 2.0
    with pytest.raises(InputError, match="interval"):
        release.interval()
    path = release.save(tmp_path / "release.safetensors")
    verify_release(path)
    again = load_release(path)
    assert again.estimate == release.estimate
    assert torch.equal(again.weights.theta, fitted.weights_.theta)
    assert fitted.release() is release


def test_outcome_units():
    X, A, Y = arrays(2000, seed=0)
    wide = Domain([-1.0] * 4, [1.0] * 4, outcome_low=-5.0, outcome_high=15.0, overlap=0.1)
    settings = {"noise": NoiseSource.fixed(0), "overlap": 0.1}
    scaled = HorvitzThompsonEffect(wide, PrivacyBudget(2.0, 0.0), **settings).fit(X, A, 20 * Y - 5).release()
    assert scaled.estimate == pytest.approx(20 * learner().fit(X, A, Y).release().estimate)


def test_without_privacy():
    fitted = HorvitzThompsonEffect(DOMAIN, None, overlap=0.1).fit(*arrays(20_000, seed=0))
    assert abs(fitted.nonprivate_estimate().value - EFFECT) < 0.05
    with pytest.raises(InputError, match="budget = None"):
        fitted.release()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"estimand": "ATT"}, "estimates ATE"),
        ({"ridge": 0.0}, "ridge"),
        ({"ridge": float("nan")}, "ridge"),
        ({"overlap": 0.6}, "overlap"),
    ],
)
def test_refusals(settings, words):
    with pytest.raises(InputError, match=words):
        learner().set_params(**settings).fit(*arrays(200, seed=0))


def test_the_declared_pair_differs_in_one_record_and_keeps_the_propensity_clipped():
    before, after = _opposed(0), _opposed(1)
    rows = torch.cat([torch.cat([b.x, b.z[:, None], b.y[:, None]], 1) for b in (before.batch, after.batch)], 1)
    assert (rows[:, :3] != rows[:, 3:]).any(1).nonzero()[:, 0].tolist() == [0]
    assert before.counts[0] == after.counts[0] == 1
    shown = find("horvitz_thompson").make(PURE).draw(0, 200, NoiseSource.fixed(0))
    ends = torch.sigmoid(shown[:, :2] @ before.batch.psi[1:].T)
    assert (ends[:, 0] <= 0.1).all()
    assert (ends[:, 1] >= 0.9).all()


def test_attack_finds_most_of_epsilon_and_never_more():
    game = find("horvitz_thompson").make(PURE)
    evidence = [game.evidence(game.draw(world, 3000, NoiseSource.fixed(world))).abs().max().item() for world in (0, 1)]
    assert 0.9 < max(evidence) <= 1
    result = audit(find("horvitz_thompson"), PURE, trials=5000, noise=NoiseSource.fixed(3))
    assert result.bound > 0.6
    assert not result.refuted


def test_the_sum_is_the_same_bit_by_bit_in_any_order_of_the_records(monkeypatch):
    batch, plan = data_sets(1, 5_000, 0).batch, planned(5000, 1.0)
    psi = torch.round(batch.psi[0] * 1024) / 1024  # with these coefficients no score is rounded
    one = Batch(batch.x[0], psi, batch.z[0], batch.y[0] * 0.7)
    order, theta = torch.randperm(5_000), torch.tensor([[0.25, 1.0, 0.5, -0.5, -1.0]], dtype=torch.float64)
    seen = given(monkeypatch)
    for part in (one, Batch(*(column[order] for column in one))):
        summed(StackedRecords(part), plan, theta)
    assert torch.equal(*seen)
