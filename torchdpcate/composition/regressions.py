"""The three regressions of a composition: outcome, propensity and effect."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdpcate.composition.constants import EXPECTED
from torchdpcate.composition.linear_fit import (
    CountFit,
    FitPlan,
    HuberFit,
    LinearFit,
    LogisticFit,
    NoisyNewton,
    Solution,
    Solver,
)
from torchdpcate.composition.plan import ArmRegression, ComposedPlan
from torchdpcate.composition.priors import EmpiricalBayes, Regression
from torchdpcate.composition.pure_fits import clip_slopes, clipped, private_sums
from torchdpcate.composition.settings import Additive, ComposedNuisance, Learnt
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.composition.summaries import private_curvatures
from torchdpcate.features.weighted_basis import Feature, lengths

AnyRegression = Regression | ArmRegression
_TYPICAL = 0.95  # of a feature's mean square times 1/|psi|, in energies
_MOST_LOGISTIC = 0.25  # curvature
_EFFECT_PRIOR = 4.0  # variance over the planned one: a weak ridge
_CLIPPED, _LOGISTIC = 0.5, 0.2  # variance of a record's pull, in squared bounds
_INTERVAL_RIDGE = 0.1  # of the effect's ridge: intervals undo it to first order alone


@dataclass(frozen=True, eq=False)
class FittedNuisance:
    """One nuisance's regression.

    Attributes:
        values: At the records, [n]; the curator's.
        curvatures: Released mean curvatures of its features, [1 + p, 1 + p].
        coefficients: Of its features, paid for, [1 + p]; None where there is a hidden layer.
        solution: The same before they were shrunk.
    """

    values: Tensor
    curvatures: Tensor
    coefficients: Tensor | None
    solution: Tensor | None = None


@dataclass(frozen=True, eq=False)
class FittedEffect:
    """Released numbers of the effect's regression, in outcome units; of K arms those of K - 1 functions in a row.

    Attributes:
        regression: What was asked for.
        curvatures: Released mean curvatures of the features, [1 + p, 1 + p].
        coefficients: As released, with their ridge, [1 + p].
        estimates: t, the ridge undone, [1 + p].
        variances: v, of the estimates' noise and sampling, [1 + p].
        shrunk: Posterior means, part by part, or the estimates where the plan shrinks nothing; the constant as it is.
        scale: S.
        solution: Coefficients as released, and the late iterates and gradients that they are made of.
    """

    regression: Regression
    curvatures: Tensor
    coefficients: Tensor
    estimates: Tensor
    variances: Tensor
    shrunk: Tensor
    scale: float
    solution: Solution


@dataclass(frozen=True, eq=False)
class Regressions:
    """Fits of one plan on standardised covariates.

    Attributes:
        plan: The public plan.
        steps: Pays, and draws noise.
        two_levels: Whether each kept covariate has two levels.
        solver: How fits are solved.
        nuisance: How outcome regression and propensity are learnt; None takes their features, by ``solver``.
        pairs: Products with a step that were chosen for the effect.
    """

    plan: ComposedPlan
    steps: NoisySteps
    two_levels: tuple[bool, ...]
    solver: Solver = field(default_factory=NoisyNewton)
    nuisance: ComposedNuisance | None = None
    pairs: tuple[Feature, ...] = ()

    def outcome(self, z: Tensor, y: Tensor, scale: float, centre: float = 0.0) -> FittedNuisance:
        """Return m(x) = E[Y | x] about the released centre.

        Args:
            z: Standardised covariates [n, k].
            y: Outcomes about their released centre, [n].
            scale: Released scale, at which residuals are clipped; the outcome's range where it is binary.
            centre: That centre, which counts need.
        """
        regression = self.plan.outcome(self.two_levels)
        psi = regression.basis(z)
        learnt, d = self.mean(regression, psi, z, y, scale, centre)
        return FittedNuisance(learnt.scores(psi), d, learnt.coefficients)

    def propensity(self, z: Tensor, a: Tensor) -> FittedNuisance:
        """Return pi(x), within the overlap."""
        regression, plan = self.plan.propensity(self.two_levels), self.plan
        psi = regression.basis(z)
        weight = 1 / lengths(psi)
        d = self.nuisance_curvatures("propensity", regression, psi, weight)
        asked, shrink = self.logistic_plan("propensity", regression, d)
        learnt = self._learnt("propensity").learn(self.propensity_fit(psi, weight, a), asked, z, self.steps, shrink)
        pi = torch.sigmoid(learnt.scores(psi)).clamp(plan.overlap, 1 - plan.overlap)
        return FittedNuisance(pi, d, learnt.coefficients, learnt.solution)

    def propensity_fit(self, psi: Tensor, weight: Tensor, a: Tensor) -> LogisticFit:
        """Return the regression of arms in {0, 1}, [n], whose propensities lie within the overlap."""
        return LogisticFit(psi, weight, a, self.plan.slope("propensity"))

    def effect(self, z: Tensor, residual: Tensor, treatment: Tensor, pi: Tensor, scale: float) -> FittedEffect:
        """Return the effect's regression.

        Args:
            z: Standardised covariates [n, k].
            residual: y - m, [n].
            treatment: a - pi, [n].
            pi: Propensities [n].
            scale: Released residual scale S.
        """
        regression = self.plan.effect(self.two_levels, self.pairs)
        if self.plan.by_sums:
            return self._effect_by_sums(regression, z, residual, treatment / torch.maximum(pi, 1 - pi), scale)
        psi = regression.basis(z)
        weight = 1 / (lengths(psi) * torch.maximum(pi, 1 - pi))
        planned = self.plan.effect_curvature * regression.basis.energies
        d = private_curvatures(psi, weight * pi * (1 - pi), planned, 0.5, "effect curvatures", self.steps)
        asked = self.effect_plan(regression, d, scale)
        solution = self.solver.solution(effect_fit(psi, residual, treatment, pi, scale), asked, self.steps)
        return self.fitted_effect(regression, d, asked, solution, scale)

    def _effect_by_sums(
        self, regression: Regression, z: Tensor, residual: Tensor, treatment: Tensor, scale: float
    ) -> FittedEffect:
        """Return the effect by one event of sums; treatment: a - pi over the most that it may be, [n]."""
        plan, looks = self.plan, "moments" in self.plan.shares.shares
        z = z[:, : len(regression.basis.features)]  # none of a constant
        pulls = treatment.cpu() * (residual.cpu() / scale).clamp(-1, 1)
        sums = private_sums(pulls, clipped(z.cpu().double(), looks), "effect", self.steps)
        unit = scale / (plan.n * plan.inside * plan.effect_weight)
        slopes = torch.cat([torch.ones(1).double(), clip_slopes(self.two_levels[: z.shape[1]], looks)])
        theta = unit * sums / (slopes * regression.basis.energies.sqrt())
        d = (plan.effect_curvature * regression.basis.energies).diag()
        variances = regression.noise * scale**2 / regression.basis.energies
        final = effect_coefficients(plan, regression, theta, variances, scale)
        return FittedEffect(
            regression, d, theta, theta, variances, final, scale, Solution(theta, theta, torch.zeros_like(theta))
        )

    def mean(
        self, regression: AnyRegression, psi: Tensor, z: Tensor, y: Tensor, scale: float, centre: float = 0.0
    ) -> tuple[Learnt, Tensor]:
        """Return the outcome's mean as a function of the records' features, and released curvatures [1 + p, 1 + p].

        Args:
            regression: What is asked for.
            psi: Its features at the records.
            z: As of ``outcome``, as are the others.
            y: As of ``outcome``.
            scale: As of ``outcome``.
            centre: As of ``outcome``.
        """
        weight = 1 / lengths(psi)
        d = self.nuisance_curvatures("outcome", regression, psi, weight)
        learner = self._learnt("outcome")
        if not self.plan.binary:
            fit = self.outcome_fit(psi, weight, y, scale, centre)
            score = learner.learn(fit, self.outcome_plan(regression, d, scale, centre), z, self.steps)
            return Learnt(lambda features: fit.means(score.scores(features)), score.coefficients, score.solution), d
        # y is -1/2 or 1/2 of the range, which is the scale
        asked, shrink = self.logistic_plan("outcome", regression, d)
        logistic = LogisticFit(psi, weight, (y / scale + 0.5).clamp(0, 1), 1.0)
        logit = learner.learn(logistic, asked, z, self.steps, shrink)
        return Learnt(
            lambda features: scale * (torch.sigmoid(logit.scores(features)) - 0.5), logit.coefficients, logit.solution
        ), d

    def outcome_fit(self, psi: Tensor, weight: Tensor, y: Tensor, scale: float, centre: float) -> LinearFit:
        """Return the outcome regression of records whose outcome is not binary.

        Args:
            psi: Features [n, 1 + p].
            weight: Of the records, [n].
            y: As of ``outcome``, as are the others.
            scale: As of ``outcome``.
            centre: As of ``outcome``.
        """
        if self.plan.log_link:
            return CountFit(psi, weight, y, scale, centre, count_level(centre, scale))
        return HuberFit(psi, weight, y, scale)

    def outcome_plan(self, regression: AnyRegression, curvatures: Tensor, scale: float, centre: float = 0.0) -> FitPlan:
        """Return how the outcome regression is asked for, of released curvatures [1 + p, 1 + p] and scale.

        Args:
            regression: What is asked for.
            curvatures: Released.
            scale: Released.
            centre: Released; of counts, whose logarithm has a curvature of about their level.
        """
        level = count_level(centre, scale) if self.plan.log_link else 1.0
        plan, d = self.plan, curvatures.diagonal()
        noise, curvature = plan.gradient_noise("outcome", scale, len(d)), plan.inside * plan.n
        prior = weak_prior(regression, "outcome", scale)
        ridge = (noise**2 + _CLIPPED * plan.n * d * scale**2) / (curvature * d * prior)
        return self._asked("outcome", level * curvature * curvatures, level * ridge)

    def logistic_plan(
        self, step: str, regression: AnyRegression, curvatures: Tensor
    ) -> tuple[FitPlan, Callable[[Tensor], Tensor]]:
        """Return how a logistic regression is asked for, of curvatures [1 + p, 1 + p], and how it is shrunk."""
        plan = self.plan
        noise = plan.gradient_noise(step, plan.slope(step), len(curvatures))
        curvature = (_LOGISTIC + 0.01) * plan.n * curvatures
        sampling = _LOGISTIC * plan.n * curvatures
        prior = weak_prior(regression, "logit", 1.0)
        ridge = (noise**2 + sampling.diagonal()) / (curvature.diagonal() * prior)
        asked = self._asked(step, curvature, ridge, _MOST_LOGISTIC)
        variances = _variances(curvature, noise**2, sampling)

        def shrink(theta: Tensor) -> Tensor:
            estimates = without_ridge(theta, asked)
            return shrunk(regression, theta, estimates, variances, EXPECTED.logit_size, plan.constants.spike)

        return asked, shrink

    def effect_plan(self, regression: AnyRegression, curvatures: Tensor, scale: float) -> FitPlan:
        """Return how the effect is asked for, of released curvatures [1 + p, 1 + p] and residual scale."""
        noise, curvature, sampling = _effect_noise(self.plan, curvatures, scale)
        prior = weak_prior(regression, "effect", scale / self.plan.score_scale)
        prior = prior.repeat(len(curvatures) // len(prior))
        ridge = (noise**2 + sampling.diagonal()) / (curvature.diagonal() * prior)
        if self.plan.intervals:
            ridge = ridge * _INTERVAL_RIDGE
        return self._asked("effect", curvature, ridge)

    def fitted_effect(
        self, regression: Regression, curvatures: Tensor, asked: FitPlan, solution: Solution, scale: float
    ) -> FittedEffect:
        """Return the effect's numbers, of what was released."""
        theta = solution.coefficients
        estimates = without_ridge(theta, asked)
        variances = effect_variances(self.plan, curvatures, scale)
        final = effect_coefficients(self.plan, regression, estimates, variances, scale)
        return FittedEffect(regression, curvatures, theta, estimates, variances, final, scale, solution)

    def nuisance_curvatures(self, step: str, regression: AnyRegression, psi: Tensor, weight: Tensor) -> Tensor:
        """Return released mean curvatures of a nuisance's features psi [n, 1 + p], [1 + p, 1 + p]."""
        return private_curvatures(psi, weight, planned_curvatures(regression), 1.0, f"{step} curvatures", self.steps)

    def _asked(self, step: str, curvature: Tensor, ridge: Tensor, most: float = 1.0) -> FitPlan:
        plan, constants = self.plan, self.plan.constants
        ridge = ridge.clamp_min(plan.least_ridge(step, most))
        steps = plan.steps, plan.warm, constants.warm, constants.step_size
        return FitPlan(step, curvature.diagonal(), ridge, *steps, curvature)

    def _learnt(self, step: str) -> ComposedNuisance:
        nuisance = self.nuisance or Additive(self.solver)
        if self.plan.one_propensity:
            return Additive(self.solver)  # of one number
        if self.plan.estimates_propensity and nuisance.by_features is not None:
            return nuisance.by_features  # whose noise intervals count
        return nuisance.chosen(step, self.plan.size)


