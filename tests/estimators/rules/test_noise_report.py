"""What is said of the noise, against the noise itself."""

import math

import pytest
import torch

from tests.fit.cases import calibrate_objective, output_mechanism
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.noise_report import NoiseReport, expected_accuracy
from torchdpcate.estimators.rules.plan import RulePlan, share_of
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS, WeightedERM, check_ridge
from torchdpcate.fit.losses import HuberHinge, LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.mechanisms import Spread
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)
LOSS = HuberHinge()
KINDS = [(way, kind) for way, mechanism in RULE_MECHANISMS.items() for kind in mechanism.kinds]
FACTS = {"n": 1000, "size": 5, "bounds": WeightBounds.per_record(1.0), "ridge": 50.0, "budget": BUDGET}
DOMAIN = Domain([0.0], [1.0], 0.0, 1.0, better="higher")


def report_of(budget, mechanism="objective", perturbation="gamma", spent=1.0, outcome="", signal=None, **fit):
    """What the plan of a rule of this private fit says."""
    rule, schema = RULE_MECHANISMS.find(mechanism)(perturbation), TableSchema.of(DOMAIN)
    facts = budget, rule, PrivateFit(LossBounds.of(LOSS), **fit), on_domain(None, DOMAIN), share_of(budget, spent)
    return NoiseReport(RulePlan(fit["n"], schema, *facts, {"outcome": outcome}, None, None), share=signal)


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
    assert report_of(**settings, signal=pull / n).accuracy == pytest.approx(accuracy, abs=0.02)


@pytest.mark.parametrize("kind", ["gamma", "box", "gaussian"])
@pytest.mark.parametrize("p", [1, 2, 10])
def test_the_length_is_that_of_the_noise(kind, p):
    objective = calibrate_objective(
        BUDGET, kind=kind, slope=1.0, bounds=FACTS["bounds"], curvature=1.0, gamma=50.0, size=p
    )
    drawn = objective.draw(NoiseSource.fixed(0), 40_000).square().sum(1).mean().sqrt().item()
    assert objective.spread.length == pytest.approx(drawn, rel=0.03)


def test_every_proven_way_is_compared():
    report = report_of(**FACTS)
    assert set(report.others) == {f"{mechanism} {kind}" for mechanism, kind in KINDS}
    output = output_mechanism(BUDGET, kind="gamma", slope=1.0, bounds=FACTS["bounds"], gamma=50.0, tolerance=1e-12)
    assert report.others["output gamma"] == pytest.approx(50 * output.spread(5).length, rel=1e-6)
    assert report.noise == report.others["objective gamma"]
    pure = report_of(**FACTS | {"budget": PrivacyBudget(1.0, 0.0)})
    assert set(pure.others) == {name for name in report.others if "gaussian" not in name}


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
    spilled = WeightBounds.with_indirect(4.0, 21.908902)
    assert spilled.ridge_for(1.0, 0.6477226) == pytest.approx(40.0, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bounds": WeightBounds.with_indirect(1.0, 20.0), "ridge": 500.0}, "indirect sensitivity is 91%"),
        ({"spent": 0.5}, "first stage takes 50% of epsilon"),
        ({"bounds": WeightBounds.per_record(5.0)}, "largest weight is 5 times"),
        ({"ridge": 1.0}, "determinants take 69% of epsilon: raise the ridge"),
        ({"n": 3}, "too few records"),
        ({"size": 200, "n": 200}, "200 coefficients: fewer features"),
        ({"size": 20, "perturbation": "gaussian", "largest_entry": 20**-0.5}, "perturbation=box has"),
    ],
)
def test_the_first_advice_is_what_dominates(change, words):
    report = report_of(**FACTS | {"largest_entry": 1.0} | change)
    assert words in report.advice[0]
    assert report.advice[0] in str(report)


def test_a_shifted_outcome_is_told_of_the_signed_residual():
    assert any("signed_residual" in line for line in report_of(**FACTS, outcome="shifted").advice)


def test_a_hopeless_budget_is_refused_with_the_accuracy_to_expect():
    budget = PrivacyBudget(1e-4, 0.0)
    needed = FACTS["bounds"].ridge_for(LOSS.curvature, budget.epsilon / 2)
    report = report_of(**FACTS | {"budget": budget, "ridge": needed, "mechanism": "output"})
    with pytest.raises(InputError) as refused:
        check_ridge(needed, 1000.0, budget, lambda: report)
    for words in ("epsilon = 0.0001", "ridge = 2e+04", "ridge_bound = 1e+03", "accuracy of 0.50", "records"):
        assert words in str(refused.value)
    check_ridge(needed, 1e5, budget, lambda: report)
