"""Nuisances of an average effect by one composition on all records, and doubly robust scores by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.composition.asked import logistic_plan, outcome_plan
from torchdpcate.composition.effect_law import Covariates, public_points
from torchdpcate.composition.linear_fit import FitPlan, NoisyNewton, Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import Standardised, private_start
from torchdpcate.composition.regressions import (
    Fitted,
    Outcome,
    OutcomeFits,
    Propensity,
    Regressions,
    WorkedOut,
    propensity_at,
)
from torchdpcate.composition.rows import Change, Rows
from torchdpcate.composition.score_errors import FittedNuisance, ScoreErrors
from torchdpcate.composition.steps import NoisySteps, propensity_of
from torchdpcate.composition.summaries import ScoreScales, quantile_of
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
        rows: The records.
        score: Makes a batch's doubly robust scores of them, in the place of outcomes, with propensities; the curator's.
    """

    centre: float
    clip: float
    errors: ScoreErrors | None
    rows: Rows
    score: Change

    def error(self, square: float) -> float:
        """Return the standard deviation of that, by the released mean square of clipped scores over the clip."""
        return 0.0 if self.errors is None else self.errors.deviation(self.centre, self.clip, square)

    @cached_property
    def scored(self) -> Rows:
        """The records with their scores, the curator's."""
        return self.rows.then(self.score)


@dataclass(frozen=True, eq=False)
class ATEScores:
    r"""Doubly robust scores of records, in the place of their outcomes.

    .. math:: \varphi_i = m_1(x_i) - m_0(x_i) + \frac{a_i - \pi_i}{\pi_i (1 - \pi_i)} (y_i - m_{a_i}(x_i))

    Attributes:
        first: Standardises the covariates.
        outcome: m, of both arms.
        propensity: pi; None takes the records' own.
        overlap: Public clip of the propensity.
    """

    first: Standardised
    outcome: Outcome
    propensity: Propensity | None
    overlap: float

    def __call__(self, batch: CausalData) -> WorkedOut:
        """Return them at a batch."""
        at = self.first(batch)
        a, y, (m0, m1) = at.a, at.y, (self.outcome(at, arm) for arm in (0, 1))
        pi = propensity_at(at, self.propensity)
        scores = ATE(self.overlap).score(a, y, pi, m0, m1)[0]
        return WorkedOut(batch.x, a, scores, pi, outcome=torch.where(a > 0.5, m1, m0))


@dataclass(frozen=True, eq=False)
class SizePlaces:
    """Where the sizes of scores about their centre lie on public scales, in [0, 1].

    Of a binary outcome that is how far it may lie from its mean, over the propensity of each record's arm.

    Attributes:
        scales: Public interval of the clip.
        centre: Of the scores.
        binary: Bounds of a binary outcome; None of others.
    """

    scales: ScoreScales
    centre: float
    binary: tuple[float, float] | None

    def __call__(self, batch: CausalData) -> Tensor:
        """Return them at a batch of ``ATEScores``, [n]."""
        assert isinstance(batch, WorkedOut)
        if self.binary is None:
            return self.scales.place((batch.y - self.centre).abs())
        (low, high), pi, own = self.binary, propensity_of(batch), batch.outcome
        return self.scales.place(torch.maximum(high - own, own - low) / torch.where(batch.a > 0.5, pi, 1 - pi))


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
        start = private_start(rows, domain, plan, steps, two_levels)
        first = Standardised(domain, start.kept)
        with rows.then(first).stored("z") as z:
            regressions = Regressions(plan, steps, start.kept.two_levels, solver or NoisyNewton())
            fits = regressions.outcome_fits(start.outcome.clip, start.centre)
            both = regressions.outcome(z, fits)
            mean = Outcome(fits, both.scores, y_range)
            propensity, logit = (None, None) if plan.known_propensity else regressions.propensity(z)
        covariates = Covariates(start.kept.standardisation, start.kept.two_levels)
        points, (p0, p1) = _at_points(regressions, mean, both, covariates)
        score, centre = ATEScores(first, mean, propensity, domain.overlap), float((p1 - p0).mean())
        scales, levels = ScoreScales.of(domain), plan.constants.quantile_levels
        if start.outcome.few:
            nearest = scales.nearest(start.outcome.clip * plan.score_scale, levels)
        else:
            places = SizePlaces(scales, centre, y_range if plan.binary else None)
            asked = plan.score_quantile, 0.0, 1.0, levels, "residual scale", steps
            nearest = scales.at(quantile_of(rows.then(score), places, *asked))
        clip = min(plan.clip_factor * nearest, scales.high)
    errors = None
    if logit is not None and steps.private:
        levels_of, unit = start.kept.two_levels, session.unit.records
        fitted = _fitted_propensity(regressions, logit), _fitted_arms(regressions, both, fits)
        errors = ScoreErrors(plan, levels_of, points, *fitted, (p0, p1), y_range, unit)
    return AverageNuisances(centre, clip, errors, rows, score)


def _at_points(
    regressions: Regressions, mean: Outcome, both: Fitted, covariates: Covariates
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return public points [N, k] that stand for the records, and the outcome's means in both arms there."""
    shared = regressions.plan.both_arms(regressions.two_levels).basis.shared
    d = both.curvatures[: shared.dimension, : shared.dimension]
    points = public_points(shared, d, covariates)
    none = points.new_zeros(len(points))
    at = CausalData(points, none, none)
    return points, (mean(at, 0), mean(at, 1))


def _fitted_propensity(regressions: Regressions, found: Fitted) -> FittedNuisance:
    """Return what the propensity's regression released, and how it was asked for."""
    plan = regressions.plan
    asked, _ = logistic_plan(plan, "propensity", plan.propensity(regressions.two_levels), found.curvatures)
    return _with_plan("propensity", found, asked, plan.slope("propensity"))


def _fitted_arms(regressions: Regressions, found: Fitted, fits: OutcomeFits) -> FittedNuisance:
    """Return what the regression of both arms released, and how it was asked for."""
    plan, regression = regressions.plan, regressions.outcome_regression
    if plan.binary:
        asked, _ = logistic_plan(plan, "outcome", regression, found.curvatures)
    else:
        asked = outcome_plan(plan, regression, found.curvatures, fits.scale, fits.centre)
    return _with_plan("outcome", found, asked, fits.slope)


def _with_plan(step: str, found: Fitted, asked: FitPlan, slope: float) -> FittedNuisance:
    assert found.coefficients is not None
    assert found.solution is not None
    return FittedNuisance(step, asked, found.curvatures, found.coefficients, found.solution, slope)