def count_level(centre: float, scale: float) -> float:
    """Return the mean of counts that a score of zero stands for, of released numbers: the centre, if it is not small.

    Example:
        >>> count_level(7.0, 3.0), count_level(0.0, 1.0)
        (7.0, 0.5)
    """
    return max(centre, scale / 2)


def effect_fit(psi: Tensor, residual: Tensor, treatment: Tensor, pi: Tensor, scale: float) -> HuberFit:
    r"""Return the effect's regression, whose gradients are at most S: :math:`w = 1 / (|\psi| \max(\pi, 1 - \pi))`.

    Args:
        psi: Features [n, 1 + p].
        residual: y - m, [n].
        treatment: a - pi, [n].
        pi: Propensities [n].
        scale: S.
    """
    weight = 1 / (lengths(psi) * torch.maximum(pi, 1 - pi))
    return HuberFit(psi * treatment[:, None], weight, residual, scale)


def effect_coefficients(
    plan: ComposedPlan, regression: Regression, estimates: Tensor, variances: Tensor, scale: float
) -> Tensor:
    """Return the effect's coefficients, [1 + p]: shrunk estimates, or the estimates where the plan shrinks nothing.

    Those of more than two arms are K - 1 times as many, each function's after the other's.

    Args:
        plan: The public plan.
        regression: Which features they belong to.
        estimates: t, [1 + p].
        variances: v, [1 + p].
        scale: S, released: the clip of the effect's residuals.
    """
    if not plan.shrinks:
        return estimates.clone()
    size = scale / plan.score_scale * plan.effect_size
    size_of_each = len(regression.basis.energies)
    noise = plan.constants.shrinking_noise * variances
    each = zip(estimates.split(size_of_each), noise.split(size_of_each), strict=True)
    return torch.cat([shrunk(regression, t, t, v, size, plan.constants.spike) for t, v in each])


