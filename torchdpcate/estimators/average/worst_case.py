"""Neighbouring records that attain what sums over records are charged, for audits to attack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, ATT
from torchdpcate.causal.score import Scored, ScoreRanges
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.losses import CrossEntropy, Logistic, Loss
from torchdpcate.erm.records import Batch, StackedRecords, Target
from torchdpcate.erm.solver import Batches
from torchdpcate.estimators.average.balance import BalanceStatistics
from torchdpcate.estimators.average.balanced_difference import BalancedDifference
from torchdpcate.estimators.average.balancing_plan import OUTCOME_MODEL
from torchdpcate.estimators.average.composed import ClippedScores, ComposedAverageEffect
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect, make_plan
from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect, ScoreSums
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.known_propensity import CentredSums, DesignFacts, KnownPropensityEffect
from torchdpcate.estimators.average.outcome_table import OutcomeTable
from torchdpcate.estimators.average.peers import (
    HorvitzThompson,
    HorvitzThompsonEffect,
    SubsampleAggregate,
    SubsampleAggregateEffect,
    group_positions,
)
from torchdpcate.estimators.average.ratio_of_sums import Total
from torchdpcate.estimators.average.weighted import EffectFacts, Weighted, released_ranges
from torchdpcate.estimators.average.worst_case_fits import log_density
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget, split_epsilon
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_ATE = ATE(0.1)
_UNIT, _SIDES = Domain([0.0], [1.0], 0.0, 1.0), Domain([-1.0], [1.0], 0.0, 1.0)
_RECORDS = 50
_LEAST = 0.01  # of epsilon, for the parts that the pair does not move
_DESIGNED = 20  # so few that the centre stays at a half, where an outcome moves the contrast as far as an arm does
_CENTRE, _CLIP = 0.1, 0.3
_FAR = 10.0  # of a score
_CROWD = 10_000.0  # at either end, which hold the propensity where it is clipped
_GROUPS = 3  # of three records each
_SCORED = 20


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
    worlds = [_weighted(0.0, 1.0 - world, largest[world]) for world in (0, 1)]
    worlds = [world._replace(m=ranges.model[1].expand_as(world.m)) for world in worlds]
    return readout.game([_of(world) for world in worlds], budget.epsilon)


@worst_case(
    "outcome_table",
    OutcomeTable,
    attacks=[
        *(Charge(Purpose.RELEASE, name) for name in (OutcomeTable.name, "difference_in_means")),
        Charge(Purpose.RELEASE, BalancedDifference.name, "difference_in_means"),
    ],
    pair="a treated record of the largest weight that released coefficients leave, its outcome at either end",
)
def _outcome_table(budget: PrivacyBudget) -> Game:
    theta = torch.tensor([[0.5, 1.0]], dtype=torch.float64)  # treated weights up to 2.42, those of controls to 3.89
    facts = EffectFacts(_RECORDS, _ATE)
    facts = replace(facts, ranges=(ranges := released_ranges(facts, on_domain(None, _UNIT), theta, None)))
    readout = OutcomeTable(facts, {"table": (1 - _LEAST) * budget.epsilon, "variance": _LEAST * budget.epsilon})
    worlds = [_of(_weighted(1.0 - world, largest=ranges.treated[1].item())) for world in (0, 1)]
    return readout.game(worlds, budget.epsilon, most_runs=200_000)


@worst_case(
    "balance_statistics",
    BalanceStatistics,
    attacks=[Charge(Purpose.RELEASE, name, "balance") for name in (BalancedDifference.name, OutcomeTable.name)],
    pair="half of the records are treated and all weights are the largest: a record at one end of the covariate is "
    "treated or not; the share of treated is shown too",
)
def _balance(budget: PrivacyBudget) -> Game:
    features, theta = on_domain(None, _UNIT), torch.zeros(1, 2, dtype=torch.float64)
    x = torch.full((2 * _RECORDS, 1), 0.5, dtype=torch.float64)
    x[0], worlds = 1.0, []
    for treated in (1.0, 0.0):
        z = (torch.arange(2 * _RECORDS) % 2).double()
        z[0] = treated
        worlds.append(_of(Batch(x, features(x), z, torch.zeros_like(z))))
    # the weights of an ATE of this overlap are 2, whatever theta is
    return BalanceStatistics(len(x), budget.epsilon, ATE(0.5), features, theta).game(worlds, budget.epsilon)


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
    y, worlds = torch.full_like(z, 0.5), []
    x[0], y[0] = 1.0, 1.0
    for treated in (1.0, 0.0):
        own = z.clone()
        own[0] = treated
        worlds.append(StackedRecords(Batch(x, features(x), own, y)))

    losses = {"weights": Logistic(), OUTCOME_MODEL: CrossEntropy()}
    return _fits_and_sums(plan, losses, worlds, budget.epsilon, most_runs=50_000)


def _fits_and_sums(
    plan: EffectPlan, losses: Mapping[str, Loss], worlds: Sequence[StackedRecords], epsilon: float, **settings: Any
) -> Game:
    """Return the game on perturbed minimisers, of which statements say ridge and scale, and the sums given them.

    Args:
        plan: Whose fits are by objective perturbation with box noise.
        losses: Of its fits, by their names.
        worlds: Two data sets.
        epsilon: What all of it costs.
        settings: Further fields of ``Game``.
    """
    sizes = [worlds[0].size] * len(plan.fits)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        session = FitSession(noise)
        return torch.cat(list(plan.sums(worlds[world], session, plan.learn(worlds[world], session, runs)).values()), 1)

    def density(shown: Tensor, records: StackedRecords) -> Tensor:
        """Log density of what is shown: the minimisers, then the noise in the sums given them."""
        *thetas, sums = shown.split([*sizes, shown.shape[1] - sum(sizes)], 1)
        learnt = dict(zip(plan.fits, thetas, strict=True))
        found = plan.readout(learnt).log_density(plan.total(records, learnt), sums)
        for name, theta in learnt.items():
            public, target = plan.fits[name].fit.public, plan.fits[name].target
            found = found + log_density(theta, records, losses[name], public["ridge"], public["tilt_scale"], target)
        return found

    return Game(
        draw,
        PureEvent(epsilon),
        Guarantee(Level.CERTIFIED, PrivacyBudget(epsilon, 0.0)),
        evidence=lambda shown: density(shown, worlds[1]) - density(shown, worlds[0]),
        **settings,
    )


def opposed_scores() -> Tensor:
    """Return the scores of both worlds, [2, n]: one record's is far above all others', or far below.

    Example:
        >>> sums = ClippedScores(_RECORDS, 1.0, _CENTRE, _CLIP).sums("scores", {}).exact(opposed_scores())
        >>> (sums[1] - sums[0]).tolist()
        [2.0, 0.0]
    """
    scores = torch.full((2, _RECORDS), _CENTRE, dtype=torch.float64)
    scores[:, 0] = torch.tensor([-_FAR, _FAR])
    return scores


@worst_case(
    "clipped_scores",
    ComposedAverageEffect,
    pair="one record whose doubly robust score is clipped above, or below; the sums of scores and of squares are shown",
)
def _clipped_scores(budget: PrivacyBudget) -> Game:
    readout = ClippedScores(_RECORDS, budget.epsilon, _CENTRE, _CLIP)
    return readout.game([_of(scores[None]) for scores in opposed_scores()], budget.epsilon)


def _designed(world: int, replaced: int) -> Batch:
    """Records at the middle of the outcome's range, and treated ones at either end of it."""
    z = (torch.arange(_DESIGNED) % 2).double()
    y = torch.full_like(z, 0.5)
    z[:replaced], y[:replaced] = 1.0, 1.0 - world
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
    return readout.game([_of(_designed(world, replaced)) for world in (0, 1)], budget.epsilon)


