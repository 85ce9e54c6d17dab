"""Nuisances of an average effect by one composition on all records, and doubly robust scores by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchdpcate.composition.effect_law import Covariates, public_points
from torchdpcate.composition.fit_plans import logistic_plan, outcome_plan
from torchdpcate.composition.linear_fit import FitPlan, NoisyNewton, Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import private_start, score_clip, standardised, weighed, worked_out
from torchdpcate.composition.regressions import (
    Fitted,
    Means,
    OutcomeFits,
    RecordScores,
    Regressions,
    outcome_means,
)
from torchdpcate.composition.rows import Rows
from torchdpcate.composition.score_errors import FittedNuisance, ScoreErrors
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import ScoreScales
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.privacy.session import FitSession


@dataclass(frozen=True, eq=False)
class AverageNuisances:
    """Released numbers, and scores of the records that are the curator's; outcome units.

    Attributes:
        centre: About which scores are clipped: the arms' difference at public points.
        clip: Of the scores about it.
        errors: What errors of both nuisances move the mean score by; None where the propensity is known.
        scored: The records with scores in the place of outcomes, and their propensities; the curator's.
        weight: Mean weight of the records, released; None where all count alike.
    """

    centre: float
    clip: float
    errors: ScoreErrors | None
    scored: Rows
    weight: float | None = None

    def error(self, square: float) -> float:
        """Return the standard deviation of that, by the released mean square of clipped scores over the clip.

        Infinite where the released numbers give none: an interval is then all that bounds of the outcome allow.
        """
        if self.errors is None:
            return 0.0
        found = self.errors.deviation(self.centre, self.clip, square)
        return found if math.isfinite(found) else math.inf


@dataclass(frozen=True, eq=False)
class ATEScores(RecordScores):
    r"""Doubly robust scores of records, in the place of their outcomes, for the average effect.

    .. math:: \varphi_i = m_1(x_i) - m_0(x_i) + \frac{a_i - \pi_i}{\pi_i (1 - \pi_i)} (y_i - m_{a_i}(x_i))

    Attributes:
        centre: Of the scores.
    """

    centre: float

    def score(self, batch: CausalData, pi: Tensor, mu0: Tensor, mu1: Tensor) -> Tensor:
        treated = batch.a > 0.5
        return mu1 - mu0 + torch.where(treated, (batch.y - mu1) / pi, (mu0 - batch.y) / (1 - pi))

    def middle(self, mu0: Tensor, mu1: Tensor) -> float:
        """See ``RecordScores``: their centre."""
        return self.centre

    def farthest(self, own: Tensor, low: float, high: float) -> Tensor:
        return torch.maximum(high - own, own - low)


def average_nuisances(
    rows: Rows,
    domain: Domain,
    plan: ComposedPlan,
    session: FitSession,
    two_levels: Sequence[bool],
    solver: Solver | None = None,
) -> AverageNuisances:
    """Run the plan's steps on all records, and score these by what they released; see ``ATEScores``.

    Args:
        rows: See ``rows_of``; records that have a propensity have none fitted.
        domain: Public bounds.
        plan: The public plan.
        session: Scope of the block of records; pays, and draws noise.
        two_levels: Whether each covariate has two levels, public, [q].
        solver: How regressions are solved; None takes ``NoisyNewton``.

    Raises:
        InputError: A stream whose length changes.
        BudgetError: The block cannot pay.
    """
    steps, y_range = NoisySteps(session, plan.shares, rows.batch), (domain.outcome_low, domain.outcome_high)
    with rows.threads():
        rows, plan, steps = weighed(rows, domain, plan, steps)
        start = private_start(rows, domain, plan, steps, two_levels)
        first = partial(standardised, domain, start.retained)
        with rows.then(first).stored("z") as z:
            regressions = Regressions(plan, steps, start.retained.levels, solver or NoisyNewton())
            fits = regressions.outcome_fits(start.outcome.clip, start.centre)
            both = regressions.outcome(z, fits)
            mean = partial(outcome_means, fits, both.scores, y_range)
            propensity, logit = (None, None) if plan.known_propensity else regressions.propensity(z)
        covariates = Covariates(start.retained.standardisation, start.retained.levels)
        points, (p0, p1) = _at_points(regressions, mean, both, covariates)
        centre = float((p1 - p0).mean())
        binary = y_range if plan.binary else None
        scored = rows.then(partial(worked_out, first, ATEScores(mean, propensity, binary, centre)))
        clip = score_clip(scored, domain, plan, start.outcome, steps)
        clip = min(plan.clip_factor * clip, ScoreScales.of(domain).high)
    errors = None
    if logit is not None and steps.private:
        levels_of, unit = start.retained.levels, session.unit.records
        fitted = _fitted_propensity(regressions, logit), _fitted_arms(regressions, both, fits)
        errors = ScoreErrors(plan, levels_of, points, *fitted, (p0, p1), y_range, unit)
    return AverageNuisances(centre, clip, errors, scored, steps.weight)


def _at_points(
    regressions: Regressions, mean: Means, both: Fitted, covariates: Covariates
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return public points [N, k] that stand for the records, and the outcome's means in both arms there."""
    shared = regressions.plan.both_arms(regressions.two_levels).basis.shared
    d = both.curvatures[: shared.dimension, : shared.dimension]
    points = public_points(shared, d, covariates)
    none = points.new_zeros(len(points))
    at = CausalData(points, none, none)
    return points, (mean(at, 0), mean(at, 1))


def _fitted_propensity(regressions: Regressions, found: Fitted) -> FittedNuisance:
    """Return what the propensity's regression released, and how it was set up."""
    plan = regressions.plan
    requested, _ = logistic_plan(plan, "propensity", plan.propensity(regressions.two_levels), found.curvatures)
    return _with_plan("propensity", found, requested, plan.slope("propensity"))


def _fitted_arms(regressions: Regressions, found: Fitted, fits: OutcomeFits) -> FittedNuisance:
    """Return what the regression of both arms released, and how it was set up."""
    plan, regression = regressions.plan, regressions.outcome_regression
    if plan.binary:
        requested, _ = logistic_plan(plan, "outcome", regression, found.curvatures)
    else:
        requested = outcome_plan(plan, regression, found.curvatures, fits.scale, fits.centre)
    return _with_plan("outcome", found, requested, fits.slope)


def _with_plan(step: str, found: Fitted, requested: FitPlan, slope: float) -> FittedNuisance:
    assert found.coefficients is not None
    assert found.solution is not None
    return FittedNuisance(step, requested, found.curvatures, found.coefficients, found.solution, slope)