def planned_curvatures(regression: AnyRegression) -> Tensor:
    """Return the mean curvatures that a plan expects of a nuisance's features, [1 + p]."""
    return _TYPICAL * regression.basis.energies


def effect_variances(plan: ComposedPlan, curvatures: Tensor, scale: float) -> Tensor:
    """Return v, the variances of the effect's estimates by noise and sampling, [1 + p]: all from released numbers.

    Args:
        plan: The public plan.
        curvatures: Released, [1 + p, 1 + p].
        scale: S, released.
    """
    noise, curvature, sampling = _effect_noise(plan, curvatures, scale)
    return _variances(curvature, plan.wandering * noise**2, sampling)


def without_ridge(theta: Tensor, asked: FitPlan) -> Tensor:
    """Return coefficients [p] as they would be, to first order, without the ridge that they were asked for with."""
    curvature = asked.scaling.diag() if asked.curvature is None else asked.curvature
    return theta + torch.linalg.solve(curvature, asked.ridge * theta)


def _variances(curvature: Tensor, noise: float, sampling: Tensor) -> Tensor:
    """Return the diagonal of A^-1 (noise I + sampling) A^-1, [p], for a curvature A and a variance of sums [p, p]."""
    return _covariance(curvature, noise, sampling).diagonal()


def _covariance(curvature: Tensor, noise: float, sampling: Tensor) -> Tensor:
    """Return A^-1 (noise I + sampling) A^-1, [p, p]."""
    inverse = torch.linalg.inv(curvature)
    return inverse @ (noise * torch.eye(len(curvature), dtype=torch.float64) + sampling) @ inverse


