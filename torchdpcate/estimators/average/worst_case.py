"""Neighbouring records that attain what sums over records, and fits of weights, are charged."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, ATT
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.balancing_plan import OUTCOME_MODEL
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect, make_plan
from torchdpcate.estimators.average.known_propensity import CentredSums, DesignFacts, KnownPropensityEffect
from torchdpcate.estimators.average.ratio_of_sums import Total
from torchdpcate.estimators.average.weighted import BalancedDifference, EffectFacts, Weighted, released_ranges
from torchdpcate.fit.feature_maps import FeatureMap, UserFeatures, on_domain
from torchdpcate.fit.linear_fits import ObjectiveFit, PreparedFit
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Logistic, Loss
from torchdpcate.fit.stacked_records import Batch, StackedRecords, Target, arm
from torchdpcate.privacy.budget import PrivacyBudget, split_epsilon
from torchdpcate.privacy.charge import Charge, Purpose, propensity_by
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_DOMAIN = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=1.0)
_FEATURES = on_domain(None, _DOMAIN)
_STEEP = BalancingLoss(ATE(0.25))
_SHARE = 0.9  # of epsilon that the objective noise spends; the pair does not move the determinants
_APART = 3.0  # |g| at which the others hold the predictor, nearly three times what is clipped
_YEARS = Domain([0.0], [90.0], outcome_low=0.0, outcome_high=1.0)
_NEWBORN = 200
_MOST_SHARE = 0.95  # of epsilon that the objective noise spends; the pair does not move the determinants


def _records(x: Tensor, z: Tensor) -> StackedRecords:
    return StackedRecords(Batch(x[:, None], _FEATURES(x[:, None]), z, torch.zeros_like(z)))


def _separated(dataset: int, others: int) -> StackedRecords:
    """Treated at x = 0 and controls at x = 1; and a treated record at 1, or a control at 0, where none belongs."""
    x, z = torch.zeros(2 * others + 1, dtype=torch.float64), torch.ones(2 * others + 1, dtype=torch.float64)
    x[others:], z[others:] = 1.0, 0.0
    x[-1], z[-1] = (1.0, 1.0) if dataset == 0 else (0.0, 0.0)
    return _records(x, z)


def log_density(
    theta: Tensor, records: StackedRecords, loss: Loss, ridge: float, scale: float, target: Target = arm
) -> Tensor:
    r"""Log density [runs], up to a constant, of the minimiser of a sum of losses that box noise perturbs.

    .. math:: \ln\det F''(\theta) - \|F'(\theta)\|_\infty / s

    Args:
        theta: Where, [runs, p].
        records: The records.
        loss: Of a record.
        ridge: gamma.
        scale: s.
        target: What the loss aims at.
    """
    _, gradient, hessian = records.slopes(loss, target, theta)
    hessian.diagonal(dim1=1, dim2=2).add_(ridge)
    return torch.logdet(hessian) - (gradient + ridge * theta).abs().amax(1) / scale


@worst_case(
    "balancing_objective",
    ObjectiveFit,
    attacks=[propensity_by("objective")],
    pair="a treated record where only controls are, or a control where only treated are, either of full weight",
)
def _objective(budget: PrivacyBudget) -> Game:
    fit = ObjectiveFit(share=_SHARE).prepare(_STEEP, 0, _FEATURES, budget)
    # k records on either side, of least weight, pull by k w_min max|psi_j| in each entry of two against the ridge
    entry, least = _FEATURES.largest_entry, _STEEP.estimand.smallest
    others = math.ceil(_APART / (2 * entry) * fit.ridge / (least * entry))
    return _minimiser_game(fit, _STEEP, [_separated(dataset, others) for dataset in (0, 1)], budget)


def _minimiser_game(fit: PreparedFit, loss: Loss, datasets: Sequence[StackedRecords], budget: PrivacyBudget) -> Game:
    """Return the game on the minimiser of a perturbed objective with box noise."""

    def density(theta: Tensor, dataset: int) -> Tensor:
        return log_density(theta, datasets[dataset], loss, fit.ridge, fit.public["perturbation_scale"])

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return fit.draw(datasets[dataset], arm, noise, runs)

    return Game.of_densities(draw, fit.event, PrivacyBudget(budget.epsilon, 0.0), density, most_runs=100_000)


class _Ages(FeatureMap):
    """(1, age), age in years: norms up to 90, where ||psi|| <= 1 is what every claim rests on."""

    __module__ = "a_user"  # or it would count as the library's own

    @property
    def dimension(self) -> int:
        return 2

    def config(self) -> dict[str, Any]:
        return {}

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x), x], 1).double()


def _ages(features: FeatureMap, treated: float) -> StackedRecords:
    """The newborn, of either arm by halves, and one record of ninety years."""
    x, z = torch.zeros(_NEWBORN, 1, dtype=torch.float64), torch.arange(_NEWBORN, dtype=torch.float64) % 2
    x[0], z[0] = _YEARS.covariate_high, treated
    return StackedRecords(Batch(x, features(x), z, torch.zeros_like(z)))


@worst_case(
    "user_basis",
    UserFeatures,
    pair="a record of ninety years among the newborn, treated or not, with a basis of intercept and age in years",
)
def _user_basis(budget: PrivacyBudget) -> Game:
    # the record alone moves the coefficient of age, whose ratio is that of stage one for a feature of norm one
    features = on_domain(_Ages(), _YEARS)
    loss = BalancingLoss(ATE(0.5))
    fit = ObjectiveFit(share=_MOST_SHARE).prepare(loss, _NEWBORN, features, PrivacyBudget(budget.epsilon, 0.0))
    game = _minimiser_game(fit, loss, [_ages(features, treated) for treated in (0.0, 1.0)], budget)
    return replace(game, guarantee=game.guarantee.resting_on(features.conditions))


_ATE = ATE(0.1)
_UNIT = Domain([0.0], [1.0], 0.0, 1.0)
_RECORDS = 50
_LEAST = 0.01  # of epsilon, for the parts that the pair does not move
_DESIGNED = 20  # so few that the centre stays at a half, where an outcome moves the contrast as far as an arm does


def _of(batch: Any) -> Total:
    """Return what sums over the records of one batch."""
    return lambda exact: exact(batch)


def _weighted(high: float, treated: float = 1.0, largest: float = _ATE.largest) -> Weighted:
    """Records of least weight, and one of the largest with this outcome and treatment."""
    z = (torch.arange(_RECORDS) % 2).double()[None]
    y, w = torch.full_like(z, 0.5), torch.full_like(z, _ATE.smallest)
    z[0, 0], y[0, 0], w[0, 0] = treated, high, largest
    return Weighted(z, y, w, torch.full_like(z, 0.3))


@worst_case(
    "balanced_difference",
    BalancedDifference,
    pair="of the ATT, a treated record and a control of the largest weight that released coefficients leave, both with "
    "the outcome furthest below the outcome model: what all three sums cost together; they are shown",
)
def _balanced_difference(budget: PrivacyBudget) -> Game:
    features = on_domain(None, _UNIT)
    theta = torch.tensor([[0.0, 1.0]], dtype=torch.float64)  # of both: weights up to 2.03, and means in [0.33, 0.67]
    facts = EffectFacts(_RECORDS, ATT(_ATE.overlap), 0.3, 0.7)
    facts = replace(facts, ranges=(ranges := released_ranges(facts, features, theta, theta)))
    readout = BalancedDifference(facts, split_epsilon(budget.epsilon, BalancedDifference.parts))
    largest = ranges.treated[1].item(), ranges.control[1].item()
    datasets = [_weighted(0.0, 1.0 - dataset, largest[dataset]) for dataset in (0, 1)]
    datasets = [dataset._replace(m=ranges.model[1].expand_as(dataset.m)) for dataset in datasets]
    return readout.game([_of(dataset) for dataset in datasets], budget.epsilon)


@worst_case(
    "covariate_balancing_effect",
    CovariateBalancingEffect,
    attacks=[Charge(Purpose.RELEASE, BalancedDifference.name, "sums")],
    pair="a record apart from all others, treated or not; propensity, outcome model and all sums are shown",
)
def _effect(budget: PrivacyBudget) -> Game:
    features, pure = on_domain(None, _UNIT), PrivacyBudget(budget.epsilon, 0.0)
    # little of the claim goes to what the pair moves by half, or not: propensity, outcome model, size and spread;
    # weights and outcome model have narrow ranges, whose ends are what noise in the difference must hide
    shares = {"stage_one": 0.1, "outcome_model": 0.02, "difference": 0.86, "size": _LEAST, "spread": _LEAST}
    settings: dict[str, Any] = {"loss": "logistic", "outcome_bounds": (0.495, 0.505), "shares": shares}
    plan = make_plan(_RECORDS, features, ATE(0.495), pure, **settings)
    x, z = torch.zeros(_RECORDS, 1, dtype=torch.float64), (torch.arange(_RECORDS) % 2).double()
    y, datasets = torch.full_like(z, 0.5), []
    x[0], y[0] = 1.0, 1.0
    for treated in (1.0, 0.0):
        own = z.clone()
        own[0] = treated
        datasets.append(StackedRecords(Batch(x, features(x), own, y)))

    losses: dict[str, Loss] = {"weights": Logistic(), OUTCOME_MODEL: CrossEntropy()}
    sizes = [datasets[0].size] * len(plan.fits)

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        records, session = datasets[dataset], FitSession(noise)
        return torch.cat(list(plan.sums(records, session, plan.learn(records, session, runs)).values()), 1)

    def density(shown: Tensor, dataset: int) -> Tensor:
        """Log density of what is shown: the minimisers, then the noise in the sums given them."""
        records = datasets[dataset]
        *thetas, sums = shown.split([*sizes, shown.shape[1] - sum(sizes)], 1)
        learnt = dict(zip(plan.fits, thetas, strict=True))
        found = plan.readout(learnt).log_density(plan.total(records, learnt), sums)
        for name, theta in learnt.items():
            public, target = plan.fits[name].fit.public, plan.fits[name].target
            found = found + log_density(
                theta, records, losses[name], public["ridge"], public["perturbation_scale"], target
            )
        return found

    return Game.of_densities(draw, PureEvent(budget.epsilon), pure, density, most_runs=50_000)


def _designed(dataset: int, replaced: int) -> Batch:
    """Records at the middle of the outcome's range, and treated ones at either end of it."""
    z = (torch.arange(_DESIGNED) % 2).double()
    y = torch.full_like(z, 0.5)
    z[:replaced], y[:replaced] = 1.0, 1.0 - dataset
    half = torch.full((_DESIGNED, 1), 0.5, dtype=torch.float64)
    return Batch(half, half, z, y)


@worst_case(
    "known_propensity",
    KnownPropensityEffect,
    pair="a treated record among others at the middle, its outcome at either end; all three sums are shown",
)
def _known_propensity(budget: PrivacyBudget) -> Game:
    return centred_sums_game(budget, 1)


def centred_sums_game(budget: PrivacyBudget, replaced: int) -> Game:
    """Return the game on neighbours of which so many records differ; the budget is by record.

    Args:
        budget: Its epsilon is spent on the sums.
        replaced: Number of records.
    """
    readout = CentredSums(DesignFacts(_DESIGNED, _ATE, 0.5, 0.5), budget.epsilon)
    return readout.game([_of(_designed(dataset, replaced)) for dataset in (0, 1)], budget.epsilon)
