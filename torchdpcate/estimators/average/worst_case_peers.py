"""Neighbouring records on which the peers of covariate balancing are attacked, with their exact likelihood ratios."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.efficient_score import Scored, ScoreRanges
from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.erm.losses import Logistic, Loss
from torchdpcate.erm.records import Batch, StackedRecords, Target, arm
from torchdpcate.erm.solver import PerturbedSum, minimise
from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect
from torchdpcate.estimators.average.horvitz_thompson import (
    HorvitzThompsonEffect,
    horvitz_thompson_terms,
    learn_propensity,
    plan_horvitz_thompson,
    release_sum,
)
from torchdpcate.estimators.average.score_sums import effect, epsilons_of, release_scores, released_scale
from torchdpcate.estimators.average.subsample_aggregate import (
    SubsampleAggregateEffect,
    group_estimates,
    group_positions,
    plan_subsample,
    release_mean,
    squared_deviations,
)
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_ATE = ATE(0.1)
_DOMAIN = Domain([-1.0], [1.0], 0.0, 1.0)
_FEATURES = on_domain(None, _DOMAIN)
_CROWD = 10_000.0  # at either end, which hold the propensity where it is clipped
_GROUPS = 3  # of three records each
_SCORED = 20


def _claim(budget: PrivacyBudget) -> Guarantee:
    return Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))


def _stacked(x: Tensor, z: Tensor, y: Tensor) -> StackedRecords:
    return StackedRecords(Batch(x[:, None], _FEATURES(x[:, None]), z, y))


@dataclass(frozen=True, eq=False)
class Crowd(StackedRecords):
    """Records each of which stands for many.

    Attributes:
        counts: For how many, [n].
    """

    counts: Tensor

    def minimise(self, loss: Loss, target: Target, gamma: float, linear_terms: Tensor, tolerance: float) -> Tensor:
        """See ``Records``."""
        return minimise(self.batch.psi, target(self.batch), self.counts, loss, gamma, linear_terms, tolerance)

    def log_density(self, theta: Tensor, loss: Loss, target: Target, gamma: float, scale: float) -> Tensor:
        """Return that of the minimiser of a sum that box noise perturbs, up to a constant, [runs]."""
        ridges, none = torch.full((len(theta),), gamma, dtype=torch.float64), torch.zeros_like(theta)
        unperturbed = PerturbedSum(self.batch.psi, target(self.batch), self.counts, loss, ridges, none)
        _, gradient, second = unperturbed.evaluate(theta)
        return torch.logdet(unperturbed.hessian(second)) - gradient.abs().amax(1) / scale


def _opposed(world: int) -> Crowd:
    """Controls at the low end, treated at the high one, all of outcome zero, and one record that is out of place."""
    side = 2.0 * world - 1
    x, z = torch.tensor([side, -1.0, 1.0]).double(), torch.tensor([1.0 - world, 0.0, 1.0]).double()
    y, counts = torch.tensor([1.0, 0.0, 0.0]).double(), torch.tensor([1.0, _CROWD, _CROWD]).double()
    return Crowd(_stacked(x, z, y).batch, counts)


@worst_case(
    "horvitz_thompson",
    HorvitzThompsonEffect,
    pair="a record treated where no other is, or untreated where all others are; coefficients and sum are shown",
)
def _horvitz_thompson(budget: PrivacyBudget) -> Game:
    worlds = [_opposed(world) for world in (0, 1)]
    plan = plan_horvitz_thompson(1, _FEATURES, _ATE, budget.epsilon)
    perturbed = Logistic(), arm, plan.fit.ridge, plan.fit.public["tilt_scale"]

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        theta = learn_propensity(worlds[world], plan.fit, FitSession(noise), runs)
        total = release_sum(worlds[world], plan, theta, FitSession(noise)).released["sum"]
        return torch.cat([theta, total[:, None]], 1)

    def log_density(shown: Tensor, records: Crowd) -> Tensor:
        """Of the coefficients, and of the sum's noise given them."""
        theta, total = shown[:, :-1], shown[:, -1]
        exact = records.total(lambda batch: horvitz_thompson_terms(batch, _ATE, theta, records.n))[:, 0]
        return records.log_density(theta, *perturbed) - (total - exact).abs() / plan.total.released_scale(1)

    return Game(
        draw,
        PureEvent(budget.epsilon),
        _claim(budget),
        evidence=lambda shown: log_density(shown, worlds[1]) - log_density(shown, worlds[0]),
    )


