"""Nuisances of an average effect by one composition on all records, and doubly robust scores by them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.composition.asked import logistic_plan, outcome_plan
from torchdpcate.composition.effect_law import Covariates, public_points
from torchdpcate.composition.linear_fit import FitPlan, NoisyNewton, Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import Standardised, private_start
from torchdpcate.composition.regressions import Fitted, Outcome, OutcomeFits, Regressions
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.score_errors import FittedNuisance, ScoreErrors
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import ScoreScales, private_quantile
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
        scores: Doubly robust scores [n], the curator's.
        propensity: pi at the records, [n], the curator's.
    """

    centre: float
    clip: float
    errors: ScoreErrors | None
    scores: Tensor
    propensity: Tensor

    def error(self, square: float) -> float:
        """Return the standard deviation of that, by the released mean square of clipped scores over the clip."""
        return 0.0 if self.errors is None else self.errors.deviation(self.centre, self.clip, square)


def average_nuisances(
    records: CausalData,
    domain: Domain,
    plan: ComposedPlan,
    session: FitSession,
    two_levels: Sequence[bool],
    known: Tensor | None = None,
    solver: Solver | None = None,
) -> AverageNuisances:
    r"""Run the plan's steps on all records, and score these by what they released.

    .. math:: \varphi_i = m_1(x_i) - m_0(x_i) + \frac{a_i - \pi_i}{\pi_i (1 - \pi_i)} (y_i - m_{a_i}(x_i))

    Args:
        records: Within the domain, in an order that does not depend on them.
        domain: Public bounds.
        plan: The public plan.
        session: Scope of the block of records; pays, and draws noise.
        two_levels: Whether each covariate has two levels, public, [q].
        known: Known propensities of the records, [n]; None fits them.
        solver: How regressions are solved; None takes ``NoisyNewton``.

    Raises:
        BudgetError: The block cannot pay.
    """
    steps, y_range = NoisySteps(session, plan.shares), (domain.outcome_low, domain.outcome_high)
    rows = InMemory(replace(records, propensity=known))
    start = private_start(rows, domain, plan, steps, two_levels)
    rows = rows.then(Standardised(domain, start.kept))
    regressions = Regressions(plan, steps, start.kept.two_levels, solver or NoisyNewton())
    fits = regressions.outcome_fits(start.outcome.clip, start.centre)
    both = regressions.outcome(rows, fits)
    mean = Outcome(fits, both.scores, y_range)
    propensity, logit = regressions.propensity(rows) if known is None else (None, None)
    pi = known if propensity is None else propensity(rows.records)
    assert pi is not None
    covariates = Covariates(start.kept.standardisation, start.kept.two_levels)
    points, (p0, p1) = _at_points(regressions, mean, both, covariates)
    a, y, (m0, m1) = records.a, records.y, (mean(rows.records, arm) for arm in (0, 1))
    own = torch.where(a > 0.5, m1, m0)
    scores = ATE(domain.overlap).score(a, y, pi, m0, m1)[0]
    centre = float((p1 - p0).mean())
    if start.outcome.few:
        scales, levels = ScoreScales.of(domain), plan.constants.quantile_levels
        nearest = scales.nearest(start.outcome.clip * plan.score_scale, levels)
        clip = min(plan.clip_factor * nearest, scales.high)
    elif plan.binary:
        farthest = torch.maximum(domain.outcome_high - own, own - domain.outcome_low)
        clip = _clip_of(farthest / torch.where(a > 0.5, pi, 1 - pi), domain, plan, steps)
    else:
        clip = _clip_of((scores - centre).abs(), domain, plan, steps)
    errors = None
    if logit is not None and steps.private:
        levels_of, unit = start.kept.two_levels, session.unit.records
        fitted = _fitted_propensity(regressions, logit), _fitted_arms(regressions, both, fits)
        errors = ScoreErrors(plan, levels_of, points, *fitted, (p0, p1), y_range, unit)
    return AverageNuisances(centre, clip, errors, scores, pi)


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


def _clip_of(sizes: Tensor, domain: Domain, plan: ComposedPlan, steps: NoisySteps) -> float:
    """Return the clip of scores: a private quantile of their sizes [n] times the plan's factor, below its most."""
    scales, levels = ScoreScales.of(domain), plan.constants.quantile_levels
    place = private_quantile(scales.place(sizes), plan.score_quantile, 0.0, 1.0, levels, "residual scale", steps)
    return min(plan.clip_factor * scales.at(place), scales.high)
