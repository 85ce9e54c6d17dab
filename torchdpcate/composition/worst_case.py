"""Worst neighbours of a composition's regressions and choices, for audits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.effect_law import Covariates, correlated_points
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LinearFit, newton_points
from torchdpcate.composition.lines import LineSums, Scored, Squares, line_blocks
from torchdpcate.composition.pure_fits import (
    LARGEST,
    RIDGE_SHARE,
    PerturbedObjectiveSolver,
    least_ridge,
    objective_noise,
)
from torchdpcate.composition.records import fit_composition
from torchdpcate.composition.remainders import Remainders, Shapes
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.steps import (
    CHOICES,
    LINE_SQUARES,
    LINE_SUMS,
    REMAINDERS,
    EpsilonShares,
    NoisySteps,
    Shares,
    Statistic,
    total_mu,
)
from torchdpcate.data.records import CausalData
from torchdpcate.fit.weighted_basis import MOST, Levels, Standardisation
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.charge import COMPOSED, COMPOSED_EFFECT
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import gumbel_top_k
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, Target, gaussian_evidence, worst_case
from torchdpcate.release.averages import LineFacts

_STEP, _STEPS, _WARM = "effect", 10, 2
_FAR = 1e6  # of residuals, in clips: no step leads so far that one of them is not clipped
_CANDIDATES = 12


@worst_case(
    "composed_effect",
    fit_composition,
    attacks=[Target(charge, pure=False) for charge in COMPOSED],
    pair="one record whose residual is far above its prediction, or far below it, all others being in balance",
)
def _residual_game(budget: PrivacyBudget) -> Game:
    return huber_game(budget, [_of_residuals(_FAR * torch.tensor([1.0, -1.0, y]).double()) for y in (1.0, -1.0)])


def _of_residuals(residuals: Tensor) -> HuberFit:
    """Return a regression on the constant of three records with these residuals, [3]."""
    one = torch.ones(3, dtype=torch.float64)
    return HuberFit(one[:, None], one, residuals, 1.0)


def huber_game(budget: PrivacyBudget, fits: Sequence[HuberFit]) -> Game:
    """Return the game of noisy Newton steps on one coefficient, by all of a budget.

    Args:
        budget: (epsilon, delta) with delta > 0.
        fits: Regressions of two neighbouring data sets of three records, with slope 1.
    """
    one, shares = torch.ones(1, dtype=torch.float64), Shares(total_mu(budget), {_STEP: 1.0})
    plan = FitPlan(_STEP, 3 * one, 0 * one, _STEPS, _WARM, _WARM / _STEPS, 0.25)

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return drawn(fits[dataset], plan, NoisySteps(FitSession(noise), shares), runs)

    def evidence(theta: Tensor) -> Tensor:
        return -theta[:, 0]

    return Game(draw, shares.event(_STEP), Guarantee(Level.CERTIFIED, budget), evidence)


def drawn(fit: LinearFit, plan: FitPlan, steps: NoisySteps, runs: int) -> Tensor:
    """Return what so many independent runs of ``NoisyNewton`` release, side by side, [runs, p]."""
    gradients = torch.vmap(fit.gradient)
    return newton_points(gradients, fit.predictors.shape, fit.slope, plan, steps, (runs,)).coefficients


def reached() -> float:
    """Return the share of the composition's mu that the mean of Newton points shows of this pair.

    Example:
        >>> round(reached(), 3)
        0.965
    """
    late = _STEPS - _WARM
    after = torch.arange(_STEPS, 0, -1, dtype=torch.float64) - 1  # late points that come after each step
    own = (torch.arange(_STEPS) >= _WARM).double()
    weights = (own + 0.25 * after.clamp(max=late)) / late
    return float(weights.sum() / (weights.norm() * math.sqrt(len(weights))))


@worst_case(
    "gumbel_top_k",
    gumbel_top_k,
    attacks=[charge.with_part(choice) for charge in COMPOSED for choice in CHOICES],
    pair="half of the scores rise by the sensitivity, and all others fall by it; the best is chosen",
)
def _choice(budget: PrivacyBudget) -> Game:
    """One choice: at errors of sigma(-eta / 2) of both kinds its curve meets the Gaussian one."""
    event = GaussianEvent(analytic_gaussian_sigma(budget.epsilon, budget.delta))
    rising = torch.arange(_CANDIDATES) % 2 == 0
    moved = torch.where(rising, 0.5, -0.5).double()

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        scores = (2 * dataset - 1) * moved
        return torch.tensor([gumbel_top_k(scores, 1, event, noise) for _ in range(runs)], dtype=torch.float64)

    def evidence(chosen: Tensor) -> Tensor:
        return rising[chosen[:, 0].long()].double()

    return Game(draw, event, Guarantee(Level.CERTIFIED, budget), evidence, most_runs=40_000)


@worst_case(
    "line_sums",
    LineSums,
    attacks=[COMPOSED_EFFECT.with_part(LINE_SUMS)],
    pair="one record whose score is far above the clip and which is treated, or far below it and not; others at nought",
)
def _line_sums(budget: PrivacyBudget) -> Game:
    """Average, ATT and ATC with tails and overlap: the pair moves each of these blocks by its whole sensitivity."""
    plan = composed_plan(4_000, budget, 2, lines=("ATT", "ATC"))
    one = torch.ones(2, 2, dtype=torch.float64)
    facts = LineFacts(0.0, 1.0, 4.0, 0.5, 2.0, 0.0, 0.5, 1.0, 0.0, 0.0, 1.0, one, one[:0, 0])
    return sums_game(budget, LINE_SUMS, LineSums(line_blocks(plan, facts, 1.0)), scored_pair((_FAR, -_FAR)))


@worst_case(
    "line_squares",
    Squares,
    attacks=[COMPOSED_EFFECT.with_part(LINE_SQUARES)],
    pair="one record whose score is far above the clip, or nought",
)
def _line_squares(budget: PrivacyBudget) -> Game:
    return sums_game(budget, LINE_SQUARES, Squares(1.0), scored_pair((_FAR, 0.0)))


def scored_pair(ends: tuple[float, float]) -> list[Scored]:
    """Return two neighbouring data sets of three scored records at even odds.

    Args:
        ends: Score of the first record, which is treated in the one and not in the other; the overlap makes up for all
            of its weight in that arm if the score is positive, else in the reference.

    Example:
        >>> [rows.y.tolist() for rows in scored_pair((2.0, -2.0))]
        [[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]
    """
    none, made = torch.zeros(3, dtype=torch.float64), []
    for score, treatment in zip(ends, (0.5, -0.5), strict=True):
        y, a = none.clone(), none + 0.5
        y[0], a[0] = score, treatment
        lacks = torch.zeros(3, 2, dtype=torch.float64)
        lacks[0, int(score > 0)] = 1.0
        cells = torch.empty(3, 0, dtype=torch.int64)
        made.append(Scored(none[:, None], a, y, none + 0.5, effect=none, cells=cells, lacks=lacks))
    return made


@worst_case(
    "remainders",
    Remainders,
    attacks=[COMPOSED_EFFECT.with_part(REMAINDERS)],
    pair="one record with covariates far out whose two residuals are at their upper ends, or at their lower ones",
)
def _remainders(budget: PrivacyBudget) -> Game:
    points = correlated_points(torch.eye(2, dtype=torch.float64), Covariates(Standardisation.none(2), (False, False)))
    shapes, z = Shapes.of(Levels([False, False]), None, points), torch.zeros(3, 2, dtype=torch.float64)
    assert shapes is not None
    z[0] = torch.tensor([MOST, -MOST])
    residual = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    pair = [CausalData(z, sign * residual, sign * _FAR * residual) for sign in (1.0, -1.0)]
    return sums_game(budget, REMAINDERS, Remainders(shapes, 1.0), pair)


def sums_game(budget: PrivacyBudget, step: str, statistic: Statistic, pair: Sequence[CausalData]) -> Game:
    """Return the game of one noisy total of three records, by all of a budget.

    Args:
        budget: (epsilon, delta) with delta > 0.
        step: Of the composition.
        statistic: What is summed.
        pair: Two neighbouring data sets.
    """
    shares, rows = Shares(total_mu(budget), {step: 1.0}), [InMemory(records) for records in pair]
    sums = [each.total(statistic) for each in rows]
    event = shares.event(step)

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        steps = NoisySteps(FitSession(noise), shares)
        sensitivity = steps.sensitivity(statistic, rows[dataset].n)
        return steps.noisy(sums[dataset].repeat(runs), sensitivity, event).view(runs, -1)

    evidence = gaussian_evidence((sums[0], sums[1]), (1.0, 1.0))
    return Game(draw, event, Guarantee(Level.CERTIFIED, budget), evidence)


def objective_game(fits: tuple[HuberFit, HuberFit], epsilon: float) -> Game:
    """Return the game of a perturbed objective of one coefficient on either of two data sets.

    The adversary has the exact densities of the minimiser.

    Args:
        fits: Regressions of neighbours, with slope 1.
        epsilon: Of the one step.
    """
    pure, one = PrivacyBudget(epsilon, 0.0), torch.ones(1, dtype=torch.float64)
    shares = EpsilonShares(pure.epsilon, {_STEP: 1.0})
    ridge = least_ridge(pure.epsilon, 1.0)
    plan = FitPlan(_STEP, one, ridge * one, 1, 0, RIDGE_SHARE, 1.0)
    scale = objective_noise(fits[0], plan, shares.event(_STEP)).scale

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return PerturbedObjectiveSolver().draw(fits[dataset], plan, NoisySteps(FitSession(noise), shares), runs)

    def log_density(theta: Tensor, dataset: int) -> Tensor:
        fit = fits[dataset]
        scores, weighted = fit.predictors[0, 0] * theta[:, 0], fit.predictors[0, 0] * fit.weights
        pull = ridge * theta[:, 0] + weighted * fit.pulls(scores)
        curvature = ridge + fit.predictors[0, 0] * weighted * fit.curvatures(scores)
        return curvature.log() - pull.abs() / scale

    return Game.of_densities(draw, shares.event(_STEP), pure, log_density)


@worst_case(
    "composed_pure_effect",
    PerturbedObjectiveSolver,
    attacks=[Target(charge, pure=True) for charge in COMPOSED],
    pair="one record whose residual is far above its prediction, or far below it, at the largest curvature it may have",
)
def _game(budget: PrivacyBudget) -> Game:
    g, one = torch.full((1, 1), LARGEST, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    low, high = (HuberFit(g, 1 / g[:, 0], sign * LARGEST * one, 1.0) for sign in (-1.0, 1.0))
    return objective_game((low, high), budget.epsilon)
