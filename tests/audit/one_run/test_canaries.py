"""Canaries in real nuisance trainings: what they are, what is heard of them, and the faults that they find.

The noise is fixed, so every test has one outcome; the margins are stated for fresh noise.  Counts of right guesses
were measured in 200 simulated runs of the worst pair of the plan, 1,000 canaries of which 500 are guessed.
"""

from dataclasses import replace

import pytest
import torch

from tests.fit.nuisance_cases import Recorder
from tests.tools import one_run as canaries_module
from tests.tools.one_run import (
    ATTACKS,
    CANARY_CONFIG,
    Eavesdropper,
    OneRunAudit,
    Overheard,
    audit_nuisances,
    canary_domain,
    canary_pairs,
    judge,
    loss_gaps,
    overhear,
)
from tests.tools.one_run_bounds import best_guesses
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan
from torchdpcate.fit.linear_taps import Use
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

QUICK = replace(CANARY_CONFIG, epochs=4)
"""Eight steps instead of twenty."""


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def budget(epsilon: float) -> PrivacyBudget:
    return PrivacyBudget(epsilon, 1e-5)


def record_gradients(module, records, weights):
    """Gradients of single records, [m, d], one backward pass each; the module's weights are set on the way."""
    with torch.no_grad():
        for p, w in zip(module.parameters(), weights, strict=True):
            p.copy_(w)
    rows = []
    for i in range(records.n):
        batch = tuple(part[i : i + 1].float() for part in (records.x, records.a, records.y))
        grads = torch.autograd.grad(module.record_loss(batch)[0], list(module.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def sides(pairs):
    return pairs.records(torch.ones(len(pairs.a))), pairs.records(-torch.ones(len(pairs.a)))


def test_pairs_lie_in_the_domain_and_differ_in_the_outcome_alone():
    domain = Domain([0.0, -2.0, 5.0], [1.0, 2.0, 9.0], outcome_low=-0.1, outcome_high=0.3, better="higher")
    pairs = canary_pairs(QUICK.module(domain), 8)
    plus, minus = sides(pairs)
    domain.check_covariates(plus.x)
    domain.check_outcome(plus.y)
    domain.check_outcome(minus.y)
    assert torch.equal(plus.x, minus.x)
    assert torch.equal(plus.a, minus.a)
    assert set(plus.y.tolist()) == {0.3}
    assert set(minus.y.tolist()) == {-0.1}
    assert len({(*x, a) for x, a in zip(plus.x.tolist(), plus.a.tolist(), strict=True)}) == 8


def test_the_coins_choose_record_by_record():
    pairs = canary_pairs(QUICK.module(canary_domain(4)), 4)
    assert pairs.records(torch.tensor([1.0, -1.0, -1.0, 1.0])).y.tolist() == [1, 0, 0, 1]


def test_gradients_of_canaries_are_opposite_in_a_pair_and_orthogonal_between_pairs():
    torch.manual_seed(0)
    module = QUICK.module(canary_domain(60))
    plus, minus = (
        record_gradients(module, side, list(module.parameters())) for side in sides(canary_pairs(module, 60))
    )
    assert float(plus.norm(dim=1).min()) > 0.5
    plus, minus = (torch.nn.functional.normalize(side) for side in (plus, minus))
    assert float((plus - minus).norm(dim=1).min()) > 1.99  # of 2
    between = (plus @ plus.T).fill_diagonal_(0.0).abs()
    assert float(between.max()) < 1e-2  # the propensity's share, where two arms have one corner


@pytest.mark.parametrize(("width", "optimizer", "rate", "clip"), [(0, "sgd", 0.5, 0.2), (5, "adam", 1.0, 1.2)])
def test_what_is_heard_is_the_likelihood_ratio_computed_record_by_record(width, optimizer, rate, clip):
    config = NuisanceConfig(width, 0.05, batch_size=6, epochs=1, max_grad_norm=clip, optimizer=optimizer)
    plan = DPSGDPlan(noise_multiplier=1.5, max_grad_norm=clip, sampling_rate=rate, steps=3)
    torch.manual_seed(3)
    module = config.module(canary_domain(12))
    pairs = canary_pairs(module, 12)
    ours, seen = Eavesdropper(module, pairs, plan), Recorder()

    def trainer(*, callbacks, **limits):
        return default_trainer(accelerator="cpu", callbacks=[*callbacks, ours, seen], **limits)

    settings = {"batch_size": 6, "epochs": 1, "plan": plan, "noise": NoiseSource.fixed(0)}
    train(module, pairs.records(torch.ones(12)), trainer, seed=0, **settings)
    expected, long = torch.zeros(12, dtype=torch.float64), []
    for weights, grads in zip(seen.weights, seen.grads, strict=True):
        noisy_sum = torch.cat([g.flatten() for g in grads]).double() * rate * 12
        for side, sign in zip(sides(pairs), (1, -1), strict=True):
            own = record_gradients(module, side, weights).double()
            long.append(own.norm(dim=1) > clip)
            own = own * (clip / own.norm(dim=1, keepdim=True)).clamp(max=1)
            away = [((noisy_sum - shift) ** 2).sum(1) / (2 * (1.5 * clip) ** 2) for shift in (0 * own, own)]
            densities = [torch.exp(-part) for part in away]
            expected += sign * ((1 - rate) * densities[0] + rate * densities[1]).log()
    assert len(seen.grads) == 3
    assert torch.cat(long).all() == (width == 0)  # the second case has gradients shorter than the clip norm too
    assert torch.cat(long).any()
    torch.testing.assert_close(ours.scores, expected, rtol=1e-3, atol=1e-4)


def test_loss_gaps_are_differences_of_record_losses():
    module = QUICK.module(canary_domain(6))
    pairs = canary_pairs(module, 6)
    losses = [module.record_loss(tuple(p.float() for p in (s.x, s.a, s.y))).detach() for s in sides(pairs)]
    torch.testing.assert_close(loss_gaps(module, pairs), (losses[1] - losses[0]).double())


def test_coins_are_fresh_unless_the_noise_is_fixed():
    plan = DPSGDPlan(1.0, 0.1, 0.5, 1)
    settings = QUICK, plan, canary_domain(64), 64, 0
    fixed = [overhear(*settings, NoiseSource.fixed(7)) for _ in range(2)]
    assert torch.equal(fixed[0].coins, fixed[1].coins)
    assert torch.equal(fixed[0].white_box, fixed[1].white_box)
    fresh = [overhear(*settings, NoiseSource.system()).coins for _ in range(2)]
    assert not torch.equal(*fresh)  # equal by chance with probability 2^-64
    assert set(fresh[0].tolist()) == {-1.0, 1.0}


@pytest.fixture(scope="module")
def honest() -> OneRunAudit:
    torch.set_num_threads(1)
    return audit_nuisances(budget(8), noise=NoiseSource.fixed(1))


@pytest.mark.slow
def test_an_honest_training_is_not_refuted_and_the_bound_says_something(honest):
    """461 right guesses are expected with a deviation of 6; 498 refute the claim."""
    assert not honest.refuted
    assert honest.claim == pytest.approx(8, rel=1e-4)
    assert 430 < honest.correct[0] < 492
    assert 2.5 < honest.epsilon_bound < 8
    assert 0.6 < honest.mu_bound < 1.7
    assert 1 < honest.free_bound < honest.epsilon_bound
    assert honest.to_dict()["refuted"] is False


@pytest.fixture(scope="module")
def heard() -> Overheard:
    torch.set_num_threads(1)
    return overhear(QUICK, QUICK.plan(1000, budget(4)), canary_domain(1000), 1000, 0, NoiseSource.fixed(2))


@pytest.mark.slow
def test_hearing_every_step_is_as_good_as_the_worst_pair_allows(heard):
    """Right guesses of all 1,000 against those of the plan's dominating pair: no power is lost on the way."""
    plan = QUICK.plan(1000, budget(4))
    torch.manual_seed(0)
    coins = torch.randint(2, (200_000,)) * 2 - 1
    odds, ideal = torch.tensor(plan.sampling_rate).logit(), 0
    for _ in range(plan.steps):
        y = (torch.rand(len(coins)) < plan.sampling_rate) * coins + plan.noise_multiplier * torch.randn(len(coins))
        terms = [torch.nn.functional.softplus(odds + (s * y - 0.5) / plan.noise_multiplier**2) for s in (1, -1)]
        ideal = ideal + terms[0] - terms[1]
    wanted = float(((ideal > 0) == (coins > 0)).double().mean()) * 1000
    # the count's standard deviation is 15
    assert int(best_guesses(heard.white_box, heard.coins, 1000)) == pytest.approx(wanted, abs=75)


@pytest.mark.slow
def test_the_final_model_alone_betrays_nearly_as_much(heard):
    """678 of 1,000 are the most to be expected, with a deviation of 15, and 500 by chance."""
    assert 590 < int(best_guesses(heard.black_box, heard.coins, 1000)) < 753


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_honest_noise_is_not_refuted(attack, heard):
    """387 right guesses of 500 are the most to be expected, with a deviation of 10; 465 refute."""
    correct = int(best_guesses(getattr(heard, attack), heard.coins, 500))
    assert not judge(QUICK.plan(1000, budget(4)), 1e-5, attack, 1000, 500, (correct,), 0.95).refuted


def weaker_noise(monkeypatch, factor):
    """Train with the noise scale divided, while the plan claims the whole."""

    def faulty(*args, plan, **settings):
        return train(*args, plan=replace(plan, noise_multiplier=plan.noise_multiplier / factor), **settings)

    monkeypatch.setattr(canaries_module, "train", faulty)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_noise_of_a_tenth_is_refuted_in_one_run(attack, monkeypatch):
    """465 right guesses of 500 refute, eight deviations above an honest training's 387; nearly all 500 are met."""
    weaker_noise(monkeypatch, 10)
    found = audit_nuisances(budget(4), QUICK, attack=attack, noise=NoiseSource.fixed(3))
    assert found.refuted
    assert found.correct[0] >= 490


@pytest.mark.slow
def test_halved_noise_is_refuted_in_four_runs(monkeypatch):
    """Four runs must all have 420 right guesses of 500.

    With half the noise 468 are met with a deviation of 6, eight deviations above; by an honest training 387 with a
    deviation of 10, so that all four reach 420 with a probability near 1e-13.
    """
    weaker_noise(monkeypatch, 2)
    found = audit_nuisances(budget(4), QUICK, runs=4, noise=NoiseSource.fixed(4))
    assert found.refuted
    assert len(set(found.correct)) > 1  # the runs are not one run four times


@pytest.mark.slow
def test_an_unclipped_gradient_is_refuted_in_one_run(monkeypatch):
    """Gradients are several hundred clip norms long, so all guesses are right; 465 refute."""
    norms = Use.squared_norms
    monkeypatch.setattr(Use, "squared_norms", lambda self: torch.zeros_like(norms(self)))
    found = audit_nuisances(budget(4), QUICK, noise=NoiseSource.fixed(5))
    assert found.refuted
    assert found.correct[0] >= 495


@pytest.mark.slow
def test_several_runs_are_judged_by_their_fewest_right_guesses():
    plan = QUICK.plan(1000, budget(4))
    three, alike, one = (
        judge(plan, 1e-5, "white_box", 1000, 500, correct, 0.95) for correct in ((450, 400, 480), (400,) * 3, (400,))
    )
    assert three.epsilon_bound == alike.epsilon_bound > one.epsilon_bound


@pytest.mark.slow
def test_a_wide_network_on_few_covariates_is_a_weaker_but_valid_target():
    domain = Domain([0.0] * 20, [1.0] * 20, outcome_low=0.0, outcome_high=10.0, better="higher")
    config = NuisanceConfig(width=8, batch_size=20, epochs=3)
    assert not audit_nuisances(budget(1), config, domain, canaries=40, noise=NoiseSource.fixed(6)).refuted


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"attack": "grey_box"}, "attack"),
        ({"runs": 0}, "runs"),
        ({"domain": Domain([0.0], [1.0], 0.0, 1.0, better="higher")}, "canaries"),
        ({"canaries": 100}, "batch_size"),
        ({"guesses": 2000}, "guesses"),
        ({"guesses": 0}, "guesses"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_senseless_settings_are_refused(settings, named):
    with pytest.raises(InputError, match=named):
        audit_nuisances(budget(8), **{"noise": NoiseSource.fixed(0), **settings})
