"""What is said of the noise, against the noise itself."""

import math

import pytest
import torch

from experiments.dp_2erm.balancing import with_indirect
from tests.fit.cases import calibrate_objective
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.plan import NoiseReport, RulePlan, expected_accuracy, share_of
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS, WeightedERM
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import HuberHinge, LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.mechanisms import Spread
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)
LOSS = HuberHinge()
KINDS = [(way, kind) for way, mechanism in RULE_MECHANISMS.items() for kind in mechanism.kinds]
FACTS = {"n": 1000, "size": 5, "bounds": WeightBounds.per_record(1.0), "ridge": 50.0, "budget": BUDGET}
DOMAIN = Domain([0.0], [1.0], 0.0, 1.0, better="higher")


def report_of(budget, mechanism="objective", perturbation="gamma", spent=1.0, **fit):
    """What the plan of a rule of this private fit says."""
    rule, schema = RULE_MECHANISMS.find(mechanism)(perturbation), TableSchema.of(DOMAIN)
    facts = budget, rule, PrivateFit(LossBounds.of(LOSS), **fit), on_domain(None, DOMAIN), share_of(budget, spent)
    return NoiseReport(RulePlan(fit["n"], schema, *facts, {}, None, None))


def uniform_directions(n: int, p: int, generator: torch.Generator) -> torch.Tensor:
    psi = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return psi / psi.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(("mechanism", "kind"), KINDS)
@pytest.mark.parametrize("n", [60, 300])
def test_the_accuracy_is_that_of_simulated_rules(mechanism, kind, n):
    """Records of uniform direction that one direction tells apart, a ridge that makes noise and signal add up.

    4000 rules, each on 500 fresh records: the standard error of the mean is below 0.003.
    """
    generator, p = torch.Generator().manual_seed(n), 5
    psi = uniform_directions(n, p, generator)
    target = psi[:, 0].sign()
    problem = WeightedERM(psi, target, torch.ones_like(target), LOSS, 5000.0, FACTS["bounds"])
    rule = RULE_MECHANISMS.find(mechanism)(kind)
    law = rule.law(problem.public, BUDGET)
    theta = law.draw(NoiseSource.fixed(n), 4000, problem.exact(law))
    fresh = uniform_directions(500, p, generator)
    accuracy = ((theta @ fresh.T > 0) == (fresh[:, 0] > 0)).double().mean().item()
    settings = FACTS | {"n": n, "ridge": 5000.0, "mechanism": mechanism, "perturbation": kind}
    guess, pull = report_of(**settings), (psi * target[:, None]).sum(0).norm().item()
    assert guess.signal == pytest.approx(pull, rel=0.15)
    assert guess.accuracy == pytest.approx(accuracy, abs=0.03)


@pytest.mark.parametrize("kind", ["gamma", "box", "gaussian"])
@pytest.mark.parametrize("p", [1, 2, 10])
def test_the_length_is_that_of_the_noise(kind, p):
    objective = calibrate_objective(
        BUDGET, kind=kind, slope=1.0, bounds=FACTS["bounds"], curvature=1.0, gamma=50.0, size=p
    )
    drawn = objective.draw(NoiseSource.fixed(0), 40_000).square().sum(1).mean().sqrt().item()
    assert objective.spread.length == pytest.approx(drawn, rel=0.03)


@pytest.mark.parametrize("kind", ["gamma", "box", "gaussian"])
def test_accuracy_runs_from_chance_to_one(kind):
    order = {"gamma": 2.0, "box": math.inf, "gaussian": None}[kind]
    values = [expected_accuracy(Spread(1.0, 4, order), signal) for signal in (0.0, 1.0, 10.0, 1e6)]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (pytest.approx(0.5, abs=1e-12), pytest.approx(1.0, abs=1e-4))
    # one coefficient: only a change of sign matters, and the K-norm noise is Laplace's
    assert expected_accuracy(Spread(1.0, 1, 2.0), 2.0) == pytest.approx(1 - math.exp(-2) / 2, abs=1e-3)


def test_the_ridge_that_a_budget_needs():
    bounds = WeightBounds.per_record(4.0)
    assert bounds.ridge_for(1.0, 0.25) == pytest.approx(400 * 0.03520812, rel=1e-6)
    spilled = with_indirect(4.0, 21.908902)
    assert spilled.ridge_for(1.0, 0.6477226) == pytest.approx(40.0, rel=1e-6)
