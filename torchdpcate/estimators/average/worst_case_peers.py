"""Neighbouring records on which the peers of covariate balancing are attacked, with their exact likelihood ratios."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, ATT
from torchdpcate.causal.score import Scored, ScoreRanges
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.losses import Logistic, Loss
from torchdpcate.erm.records import Batch, StackedRecords, Target, arm
from torchdpcate.erm.solver import PerturbedSum, minimise
from torchdpcate.estimators.average.balanced_difference import SUMS
from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect
from torchdpcate.estimators.average.horvitz_thompson import (
    HorvitzThompson,
    HorvitzThompsonEffect,
    horvitz_thompson_terms,
    sum_unit,
)
from torchdpcate.estimators.average.score_sums import ScoreSums
from torchdpcate.estimators.average.subsample_aggregate import (
    SubsampleAggregate,
    SubsampleAggregateEffect,
    group_estimates,
    group_positions,
)
from torchdpcate.estimators.average.sum_and_squares import TermRange, sum_and_half_squares
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_ATE = ATE(0.1)
_DOMAIN = Domain([-1.0], [1.0], 0.0, 1.0)
_SCHEMA = TableSchema.of(_DOMAIN)
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
    plan = HorvitzThompson(1, _SCHEMA, _ATE, PrivacyBudget(budget.epsilon, 0.0))
    perturbed = Logistic(), arm, plan.fit.ridge, plan.fit.public["tilt_scale"]

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        session = FitSession(noise)
        learnt = plan.learn(worlds[world], session, runs)
        return torch.cat(list(plan.sums(worlds[world], session, learnt).values()), 1)

    def log_density(shown: Tensor, records: Crowd) -> Tensor:
        """Of the coefficients, and of the sum's noise given them, in its unit."""
        theta, total = shown[:, :-1], shown[:, -1]
        facts = plan.released(theta)
        exact = records.total(lambda batch: horvitz_thompson_terms(batch, facts, theta))[:, 0] / sum_unit(facts)
        return records.log_density(theta, *perturbed) - (total - exact).abs() / plan.scale("sum")

    return Game(
        draw,
        PureEvent(budget.epsilon),
        _claim(budget),
        evidence=lambda shown: log_density(shown, worlds[1]) - log_density(shown, worlds[0]),
    )


def _groups(world: int) -> StackedRecords:
    """Groups of a treated record and a control at either end, of which the one beside the treated record counts.

    In the first group the treated record goes from the control of outcome 0 to that of outcome 1, and its own outcome
    from 1 to 0: the contrast goes from nearly 1 to nearly -1.
    """
    x = torch.tensor([-1.0, -1.0, 1.0]).double().repeat(_GROUPS, 1)
    y, z = torch.tensor([1.0, 0.0, 1.0]).double().repeat(_GROUPS, 1), torch.eye(3).double()[:1].repeat(_GROUPS, 1)
    x[0, 0], y[0, 0] = 2.0 * world - 1, 1.0 - world
    places = group_positions(3 * _GROUPS, _GROUPS, 0)[0].flatten()
    return _stacked(*(torch.zeros(3 * _GROUPS).double().index_copy(0, places, part.flatten()) for part in (x, z, y)))


def _plan_of_groups(epsilon: float) -> SubsampleAggregate:
    """Return a plan whose clip and ridge leave a control far from all treated records hardly a weight."""
    return SubsampleAggregate(3 * _GROUPS, _SCHEMA, ATT(0.01), PrivacyBudget(epsilon, 0.0), ridge=1e-4)


@worst_case(
    "subsample_aggregate",
    SubsampleAggregateEffect,
    pair="a group of three whose contrast one treated record turns round; both sums are shown",
)
def _subsample_aggregate(budget: PrivacyBudget) -> Game:
    plan = _plan_of_groups(budget.epsilon)
    return plan.game(SUMS, *(sum_and_half_squares(group_estimates(_groups(world), plan)) for world in (0, 1)))


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
    sums = ScoreSums.of(ranges, _ATE, _SCORED, budget.epsilon)
    law, within = sums.laws[SUMS], TermRange(*ranges.ends)
    exact = [sum_and_half_squares(within.places(ranges.clip(*_ATE.score(*world))[0])) for world in worlds]
    return Game(
        draw=lambda world, runs, noise: law.draw(noise, runs, exact[world]),
        event=law.event,
        guarantee=_claim(budget),
        evidence=law.evidence(*exact),
        most_runs=200_000,
    )
