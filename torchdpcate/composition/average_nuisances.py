"""Nuisances of an average effect by one composition on all records, and doubly robust scores by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.composition.arm_regressions import ArmRegressions, ScoreScales
from torchdpcate.composition.average_plan import AveragePlan
from torchdpcate.composition.linear_fit import Solver
from torchdpcate.composition.noisy_newton import NoisyNewton
from torchdpcate.composition.nuisance_noise import Covariates, public_points
from torchdpcate.composition.records import private_start
from torchdpcate.composition.regressions import FittedNuisance, logistic_variances, outcome_variances, weak_prior
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import private_quantile
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.features.weighted_basis import WeightedBasis
from torchdpcate.privacy.session import FitSession

_STEEPEST = 0.25  # of a sigmoid


@dataclass(frozen=True, eq=False)
class AverageNuisances:
    """Released numbers, and scores of the records that are the curator's; outcome units.

    Attributes:
        centre: About which scores are clipped: the arms' difference at public points.
        clip: Of the scores about it.
        error: Standard deviation of what the errors of both nuisances move the mean score by.
        scores: Doubly robust scores [n], the curator's.
    """

    centre: float
    clip: float
    error: float
    scores: Tensor


@dataclass(frozen=True, eq=False)
class _Arms:
    """The regression of both arms.

    Attributes:
        values: m_0 and m_1 at the records, [n] each.
        at_points: The same at public points, [N] each.
        features: Its features for controls and for the treated at these points, [N, 1 + p] each.
        curvatures: Released, [1 + p, 1 + p].
    """

    values: tuple[Tensor, Tensor]
    at_points: tuple[Tensor, Tensor]
    features: tuple[Tensor, Tensor]
    curvatures: Tensor


@dataclass(frozen=True, eq=False)
class AverageRegressions(ArmRegressions):
    """Fits of an average effect's plan; see ``ArmRegressions``."""

    plan: AveragePlan

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
        regression = self.plan.arms(self.two_levels)
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

        at_points = features(points)
        return _Arms(means(features(z)), means(at_points), at_points, curvatures), points

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
    plan: AveragePlan,
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
    regressions = AverageRegressions(plan, steps, start.two_levels, solver or NoisyNewton())
    covariates = Covariates(start.standardisation, start.two_levels)
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
    error = 0.0
    if estimated is not None and steps.private:
        error = nuisance_error(regressions, estimated, arms, points, start.outcome.clip, session.unit.records)
    return AverageNuisances(centre, clip, min(error, domain.outcome_range), scores)


def nuisance_error(
    regressions: AverageRegressions,
    propensity: FittedNuisance,
    arms: _Arms,
    points: Tensor,
    scale: float,
    per_person: int = 1,
) -> float:
    r"""Return the standard deviation of what the errors of both nuisances move the mean score by; released numbers.

    At x the score's mean is off by exactly

    .. math:: B(x) = \delta\pi(x) \Big(\frac{\delta m_1(x)}{\hat\pi(x)} + \frac{\delta m_0(x)}{1 - \hat\pi(x)}\Big),

    hence by :math:`E_{xx'}[C_\pi(x, x')\, C_g(x, x')]` in variance, with the covariances of :math:`\delta\pi` and of
    the bracket that noise and sampling leave under the regressions' weak priors: :math:`(V^{-1} + P^{-1})^{-1}` of
    the coefficients, V by released curvatures.

    Args:
        regressions: The fits.
        propensity: Its regression.
        arms: That of the outcomes.
        points: Public points [N, k].
        scale: Clip of the outcome regression, released.
        per_person: Records of each person.
    """
    plan, levels = regressions.plan, regressions.two_levels
    logit, outcome = plan.propensity(levels), plan.arms(levels)
    assert propensity.coefficients is not None
    phi = logit.basis(points)
    pi = torch.sigmoid(phi @ propensity.coefficients).clamp(plan.overlap, 1 - plan.overlap)
    slope = pi * (1 - pi)
    of_pi = _posterior(
        logistic_variances(plan, "propensity", propensity.curvatures, per_person), weak_prior(logit, "logit", 1.0)
    )
    size = scale
    if plan.binary:  # the slope of the outcome's sigmoid is at most a quarter
        size = _STEEPEST * scale
        variances = size**2 * logistic_variances(plan, "outcome", arms.curvatures, per_person)
        prior = size**2 * weak_prior(outcome, "logit", 1.0)
    else:
        variances = outcome_variances(plan, arms.curvatures, scale, per_person)
        prior = weak_prior(outcome, "outcome", scale)
    control, treated = arms.features
    of_logit, of_mean = plan.linear_priors
    left_logit, left_mean = (_left_out(basis, points) for basis in (logit.basis, outcome.basis.shared))
    rows, pulls = slope[:, None] * phi, treated / pi[:, None] + control / (1 - pi)[:, None]
    left_rows, left_pulls = slope[:, None] * left_logit, left_mean / slope[:, None]  # 1/pi + 1/(1 - pi) = 1/slope
    errors = rows @ of_pi @ rows.T + of_logit * left_rows @ left_rows.T
    moves = pulls @ _posterior(variances, prior) @ pulls.T + of_mean * size**2 * left_pulls @ left_pulls.T
    return math.sqrt(max(float((errors * moves).mean()), 0.0))


def _left_out(basis: WeightedBasis, points: Tensor) -> Tensor:
    """Return the covariates [N, k'] at points [N, k] that have no linear feature in a basis."""
    there = {feature.i for feature in basis.features if feature.kind == "1"}
    return points[:, [j for j in range(points.shape[1]) if j not in there]]


def _posterior(variances: Tensor, prior: Tensor) -> Tensor:
    """Return (V^-1 + P^-1)^-1 of estimates with covariance V [p, p] and a prior's variances P [p]."""
    return torch.linalg.inv(torch.linalg.inv(variances) + (1 / prior).diag())
