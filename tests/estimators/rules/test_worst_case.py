"""Games on learners of rules: neighbours indeed, exact evidence, honest noise that is not refuted."""

import math
from dataclasses import replace

import pytest
import torch

from torchdpcate.audit.report import find
from torchdpcate.estimators.answers import clone
from torchdpcate.estimators.rules import worst_case
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import HuberHinge, Logistic, LossBounds
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.fit.worst_pairs import log_density
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
    return problem.ridge, problem.bounds, problem.largest_entry, problem.loss


def test_one_term_of_outcome_weighted_learning_differs_and_all_that_is_public_agrees():
    problems = [worst_case._one_stage_problem(dataset) for dataset in (0, 1)]
    assert changed_rows(problems) == [0]
    assert facts(problems[0]) == facts(problems[1])
    assert problems[0].weights[0] == problems[0].bounds.most  # the heaviest record there may be


def test_for_the_same_propensity_one_term_of_a_two_stage_rule_differs():
    game = worst_case.TwoStages(PURE)
    first = game.draw(0, 1, NoiseSource.fixed(0))[:, :2]
    problems = [game._problem(dataset, first) for dataset in (0, 1)]
    assert changed_rows([replace(problem, weights=problem.weights[0]) for problem in problems]) == [0]
    assert facts(problems[0]) == facts(problems[1])
    assert [problem.weights[0, 0] for problem in problems] == [problems[0].bounds.most] * 2  # the heaviest there may be
    assert not problems[0].weights[:, 1:].any()


@pytest.mark.parametrize("dataset", [0, 1])
def test_runs_side_by_side_are_those_of_the_learner(dataset, monkeypatch):
    """The same noise, in units of its scale, given to the learner run by run on all records of the crowd."""
    game, runs = worst_case.TwoStages(PURE), 3
    noise = torch.randn(2, runs, 2, generator=torch.Generator().manual_seed(1)).double()

    def with_noise(stages):
        given = iter(stages)
        monkeypatch.setattr(
            ObjectiveNoise, "release", lambda self, minimise, source, runs: minimise(self.scale * next(given))
        )

    with_noise(noise)
    together = game.draw(dataset, runs, NoiseSource.fixed(0))
    x, a, y, count = game.records(dataset)
    x, a, y = (part.repeat_interleave(count.long(), 0) for part in (x, a, y))
    for k in range(runs):
        with_noise(noise[:, k : k + 1])
        learner = clone(game.learner).fit(x, a, y)
        shown = torch.cat([learner.weights_.theta, learner.release().theta])
        assert torch.allclose(together[k], shown, rtol=1e-7, atol=1e-11)


@pytest.mark.slow
@pytest.mark.first(1)
@pytest.mark.parametrize("dataset", [0, 1])
def test_densities_integrate_to_the_mass_of_the_cubes_noise(dataset):
    """Theta and b are one to one: exp of the log density has the mass of exp(-||b||_inf / s), 8 s^2 for p = 2."""
    (_, a, _), few = worst_case._records(dataset), slice(4)
    psi = on_domain(None, worst_case._DOMAIN)(torch.tensor([[1.0], [0.0], [0.0], [0.0]]).double())
    label = (2 * a - 1)[few]
    weights, scale, ridge = torch.tensor([2.0, 0.2, 1.0, 0.5]).double(), 1.5, 8.0  # a ridge small enough for curvature
    end = (weights.sum().item() + 16 * scale) / ridge  # beyond lies 2e-6 of the mass
    line = torch.linspace(-end, end, 801).double()
    theta = torch.cartesian_prod(line, line)
    for loss in (Logistic(), HuberHinge()):
        fit = PrivateFit(LossBounds.of(loss), WeightBounds.per_record(1.0), ridge, size=2)
        objective = replace(fit.objective(PURE, "box"), scale=scale)
        logs = log_density(theta, objective, loss, (psi, label, weights))
        mass = logs.exp().sum() * (line[1] - line[0]) ** 2
        assert mass.item() == pytest.approx(8 * scale**2, rel=2e-3)  # the density has kinks and jumps


@pytest.mark.slow
@pytest.mark.parametrize(("name", "runs"), [("outcome_weighted_learner", 20_000), ("two_stage_rule", 20_000)])
def test_the_evidence_is_the_exact_log_likelihood_ratio(name, runs):
    """E_0 exp(L) = 1 = E_1 exp(-L), to five standard errors: wrong once in 1e6 looks, and the noise is fixed.

    The same mean of exp(-L) on D is off by far more, so a wrong L shows.
    """
    game, noise = find(name).make(BUDGET), NoiseSource.fixed(5)
    ratios = [game.evidence(game.draw(dataset, runs, noise)) for dataset in (0, 1)]
    for means in (ratios[0].exp(), (-ratios[1]).exp()):
        assert abs(means.mean().item() - 1) < 5 * means.std().item() / math.sqrt(runs)
    wrong = (-ratios[0]).exp()
    assert wrong.mean().item() - 1 > 5 * wrong.std().item() / math.sqrt(runs)
    most = max(ratio.abs().max().item() for ratio in ratios)
    assert 0.8 < most < 1.0  # how far a bound can reach, and never beyond the claim
