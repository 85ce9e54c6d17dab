"""Nuisances of an average effect by one composition on all records, and doubly robust scores by them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.composition.arm_regressions import ArmRegressions, ScoreScales
from torchdpcate.composition.effect_law import Covariates, public_points
from torchdpcate.composition.linear_fit import NoisyNewton, Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import private_start
from torchdpcate.composition.regressions import FittedNuisance
from torchdpcate.composition.score_errors import Fitted, ScoreErrors
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import private_quantile
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


@dataclass(frozen=True, eq=False)
class _Arms:
    """The regression of both arms.

    Attributes:
        values: m_0 and m_1 at the records, [n] each.
        at_points: The same at public points, [N] each.
        curvatures: Released, [1 + p, 1 + p].
        coefficients: Released, [1 + p].
        solution: The same before they were shrunk.
    """

    values: tuple[Tensor, Tensor]
    at_points: tuple[Tensor, Tensor]
    curvatures: Tensor
    coefficients: Tensor | None
    solution: Tensor | None


@dataclass(frozen=True, eq=False)
class AverageRegressions(ArmRegressions):
    """Fits of an average effect's plan; see ``ArmRegressions``."""

    def both_arms(
        self, z: Tensor, a: Tensor, y: Tensor, scale: float, centre: float, covariates: Covariates, domain: Domain
    ) -> tuple[_Arms, Tensor]:
        """Return the outcome's mean in both arms, and public points [N, k] that stand for the records.

        Args:
            z: Standardised covariates [n, k].
            a: Arms, [n].
            y: Outcomes about their released centre, [n].
            scale: Clip of their residuals, released.
            centre: That centre.
            covariates: Those in use.
            domain: Public bounds.
        """
        regression = self.plan.both_arms(self.two_levels)
        basis = regression.basis
        mean, curvatures = self.mean(regression, basis(z, a), z, y, scale, centre)
        shared = basis.shared.dimension
        points = public_points(basis.shared, curvatures[:shared, :shared], covariates)

        def features(at: Tensor) -> tuple[Tensor, Tensor]:
            none = at.new_zeros(len(at))
            return basis(at, none), basis(at, none + 1)

        def means(of: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            control, treated = (
                (centre + mean.scores(psi)).clamp(domain.outcome_low, domain.outcome_high) for psi in of
            )
            return control, treated

        values, at_points = (means(features(at)) for at in (z, points))
        return _Arms(values, at_points, curvatures, mean.coefficients, mean.solution), points

    def fitted_propensity(self, found: FittedNuisance) -> Fitted:
        """Return what the propensity's regression released, and how it was asked for."""
        asked, _ = self.logistic_plan("propensity", self.plan.propensity(self.two_levels), found.curvatures)
        assert found.coefficients is not None
        assert found.solution is not None
        slope = self.plan.slope("propensity")
        return Fitted("propensity", asked, found.curvatures, found.coefficients, found.solution, slope)

    def fitted_arms(self, found: _Arms, scale: float, centre: float) -> Fitted:
        """Return what the regression of both arms released; see ``both_arms``."""
        regression, d = self.plan.both_arms(self.two_levels), found.curvatures
        binary = self.plan.binary
        asked = (
            self.logistic_plan("outcome", regression, d)[0]
            if binary
            else self.outcome_plan(regression, d, scale, centre)
        )
        assert found.coefficients is not None
        assert found.solution is not None
        return Fitted("outcome", asked, d, found.coefficients, found.solution, 1.0 if binary else scale)

    def clip_of(self, sizes: Tensor, domain: Domain) -> float:
        """Return the clip of scores: a private quantile of their sizes [n] times the plan's factor, below its most."""
        scales, levels = ScoreScales.of(domain), self.plan.constants.quantile_levels
        place = private_quantile(
            scales.place(sizes), self.plan.score_quantile, 0.0, 1.0, levels, "residual scale", self.steps
        )
        return min(self.plan.clip_factor * scales.at(place), scales.high)


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
    steps = NoisySteps(session, plan.shares)
    start = private_start(records, domain, plan, steps, two_levels)
    a, y, z = records.a, records.y, start.z
    regressions = AverageRegressions(plan, steps, start.kept.two_levels, solver or NoisyNewton())
    covariates = Covariates(start.kept.standardisation, start.kept.two_levels)
    arms, points = regressions.both_arms(z, a, y - start.centre, start.outcome.clip, start.centre, covariates, domain)
    estimated = regressions.propensity(z, a) if known is None else None
    pi = known if estimated is None else estimated.values
    assert pi is not None
    (m0, m1), own = arms.values, torch.where(a > 0.5, arms.values[1], arms.values[0])
    scores = ATE(domain.overlap).score(a, y, pi, m0, m1)[0]
    centre = float((arms.at_points[1] - arms.at_points[0]).mean())
    if start.outcome.few:
        scales, levels = ScoreScales.of(domain), plan.constants.quantile_levels
        nearest = scales.nearest(start.outcome.clip * plan.score_scale, levels)
        clip = min(plan.clip_factor * nearest, scales.high)
    elif plan.binary:
        farthest = torch.maximum(domain.outcome_high - own, own - domain.outcome_low)
        clip = regressions.clip_of(farthest / torch.where(a > 0.5, pi, 1 - pi), domain)
    else:
        clip = regressions.clip_of((scores - centre).abs(), domain)
    errors = None
    if estimated is not None and steps.private:
        bounds = domain.outcome_low, domain.outcome_high
        logit = regressions.fitted_propensity(estimated)
        both = regressions.fitted_arms(arms, start.outcome.clip, start.centre)
        errors = ScoreErrors(
            plan, start.kept.two_levels, points, logit, both, arms.at_points, bounds, session.unit.records
        )
    return AverageNuisances(centre, clip, errors, scores, pi)
