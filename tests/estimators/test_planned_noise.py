"""Expected noise: its arithmetic, and what mechanisms then do to records that are as a plan takes them to be."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from tests.estimators.families import FAMILIES, OBSERVED, TRIAL, made
from tests.privacy.regret import expected_regret
from tests.registered import (
    CovariateBalancingEffect,
    InfluencePerturbation,
    ObjectivePerturbation,
    OutcomeWeightedLearner,
    OutputPerturbation,
    PrivateResidual,
    RLearner,
    SmoothSensitivity,
)
from torchdpcate import PrivacyBudget
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.cate.head import PlannedHead
from torchdpcate.estimators.cate.mechanisms.worst_pairs import given_stage
from torchdpcate.estimators.planned_noise import (
    SERVES,
    PlannedNoise,
    least_epsilon,
    least_records,
    planned_deviation,
    worth_asking,
)
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.heads.kernel import KernelSecondStage
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.heads.stage import SecondStageBlock
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import ExponentialMechanism, PermuteAndFlip

BUDGET = PrivacyBudget(1.0, 1e-5)
N = 4_000


@pytest.mark.parametrize("name", FAMILIES)
def test_every_estimator_says_its_noise_before_it_sees_a_record(name):
    estimator = made(name, budget=BUDGET)
    few, many = estimator.expected_noise(2_000), estimator.expected_noise(200_000)
    assert isinstance(few, PlannedNoise)
    assert 0 < many.value < few.value < math.inf
    assert math.hypot(*few.parts.values()) == pytest.approx(few.value, rel=1e-9)
    assert (few.n, few.outcome_range, few.level) == (2_000, 2.0, "certified")
    assert json.loads(json.dumps(few.to_dict()))["expected_noise"] == few.value
    assert made(name, budget=PrivacyBudget(4.0, 1e-5)).expected_noise(2_000).value < few.value
    assert not [attribute for attribute in vars(estimator) if attribute.endswith("_")]  # nothing was fitted
    with pytest.raises(InputError, match="budget = None"):
        made(name, budget=None).expected_noise(2_000)


def test_without_records_there_is_nothing_to_plan():
    for name in ("effect", "two stages", "balancing", "subgroups", "policies"):
        with pytest.raises(InputError, match="n = 0"):
            made(name).expected_noise(0)


def costs(sd: float | None) -> Domain:
    return Domain([0.0] * 3, [1.0] * 3, 0.0, 60_000.0, outcome_sd=sd, better="lower")


PLANNED = {
    "sampling of an average": lambda domain: made("average", domain, BUDGET).expected_noise(N).parts["sampling"],
    "weights": lambda domain: PrivateResidual().unit(domain),
    **{
        name: lambda domain, name=name: made(name, domain, BUDGET).expected_noise(N).value
        for name in ("effect", "two blocks", "rule", "average", "line subgroups", "policies")
    },
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_stated_deviation_is_what_plans_expect(name: str) -> None:
    """One rule for all plans: they expect outcomes as spread as is stated, and else a share of the range."""
    usual, stated, larger = (PLANNED[name](costs(sd)) for sd in (None, 600.0, 1200.0))
    assert stated < 0.5 * usual
    assert stated < larger <= 2 * stated * (1 + 1e-9)


def test_plans_say_whose_number_it_is() -> None:
    for name in ("effect", "average", "rule"):
        assert "(outcome.sd, as stated)" in " ".join(made(name, costs(600.0), BUDGET).expected_noise(N).assumes)
        assert "as stated" not in " ".join(made(name, costs(None), BUDGET).expected_noise(N).assumes)


@pytest.mark.parametrize("domain", [costs(600.0), costs(None)])
def test_a_function_is_worth_asking_where_it_errs_less_than_one_number(domain: Domain) -> None:
    def words(n: int) -> str:
        found = made("effect", domain, BUDGET).expected_noise(n)
        return worth_asking(found.value, TableSchema.of(domain), found.relative)

    assert [words(n) for n in (500, 1_300, 20_000)] == [SERVES, "for large effects", "yes"]
    assert made("average", domain, BUDGET).expected_noise(N).relative is None


def test_what_public_facts_do_not_decide_is_not_known():
    learner = RLearner(OBSERVED, BUDGET, second_stage=KernelSecondStage())
    noise = learner.expected_noise(2_000, "influence")
    assert math.isnan(noise.value)
    assert (noise.feasible, noise.to_dict()["expected_noise"]) == (None, None)
    assert noise.line.startswith("expected noise not known of a range of 2 at n = 2,000")


def test_the_noise_of_output_perturbation_is_its_closed_form():
    """Public threshold, features of norm one: Delta sigma = 2 B tau / (ridge n) sigma(1, 1e-5), sigma = 3.7306."""
    recipe = LinearSecondStage(ridge=0.01, threshold=0.5)
    found = RLearner(OBSERVED, BUDGET, second_stage=recipe).expected_noise(4_000, "output")
    expected = 2 * 0.75 * 0.5 / (0.01 * 2_000) * 3.730631634816
    # the grid on which it is released adds 8 parts in a million
    assert found.value == pytest.approx(expected * head_of(recipe, 2_000).length, rel=1e-4)


def head_of(recipe: LinearSecondStage, n: int) -> PlannedHead:
    schema = RLearner(OBSERVED, BUDGET)._schema()
    head = PlannedHead.of_recipe(recipe, RLearner.regression_score, schema, n, BUDGET)
    assert head is not None
    return head


def typical_problem(head: PlannedHead) -> LinearProblem:
    """Records with the head's features, propensities of a half, and nine tenths of residuals within the threshold."""
    generator = torch.Generator().manual_seed(0)
    psi = head.psi.repeat(-(-head.n // len(head.psi)), 1)[: head.n]
    w = 0.5 - torch.randint(0, 2, (head.n,), generator=generator).double()
    s = head.threshold / 1.6449 * torch.randn(head.n, generator=generator, dtype=torch.float64)
    s = s.clamp(-head.target_bound, head.target_bound)
    return LinearProblem(psi, s, w, head.ridge, head.weight_bound, head.target_bound, head.threshold)


@pytest.mark.parametrize("mechanism", [OutputPerturbation, ObjectivePerturbation])
def test_heads_have_the_noise_that_was_planned(mechanism):
    """Root mean square over answers and draws: 7 features in each of 400 draws err by 1.4 per cent (16 draws: 7)."""
    mechanism, runs = mechanism(), 400
    head = head_of(LinearSecondStage(ridge=0.02), 2_000)
    problem = typical_problem(head)
    draws = mechanism.prepare(given_stage(problem), BUDGET).draw(NoiseSource.system(), runs)
    errors = (draws - draws.mean(0)) @ head.psi.T * math.sqrt(runs / (runs - 1))
    ratio = errors.square().mean().sqrt().item() / mechanism.planned(head, BUDGET)
    assert 0.85 < ratio < 1.15


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: SmoothSensitivity(), lambda: InfluencePerturbation(starts=256)])
def test_answers_at_queries_have_the_noise_that_was_planned(make):
    """Secret scales, of which 300 draws of five answers tell 1.8 per cent; the squared head of typical records."""
    recipe, schema = LinearSecondStage(ridge=0.02, loss="squared"), RLearner(OBSERVED, BUDGET)._schema()
    points = schema.grid(5)
    head = PlannedHead.of_recipe(recipe, RLearner.regression_score, schema, 2_000, BUDGET, points)
    generator = torch.Generator().manual_seed(0)
    x = schema.grid(2_000)
    w = 0.5 - torch.randint(0, 2, (2_000,), generator=generator).double()
    s = torch.rand(2_000, generator=generator, dtype=torch.float64) - 0.5

    def regression(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y, a - 0.5

    block = SecondStageBlock(x, s, w, regression, OBSERVED, RLearner.regression_score.bounds(OBSERVED))
    stage, mechanism = recipe.fit(block, Nuisances(OBSERVED), budget=BUDGET), make()
    draws = mechanism.prepare(stage, points, BUDGET).draw(NoiseSource.system(), 300)
    ratio = (draws - draws.mean(0)).square().mean().sqrt().item() / mechanism.planned(head, BUDGET)
    assert 0.8 < ratio < 1.25


def trial(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Half treated, outcomes a quarter of their range of 2 about arm means that are a quarter of it apart."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = (torch.arange(n) % 2).double()
    y = (a - 0.5) * 0.5 + torch.randint(0, 2, (n,), generator=generator).double() - 0.5
    return x, a, y


@pytest.mark.slow
def test_averages_have_the_noise_that_was_planned():
    """Plans expect some confounding; in this trial released weights are near 2, and .36 of the noise is left."""
    x, a, y = trial(4_000)
    learner = CovariateBalancingEffect(OBSERVED, BUDGET)
    planned = learner.expected_noise(4_000)
    estimates = torch.tensor([float(clone(learner).fit(x, a, y).release().estimate[0]) for _ in range(60)])
    ratio = estimates.std().item() / planned.value
    # a standard deviation of 60 draws of Laplace noise errs by 14 per cent: 300 draws had .364
    assert 0.36 * (1 - 0.7) < ratio < 0.36 * (1 + 1.1)


def test_least_records_and_epsilon_are_least():
    estimator = CovariateBalancingEffect(OBSERVED, BUDGET)
    n = least_records(lambda n: estimator.expected_noise(n).value, 0.01, 500)
    assert estimator.expected_noise(n).value <= 0.01 < estimator.expected_noise(round(n / 1.02)).value

    def at(epsilon: float) -> float:
        return CovariateBalancingEffect(OBSERVED, PrivacyBudget(epsilon, 0.0)).expected_noise(500).value

    epsilon = least_epsilon(at, 0.05, 1.0)  # of which sampling has .04
    assert at(epsilon) <= 0.05 < at(epsilon / 1.02)
    assert least_records(lambda n: 0.5, 0.1, 100) is None
    assert least_epsilon(lambda epsilon: math.nan, 0.1, 1.0) is None
    assert least_records(lambda n: 1 / n, 5.0, 1000) <= 2


def test_expected_losses_of_a_choice_are_those_of_its_law():
    """All others equally far behind: the closed form is the largest expected regret of the exponential mechanism."""
    mechanism, M = ExponentialMechanism(0.5, range_sensitivity=3.0), 20
    gaps = torch.linspace(0, 80, 4_000, dtype=torch.float64)
    utilities = torch.cat([torch.zeros(len(gaps), 1), -gaps[:, None].expand(-1, M - 1)], 1)
    regrets = expected_regret(utilities, mechanism.probabilities(utilities))
    assert mechanism.expected_loss(M) == pytest.approx(regrets.max().item(), rel=1e-4)
    assert mechanism.expected_loss(M) <= 3.0 / 0.5 * math.log(M)
    assert mechanism.expected_loss(1) == 0
    worst = PermuteAndFlip(0.5, 3.0).probabilities(utilities[::100])
    assert expected_regret(utilities[::100], worst).max() <= mechanism.expected_loss(M)


@pytest.mark.slow
def test_the_score_of_a_rule_has_the_noise_that_was_planned():
    """The noise b on the summed pull, drawn as the mechanism draws it, in the units of an effect."""
    learner = OutcomeWeightedLearner(TRIAL, PrivacyBudget(1.0, 0.0), outcome="signed_residual")
    n, (x, a, y) = 3_000, trial(3_000)
    unit, report = 1.0, learner.plan(n)  # of a magnitude of one: half of the outcome's range of 2
    expected = 2 * unit * math.sqrt(report.size) * report.noise / n
    assert learner.expected_noise(n).value == pytest.approx(expected, rel=1e-9)
    assert learner.fit(x, a, y).plan().noise == pytest.approx(report.noise, rel=1e-9)
    # beside a ridge so large the minimiser is (S - b) / ridge
    fitted = clone(learner).set_params(ridge=1e7).fit(x, a, y)
    mechanism = fitted._mechanism(fitted.problem_.public)
    law = mechanism.law(fitted.problem_.public, learner.budget)
    theta = law.draw(NoiseSource.system(), 2_000, fitted.problem_.exact(law))
    drawn = 1e7 * (theta - theta.mean(0)).square().sum(1).mean().sqrt().item()
    assert drawn == pytest.approx(fitted.plan().noise, rel=0.12)  # a length of Gamma(3) noise: 2,000 err by 1.5 %


SCORED = {
    "treatment": "a",
    "outcome": {"name": "y", "scores": {"none": 0, "some": 1, "much": 5}},
    "covariates": {"x": {"low": 0, "high": 1}},
    "propensity": 0.5,
}


def test_plans_of_averages_count_sampling_by_a_deviation_that_they_name():
    """Of scores that is assumed: all are equally likely."""
    schema, sd = TableSchema.from_dict(SCORED), np.std([0, 1, 5])
    for learner in (
        AverageEffect(schema, PrivacyBudget(1.0, 1e-5)),
        KnownPropensityEffect(schema, PrivacyBudget(1.0, 0.0)),
        SubgroupEffects(schema, PrivacyBudget(1.0, 0.0), subgroups="everybody"),
    ):
        noise = learner.expected_noise(400)
        assert noise.parts["sampling"] == pytest.approx(2 * sd / 20)
        assert "all scores are equally likely" in " ".join(noise.assumes)
    assert planned_deviation(replace(schema, outcome_codes=())) == pytest.approx(5 / 12)
