"""Neighbouring records on which learners of rules are attacked, with their exact likelihood ratios."""

import math
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.erm.losses import Logistic, Loss
from torchdpcate.erm.solver import PerturbedSum
from torchdpcate.estimators.rules.mechanisms import ObjectiveRule
from torchdpcate.estimators.rules.owl import OutcomeWeightedLearner
from torchdpcate.estimators.rules.two_stage import TwoStageRule
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.nuisance.weights.private import PrivatePropensity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.25)
_RECORDS = 40
# The ridge is large, so that the change of curvature takes little of the claim. The outcome's constants are public:
# private ones would differ from run to run, and with them the weights of all records.
_SETTINGS: dict[str, Any] = {
    "outcome": "signed_residual",
    "ridge": 100.0,
    "perturbation": "box",
    "ridge_bound": math.inf,
}


def _records(world: int, apart: float) -> tuple[Tensor, Tensor, Tensor]:
    """Records of outcome zero, whose weight is zero, and one of full weight; its arm differs between the worlds."""
    x, y = torch.zeros(_RECORDS, 1, dtype=torch.float64), torch.zeros(_RECORDS, dtype=torch.float64)
    a = torch.arange(_RECORDS, dtype=torch.float64) % 2
    x[0], a[0], y[0] = apart, 1.0 - world, 1.0
    return x, a, y


def _log_density(
    theta: Tensor, psi: Tensor, target: Tensor, weights: Tensor, loss: Loss, ridge: Tensor, scale: Tensor
) -> Tensor:
    r"""Log density, up to a constant, of the minimiser of a sum that box noise perturbs.

    .. math:: \ln\det F''(\theta) - \|F'(\theta)\|_\infty / s

    The minimiser is theta where the objective noise is -F'(theta); -F' maps one to one.

    Args:
        theta: Where, [runs, p].
        psi: Features, [n, p].
        target: t, [n].
        weights: w, [n], or [runs, n].
        loss: Of a record.
        ridge: Ridge of the sum, [runs].
        scale: s of the objective noise, [runs].
    """
    unperturbed = PerturbedSum(psi, target, weights, loss, ridge, torch.zeros_like(theta))
    _, gradient, second = unperturbed.evaluate(theta)
    return torch.logdet(unperturbed.hessian(second)) - gradient.abs().amax(1) / scale


def _one_stage_problem(world: int) -> WeightedERM:
    return OutcomeWeightedLearner(_DOMAIN, None, **_SETTINGS).fit(*_records(world, 0.0)).problem_


@worst_case(
    "outcome_weighted_learner",
    OutcomeWeightedLearner,
    pair="records that weigh nothing and one of full weight, treated or not",
)
def _outcome_weighted(budget: PrivacyBudget) -> Game:
    problems = [_one_stage_problem(world) for world in (0, 1)]
    ready = [ObjectiveRule("box").prepare(problem, PrivacyBudget(budget.epsilon, 0.0)) for problem in problems]

    def log_density(theta: Tensor, world: int) -> Tensor:
        of, every = problems[world], theta.new_ones(len(theta))
        data = of.psi, of.target, of.weights
        return _log_density(theta, *data, of.loss, of.ridge * every, ready[world].public["tilt_scale"] * every)

    assert ready[0].event is not None
    return Game(
        draw=lambda world, runs, noise: ready[world].draw(noise, runs),
        event=ready[0].event,
        guarantee=ready[0].guarantee,
        evidence=lambda theta: log_density(theta, 1) - log_density(theta, 0),
        most_runs=200_000,
    )


@worst_case(
    "two_stage_rule",
    TwoStageRule,
    pair="as for outcome weighted learning; the record moves the private propensity too, and both are shown",
)
def _two_stage(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.stack([_shown(_two_stage_fit(world, pure, noise)) for _ in range(runs)])

    return Game(
        draw,
        PureEvent(budget.epsilon),
        Guarantee(Level.CERTIFIED, pure, source="policy_learning section 4.3"),
        evidence=lambda shown: _two_stage_log_density(shown, 1) - _two_stage_log_density(shown, 0),
        most_runs=6_000,
    )


def _two_stage_fit(world: int, budget: PrivacyBudget | None, noise: NoiseSource | None = None) -> TwoStageRule:
    learner = TwoStageRule(_DOMAIN, budget, noise=noise, **_SETTINGS)
    learner.fit(*_records(world, 1.0))
    return learner


def _shown(learner: TwoStageRule) -> Tensor:
    """What one fit and one release show, [2 p + 3]: both stages' coefficients, and the constants that follow from them.

    The propensity's ridge and scale are the same in every run; the rule's scale follows the largest weight of the
    propensity, which is public.
    """
    weights, budget = learner.weights_, learner.budget
    assert isinstance(weights, PrivatePropensity)
    assert budget is not None
    left = PrivacyBudget(budget.epsilon * (1 - learner.scheme().budget_fraction), 0.0)
    rule = ObjectiveRule("box").prepare(learner.problem_, left).public
    constants = weights.public["propensity_ridge"], weights.public["propensity_tilt_scale"], rule["tilt_scale"]
    return torch.cat([weights.theta, learner.release().theta, weights.theta.new_tensor(constants)])


def _two_stage_log_density(shown: Tensor, world: int) -> Tensor:
    r"""Log density [runs] of what is `_shown`, [runs, 2 p + 3], on the records of a world, up to a constant.

    .. math:: \ln p(l) + \ln p(\theta \mid l), \quad \omega = \frac{1}{2\,\mathrm{clip}(\pi(a|x))}, \quad
        \pi = \sigma(\psi^\top l)

    The clip is the domain's overlap: that by the largest weight over the domain cuts nothing. The laws are those of the
    exact minimisers; the noise that hides the solver's stop is a thousand times smaller.
    """
    _, a, y = _records(world, 1.0)
    plain = _two_stage_fit(world, None)
    problem, magnitude = plain.problem_, plain.outcome_.transform(y, _DOMAIN)[0]
    first, theta, constants = shown.split([problem.size, problem.size, 3], 1)
    first_ridge, first_scale, scale = constants.T
    label, psi = 2 * a - 1, problem.psi
    propensity = torch.sigmoid(label * (first @ psi.T)).clamp(_DOMAIN.overlap, 1 - _DOMAIN.overlap)
    ridge = torch.full_like(scale, problem.ridge)
    weights = magnitude * 0.5 / propensity
    return _log_density(first, psi, label, torch.ones_like(label), Logistic(), first_ridge, first_scale) + _log_density(
        theta, psi, problem.target, weights, problem.loss, ridge, scale
    )