def _effect_noise(plan: ComposedPlan, curvatures: Tensor, scale: float) -> tuple[float, Tensor, Tensor]:
    """Return the noise of the effect's gradient as one event, its curvatures and the variances of its sampling."""
    noise = plan.gradient_noise("effect", scale, len(curvatures))
    return noise, plan.inside * plan.n * curvatures, plan.sampling * plan.n * curvatures * scale**2


def shrunk(
    regression: AnyRegression, theta: Tensor, estimates: Tensor, variances: Tensor, scale: float, spike: float
) -> Tensor:
    """Return coefficients whose parts are drawn to zero by empirical Bayes; the constant as it is.

    Args:
        regression: Which features they belong to.
        theta: Coefficients, of which the constant is kept.
        estimates: t, [1 + p].
        variances: v, [1 + p].
        scale: Of a part's function.
        spike: Prior probability that a part is zero.
    """
    found, energies = theta.clone(), regression.basis.energies
    if not bool((variances > 0).all()):
        return found
    for part in regression.basis.parts.values():
        sizes = scale / (len(part) * energies[part]).sqrt()
        found[part] = EmpiricalBayes(spike).mean(estimates[part], variances[part], sizes)
    return found


def weak_prior(regression: AnyRegression, what: str, scale: float) -> Tensor:
    """Return prior variances of coefficients that weak ridges stand for, [1 + p].

    Args:
        regression: Which features they belong to.
        what: ``outcome``, ``effect``, or ``logit`` of a probability.
        scale: Of the regression.
    """
    energies = regression.basis.energies
    if what == "logit":
        times, constant = EXPECTED.logit_prior, EXPECTED.logit_constant / float(energies[0])
    else:
        times, constant = {"outcome": EXPECTED.outcome_prior, "effect": _EFFECT_PRIOR}[what] * scale**2, math.inf
    first = torch.tensor([constant], dtype=torch.float64)
    return torch.cat([first, times * regression.prior / energies[1:]])


def logistic_variances(plan: ComposedPlan, step: str, curvatures: Tensor, per_person: int = 1) -> Tensor:
    """Return the covariance of a logit's estimates by noise and sampling, [1 + p, 1 + p], from released numbers.

    Args:
        plan: The public plan.
        step: ``propensity``, or ``outcome`` where it is binary.
        curvatures: Released, [1 + p, 1 + p].
        per_person: Records of each person, as many times as much sampling variance.
    """
    noise = 2 * plan.slope(step) / plan.shares.of(step)
    curvature = (_LOGISTIC + 0.01) * plan.n * curvatures
    return _covariance(curvature, EXPECTED.wandering * noise**2, per_person * _LOGISTIC * plan.n * curvatures)


def outcome_variances(plan: ComposedPlan, curvatures: Tensor, scale: float, per_person: int = 1) -> Tensor:
    """Return that of the outcome regression's; see ``logistic_variances``; scale: at which residuals were clipped."""
    noise = 2 * scale / plan.shares.of("outcome")
    sampling = per_person * _CLIPPED * plan.n * curvatures * scale**2
    return _covariance(plan.inside * plan.n * curvatures, EXPECTED.wandering * noise**2, sampling)
