"""Neighbouring records on which learners of rules are attacked, with their exact likelihood ratios."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.estimators.rules.weighted_erm import ObjectiveRule, WeightedERM
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import Logistic
from torchdpcate.fit.weights import PrivateWeights, logistic_fits
from torchdpcate.fit.worst_pairs import log_density, objective_game
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.25, propensity=0.5, better="higher")
_RECORDS = 40
# Of two stages: an arm so unlikely that the slope of the propensity's loss is near one; held beyond the clip.
_UNLIKELY = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.05, better="higher")
_HELD = 3.5  # log odds at which the crowd holds the propensity
_FRACTION = 0.25  # of epsilon, for the propensity: the default
# The ridge is large, so that the change of curvature takes little of the claim. The outcome's constants are public:
# private ones would differ from run to run, and with them the weights of all records.
_SETTINGS: dict[str, Any] = {
    "outcome": "signed_residual",
    "ridge": 100.0,
}


def _records(dataset: int) -> tuple[Tensor, Tensor, Tensor]:
    """Records of outcome zero, whose weight is zero, and one of full weight; its arm differs between the datasets."""
    x, y = torch.zeros(_RECORDS, 1, dtype=torch.float64), torch.zeros(_RECORDS, dtype=torch.float64)
    a = torch.arange(_RECORDS, dtype=torch.float64) % 2
    a[0], y[0] = 1.0 - dataset, 1.0
    return x, a, y


def _one_stage_problem(dataset: int) -> WeightedERM:
    return OutcomeWeightedLearner(_DOMAIN, None, **_SETTINGS).fit(*_records(dataset)).problem_


@worst_case(
    "outcome_weighted_learner",
    OutcomeWeightedLearner,
    pair="records that weigh nothing and one of full weight, treated or not",
)
def _outcome_weighted(budget: PrivacyBudget) -> Game:
    (first, second), pure = [_one_stage_problem(dataset) for dataset in (0, 1)], PrivacyBudget(budget.epsilon, 0.0)
    law, datasets = ObjectiveRule("box").law(first.public, pure), [first.data, second.data]
    return objective_game(law.objective, first.loss, datasets, pure, most_runs=200_000)


@worst_case(
    "two_stage_rule",
    TwoStageRule,
    pair="a record that a private propensity finds unlikely, treated at one end or untreated at the other, among many "
    "that weigh nothing; both stages are shown",
)
def _two_stage(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)
    game = TwoStages(pure)
    return Game.of_densities(game.draw, PureEvent(budget.epsilon), pure, game.log_density, most_runs=200_000)


class TwoStages:
    r"""Runs of a two-stage rule side by side, on a record and a crowd that moves nothing but the propensity.

    The crowd, untreated at one end of the only covariate and treated at the other, holds the propensity's coefficients
    where the record's arm is unlikely: the clip binds, so that its weight is at its bound, and slopes are near one.
    Outcomes of the crowd are zero, hence its weights in the rule. Features at the two ends differ in the sign of one
    entry, so that in both stages the datasets' gradients differ in the other entry alone, by all that a cube's noise
    hides.

    Args:
        budget: Of one run, pure.
    """

    def __init__(self, budget: PrivacyBudget) -> None:
        self.first = PrivacyBudget(budget.epsilon * _FRACTION, 0.0)
        self.left = PrivacyBudget(budget.epsilon * (1 - _FRACTION), 0.0)
        self.ridge = Logistic.curvature / math.expm1(0.02 * self.first.epsilon)
        self.scheme = PrivateWeights(budget_fraction=_FRACTION, ridge=self.ridge)
        slope = 1 / (1 + math.exp(_HELD))
        self.crowd = math.ceil(self.ridge * _HELD / slope)
        self.learner = TwoStageRule(_UNLIKELY, budget, weights=self.scheme, **_SETTINGS | {"ridge": 10_000.0})

    def records(self, dataset: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x [3, 1], a [3], y [3], and how many records each row stands for [3]."""
        here = 1.0 - dataset
        columns = torch.tensor([[here, 1.0, 0.0], [here, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
        x, a, y = columns
        return x[:, None], a, y, torch.tensor([1.0, self.crowd, self.crowd], dtype=torch.float64)

    def draw(self, dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        """Return both stages' coefficients of independent runs, [runs, 2 p]."""
        x, a, _, count = self.records(dataset)
        features = on_domain(None, _UNLIKELY)
        psi, label = features(x), 2 * a - 1
        objective = self.scheme.noise(1 + 2 * self.crowd, _UNLIKELY, self.first)
        fits = logistic_fits(psi, label, count, self.ridge, objective.tolerance)
        first = objective.release(fits, noise, runs)
        problem, rule = self._problem(dataset, first), ObjectiveRule("box")
        law = rule.law(problem.public, self.left)
        return torch.cat([first, law.draw(noise, runs, problem.exact(law))], 1)

    def log_density(self, shown: Tensor, dataset: int) -> Tensor:
        r"""Log density [runs] of what runs show, [runs, 2 p], on the records of a dataset, up to a constant.

        .. math:: \ln p(l) + \ln p(\theta \mid l), \quad \omega = \frac{1}{2\,\mathrm{clip}(\pi(a|x))}, \quad
            \pi = \sigma(\psi^\top l)

        The laws are those of the exact minimisers; the noise that hides the solver's stop is a thousand times smaller.
        """
        first, theta = shown.chunk(2, 1)
        _, a, _, count = self.records(dataset)
        problem = self._problem(dataset, first)
        objective = self.scheme.noise(1 + 2 * self.crowd, _UNLIKELY, self.first)
        rule = ObjectiveRule("box").law(problem.public, self.left).objective
        held = log_density(first, objective, Logistic(), (problem.psi, 2 * a - 1, count))
        return held + log_density(theta, rule, problem.loss, problem.data)

    def _problem(self, dataset: int, first: Tensor) -> WeightedERM:
        """Return the rules' weighted ERM with weights of each run, [runs, 3], by its propensity [runs, p]."""
        x, a, y, _ = self.records(dataset)
        plain = self._plain(x, a, y)
        own = torch.sigmoid((2 * a - 1) * (first @ plain.psi.T)).clamp(_UNLIKELY.overlap, 1 - _UNLIKELY.overlap)
        # where the clip binds at the record, the weights' bound over the domain is that of the clip, for every run
        assert bool((own[:, 0] == _UNLIKELY.overlap).all())
        return replace(plain, weights=plain.weights * (0.5 / own))

    def _plain(self, x: Tensor, a: Tensor, y: Tensor) -> WeightedERM:
        """Return the rule's weighted ERM with weights that are the outcomes' magnitudes alone."""
        settings = _SETTINGS | {"ridge": self.learner.ridge}
        plain = TwoStageRule(_UNLIKELY, None, weights="constant", **settings).fit(x, a, y)
        bounds = self.scheme.bounds(1 + 2 * self.crowd, _UNLIKELY)
        magnitude = plain.outcome_.transform(y, _UNLIKELY)[0]
        return replace(plain.problem_, weights=magnitude, bounds=bounds)
