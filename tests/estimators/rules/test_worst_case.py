"""Games on learners of rules: neighbours indeed, exact evidence, honest noise that is not refuted."""

import math

import pytest
import torch
from scipy.special import expit

from torchdpcate.audit.attack import audit
from torchdpcate.audit.registry import find
from torchdpcate.data.records import CausalData
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import HuberHinge, Logistic
from torchdpcate.estimators.rules import worst_case
from torchdpcate.nuisance.weights.private import largest_weight
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)
PURE = PrivacyBudget(1.0, 0.0)


def changed_rows(problems):
    """Rows in which two weighted ERMs differ."""
    before, after = (torch.cat([p.psi, p.target[:, None], p.weights[:, None]], 1) for p in problems)
    return (before != after).any(1).nonzero()[:, 0].tolist()


def facts(problem):
    """What must be public."""
    return problem.ridge, problem.bounds, problem.largest_entry, problem.loss, problem.domain


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_the_worlds_differ_in_one_record(apart):
    before, after = (torch.cat([part.reshape(40, -1) for part in worst_case._records(w, apart)], 1) for w in (0, 1))
    assert (before != after).any(1).nonzero()[:, 0].tolist() == [0]


def test_one_term_of_outcome_weighted_learning_differs_and_all_that_is_public_agrees():
    problems = [worst_case._one_stage_problem(world) for world in (0, 1)]
    assert changed_rows(problems) == [0]
    assert facts(problems[0]) == facts(problems[1])
    assert problems[0].weights[0] == problems[0].bounds.most  # the heaviest record there may be


def test_for_the_same_propensity_one_term_of_a_two_stage_rule_differs():
    before, after = (worst_case._two_stage_fit(world, PURE, NoiseSource.fixed(world)) for world in (0, 1))
    # private constants would differ, for the noise does
    assert before.outcome_.public(worst_case._DOMAIN) == after.outcome_.public(worst_case._DOMAIN)
    assert before.weights_.public == after.weights_.public  # ridge and scale of the first stage
    records = CausalData(*worst_case._records(1, 1.0))
    after.weights_ = before.weights_
    problems = [before.problem_, after.problem(records)]
    assert changed_rows(problems) == [0]
    assert facts(problems[0]) == facts(problems[1])


@pytest.mark.first(1)
@pytest.mark.parametrize("world", [0, 1])
def test_densities_integrate_to_the_mass_of_the_cubes_noise(world):
    """Theta and b are one to one: exp of the log density has the mass of exp(-||b||_inf / s), 8 s^2 for p = 2."""
    (_, a, _), few = worst_case._records(world, 1.0), slice(4)
    psi, label = worst_case._two_stage_fit(world, None).problem_.psi[few], (2 * a - 1)[few]
    weights, scale, ridge = torch.tensor([2.0, 0.2, 1.0, 0.5]).double(), 1.5, 8.0  # a ridge small enough for curvature
    end = (weights.sum().item() + 16 * scale) / ridge  # beyond lies 2e-6 of the mass
    line = torch.linspace(-end, end, 801).double()
    theta = torch.cartesian_prod(line, line)
    every = torch.ones(len(theta)).double()
    for loss in (Logistic(), HuberHinge()):
        logs = worst_case._log_density(theta, psi, label, weights, loss, ridge * every, scale * every)
        mass = logs.exp().sum() * (line[1] - line[0]) ** 2
        assert mass.item() == pytest.approx(8 * scale**2, rel=2e-3)  # the density has kinks and jumps


def test_the_evidence_weighs_records_as_the_learner_does(monkeypatch):
    """With both stages' densities caught: labels, weights and constants are those of the fitted learner."""
    learner, seen = worst_case._two_stage_fit(1, PURE, NoiseSource.fixed(4)), []
    shown = worst_case._shown(learner)[None]
    monkeypatch.setattr(worst_case, "_log_density", lambda *args: seen.append(args) or torch.zeros(1))
    worst_case._two_stage_log_density(shown, 1)
    (first, *_, first_ridge, first_scale), (theta, psi, target, weights, loss, ridge, scale) = seen
    assert torch.equal(theta, shown[:, 2:4])
    problem, weights_ = learner.problem_, learner.weights_
    assert torch.equal(first[0], weights_.theta)
    assert torch.equal(psi, problem.psi)
    assert torch.equal(target, problem.target)
    assert torch.allclose(weights[0], problem.weights, rtol=1e-14)
    assert (loss, ridge.item()) == (problem.loss, problem.ridge)
    # by hand: share 0.25, then all that is left; 1 % pays the solver's stop
    assert first_ridge.item() == pytest.approx(200 * 2 / (40 * 0.25**2))
    assert first_scale.item() == pytest.approx(
        2 * math.sqrt(0.5) / (0.25 * 0.99 - math.log1p(0.25 / first_ridge.item()))
    )
    most = largest_weight(weights_.theta, learner._features(worst_case._DOMAIN))
    assert most == pytest.approx(0.5 / expit(-weights_.theta.abs().sum().item() / math.sqrt(2)))
    assert problem.bounds == WeightBounds.per_record(most)
    assert scale.item() == pytest.approx(2 * most * math.sqrt(0.5) / (0.75 * 0.99 - math.log1p(most / 100)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "runs"), [("outcome_weighted_learner", 20_000), ("two_stage_rule", 250)])
def test_the_evidence_is_the_exact_log_likelihood_ratio(name, runs):
    """E_0 exp(L) = 1 = E_1 exp(-L), to five standard errors: wrong once in 1e6 looks, and the noise is fixed.

    The same mean of exp(-L) on D is off by far more, so a wrong L shows.
    """
    game, noise = find(name).make(BUDGET), NoiseSource.fixed(5)
    ratios = [game.evidence(game.draw(world, runs, noise)) for world in (0, 1)]
    for means in (ratios[0].exp(), (-ratios[1]).exp()):
        assert abs(means.mean().item() - 1) < 5 * means.std().item() / math.sqrt(runs)
    wrong = (-ratios[0]).exp()
    assert wrong.mean().item() - 1 > 5 * wrong.std().item() / math.sqrt(runs)
    most = max(ratio.abs().max().item() for ratio in ratios)
    assert 0.8 < most < 1.0  # how far a bound can reach, and never beyond the claim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trials"), [("outcome_weighted_learner", 10_000), ("two_stage_rule", 100)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("seed", range(2))
def test_an_honest_audit_is_not_refuted(name, trials, seed):
    assert not audit(find(name), BUDGET, trials=trials, noise=NoiseSource.fixed(seed)).refuted
