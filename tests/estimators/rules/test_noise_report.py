"""What is said of the noise, against the noise itself."""

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.plan import NoiseReport, RulePlan, share_of
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS, WeightedERM
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import HuberHinge, LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
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