def _groups(world: int) -> StackedRecords:
    """Groups of a treated record and two controls whose contrast is -1, but for one that a record turns round."""
    x, y = torch.zeros(_GROUPS, 3, dtype=torch.float64), torch.tensor([0.0, 1.0, 1.0]).double().repeat(_GROUPS, 1)
    z = torch.tensor([1.0, 0.0, 0.0]).double().repeat(_GROUPS, 1)
    # of the two others one is treated at the high end, one a control at the low end; the record is where it weighs most
    x[0], y[0], z[0, 2] = torch.tensor([1.0, -1.0, 2.0 * world - 1]), torch.tensor([0.0, 0.0, 1.0]), 1.0 - world
    places = group_positions(3 * _GROUPS, _GROUPS, 0)[0].flatten()
    return _stacked(*(torch.zeros(3 * _GROUPS).double().index_copy(0, places, part.flatten()) for part in (x, z, y)))


@worst_case(
    "subsample_aggregate",
    SubsampleAggregateEffect,
    pair="a group of three whose contrast one record turns round, others at the end of the range; both sums are shown",
)
def _subsample_aggregate(budget: PrivacyBudget) -> Game:
    plan = plan_subsample(3 * _GROUPS, _FEATURES, _ATE, budget.epsilon)
    worlds = [group_estimates(_groups(world), plan) for world in (0, 1)]
    exact = [torch.cat([found.sum(1), squared_deviations(found)]) for found in worlds]
    scales = torch.tensor([part.released_scale(1) for part in (plan.total, plan.squares)]).double()

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        released = release_mean(worlds[world].expand(runs, -1), plan, FitSession(noise)).released
        return torch.stack([released["sum"], released["spread"]], 1)

    def evidence(shown: Tensor) -> Tensor:
        return (((shown - exact[0]).abs() - (shown - exact[1]).abs()) / scales).sum(1)

    return Game(draw, PureEvent(budget.epsilon), _claim(budget), evidence)


def _scored(world: int) -> Scored:
    """Records whose score is zero, and one whose score is as far from it as it can be, above or below."""
    z = (torch.arange(_SCORED) % 2).double()[None]
    half = torch.full_like(z, 0.5)
    y, e = half.clone(), half.clone()
    z[0, 0], y[0, 0], e[0, 0] = 1.0 - world, 1.0, (1 - _ATE.overlap if world else _ATE.overlap)
    return Scored(z, y, e, half, half)


@worst_case(
    "aipw",
    DoublyRobustEffect,
    pair="a scored record of the better outcome, treated, or untreated, where almost no other record is",
)
def _aipw(budget: PrivacyBudget) -> Game:
    worlds = [_scored(world) for world in (0, 1)]
    e = torch.tensor([[_ATE.overlap, 1 - _ATE.overlap]], dtype=torch.float64)
    ranges = ScoreRanges.of(_ATE, e, torch.full((1, 2, 2), 0.5, dtype=torch.float64))
    epsilons = epsilons_of(budget.epsilon, _ATE)
    unit = {part: released_scale(epsilon) for part, epsilon in epsilons.items()}
    scores = [_ATE.score(*world)[0] for world in worlds]

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        every = Scored(*(part.expand(runs, -1) for part in worlds[world]))
        released = release_scores(every, ranges.repeated(runs), _ATE, budget.epsilon, FitSession(noise)).released
        return torch.stack([released["score"], released["spread"]], 1)

    def log_density(shown: Tensor, a: Tensor) -> Tensor:
        """Of the noise in the sum of scores, and of that in their squares given the effect that it leads to."""
        total, squares = shown.T
        size, none = torch.full_like(total, _SCORED), torch.zeros_like(total)
        tau, _ = effect(total, size, none, ranges.repeated(len(shown)), _SCORED)
        exact, noise_q = (a - tau[:, None]).square().sum(1), ranges.reach(tau).square() * unit["spread"]
        return -(total - a.sum()).abs() / (ranges.change * unit["score"]) - (squares - exact).abs() / noise_q

    return Game(
        draw,
        PureEvent(budget.epsilon),
        _claim(budget),
        evidence=lambda shown: log_density(shown, scores[1]) - log_density(shown, scores[0]),
        most_runs=200_000,
    )