def _stacked(x: Tensor, z: Tensor, y: Tensor) -> StackedRecords:
    return StackedRecords(Batch(x[:, None], on_domain(None, _SIDES)(x[:, None]), z, y))


@dataclass(frozen=True, eq=False)
class Crowd(StackedRecords):
    """Records each of which stands for many.

    Attributes:
        counts: For how many, [n].
    """

    counts: Tensor

    def _pairs(self, target: Target) -> Batches:
        return lambda: iter([(self.batch.psi, target(self.batch), self.counts)])


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
    plan = HorvitzThompson(1, TableSchema.of(_SIDES), _ATE, PrivacyBudget(budget.epsilon, 0.0))
    return _fits_and_sums(plan, {"weights": Logistic()}, [_opposed(world) for world in (0, 1)], budget.epsilon)


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
    return SubsampleAggregate(3 * _GROUPS, TableSchema.of(_SIDES), ATT(0.01), PrivacyBudget(epsilon, 0.0), ridge=1e-4)


@worst_case(
    "subsample_aggregate",
    SubsampleAggregateEffect,
    pair="a group of three whose contrast one treated record turns round; both sums are shown",
)
def _subsample_aggregate(budget: PrivacyBudget) -> Game:
    plan = _plan_of_groups(budget.epsilon)
    return plan.readout({}).game([plan.total(_groups(world), {}) for world in (0, 1)], budget.epsilon)


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
    e = torch.tensor([[_ATE.overlap, 1 - _ATE.overlap]], dtype=torch.float64)
    ranges = ScoreRanges.of(_ATE, e, torch.full((1, 2, 2), 0.5, dtype=torch.float64))
    readout = ScoreSums(ranges, _ATE, _SCORED, budget.epsilon)
    return readout.game([readout.total(_scored(world)) for world in (0, 1)], budget.epsilon, most_runs=200_000)
