"""Neighbouring records on which whole learners of rules are attacked."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdpcate.data import Domain
from torchdpcate.policy.mechanisms import ObjectiveRule
from torchdpcate.policy.owl import OutcomeWeightedLearner
from torchdpcate.policy.propensity import PrivatePropensity
from torchdpcate.policy.rule import RuleLearner
from torchdpcate.policy.two_stage import TwoStageRule
from torchdpcate.privacy import (
    Game,
    Guarantee,
    Level,
    NoiseSource,
    PrivacyBudget,
    PureEvent,
    k_norm_evidence,
    worst_case,
)

_DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.25)
_RECORDS = 40
_RIDGE = 100.0  # large, so that the change of curvature takes little of the claim


def _records(world: int, apart: float) -> tuple[Tensor, Tensor, Tensor]:
    """Records of outcome zero, whose weight is zero, and one of full weight; its arm is what tells the worlds apart."""
    x, y = torch.zeros(_RECORDS, 1, dtype=torch.float64), torch.zeros(_RECORDS, dtype=torch.float64)
    a = torch.arange(_RECORDS, dtype=torch.float64) % 2
    x[0], a[0], y[0] = apart, 1.0 - world, 1.0
    return x, a, y


def _fitted(learner: Callable[[], RuleLearner], world: int, apart: float) -> RuleLearner:
    return learner().fit(*_records(world, apart))


@worst_case(
    "outcome_weighted_learner",
    OutcomeWeightedLearner,
    pair="records that weigh nothing and one of full weight, treated or not",
)
def _outcome_weighted(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)

    def learner() -> RuleLearner:
        return OutcomeWeightedLearner(_DOMAIN, pure, gamma=_RIDGE, perturbation="box", gamma_bound=math.inf)

    problems = [_fitted(learner, world, 0.0).problem_ for world in (0, 1)]
    ready = [ObjectiveRule("box").prepare(problem, pure) for problem in problems]
    pulls = [_RIDGE * problem.minimiser for problem in problems]
    evidence = k_norm_evidence(pulls[1] - pulls[0], ready[0].public["tilt_scale"], order=math.inf)
    assert ready[0].event is not None
    return Game(
        draw=lambda world, runs, noise: ready[world].draw(noise, runs),
        event=ready[0].event,
        guarantee=ready[0].guarantee,
        evidence=lambda theta: evidence(_RIDGE * theta - pulls[0]),
        most_runs=200_000,
    )


@worst_case(
    "two_stage_rule",
    TwoStageRule,
    attack="classifier",
    pair="as for outcome weighted learning; the record moves the private propensity too, and both are shown",
)
def _two_stage(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)

    def learner() -> RuleLearner:
        return TwoStageRule(_DOMAIN, pure, gamma=_RIDGE, perturbation="box", gamma_bound=math.inf)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.stack([_run(_fitted(learner, world, 1.0), noise) for _ in range(runs)])

    guarantee = Guarantee(Level.CERTIFIED, pure, source="policy_learning section 4.3")
    return Game(draw, PureEvent(budget.epsilon), guarantee, most_runs=4_000)


def _run(learner: RuleLearner, noise: NoiseSource) -> Tensor:
    """Return what one fit and one release show: the coefficients of the propensity and of the rule."""
    assert isinstance(learner.weights_, PrivatePropensity)
    return torch.cat([learner.weights_.theta, learner.release().theta])
