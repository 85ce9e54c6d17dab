"""One pure event a regression: a perturbed objective, or sums of outcomes times treatments times covariates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import (
    FitPlan,
    HuberFit,
    LinearFit,
    LogisticFit,
    Solution,
    Solver,
    exact_solution,
)
from torchdpcate.composition.priors import Regression
from torchdpcate.composition.steps import NoisySteps, Statistic, Summed, propensity_of, summed
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import InputError
from torchdpcate.fit.losses import CrossEntropy, Huber, Loss, LossBounds
from torchdpcate.fit.minimise import minimise_batches
from torchdpcate.fit.private_fit import SOLVER_SHARE, ObjectiveNoise, PrivateFit, WeightBounds, ridge_ratio
from torchdpcate.fit.weighted_basis import Feature, WeightedBasis
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.mechanisms import KNormMechanism, k_norm_deviation

LARGEST = 1.5
"""Clip of w |g|^2, what a record adds to the Hessian, in curvatures of its loss."""
RIDGE_SHARE = 0.2
"""Share of epsilon that the change of a record's curvature may cost: it sets the least ridge."""
LEAST_RIDGE = 1e-6
"""Ridge at any epsilon: with less, directions that no record has would be without bound in floating-point numbers."""
NOISE_SHARE = (1 - SOLVER_SHARE) * (1 - RIDGE_SHARE)
"""Share of epsilon that is left for the noise at the least ridge."""


@dataclass(frozen=True)
class PerturbedObjectiveSolver(Solver):
    r"""Objective perturbation: the minimiser of the regression's own sum plus a random linear term.

    .. math::
        \hat\theta = \arg\min_\theta \sum_i w_i\,\ell_i(g_i^\top\theta) + \tfrac12 \sum_j \rho_j\theta_j^2 +
        b^\top\theta, \qquad p(b) \propto e^{-\beta \|b\|_2}, \quad
        \beta = \frac{\epsilon - \ln(1 + \kappa c / \min_j \rho_j)}{2\,\text{slope}}

    and ``logistic_jacobian`` in the place of the logarithm for logistic fits. The noise of the minimiser is
    :math:`H^{-1} b`: that of one noisy Newton step at the minimum, with the Hessian H of the records that are there.
    Weights are cut so that :math:`w \|g\|^2 \le c`. In coordinates :math:`\theta_j \sqrt{\rho_j}` the ridge is one
    number, as ``erm.minimise`` has it.

    Guarantee:
        Certified: pure epsilon of the step, in real arithmetic (Chaudhuri et al. 2011;
        docs/guarantees/composed_effect.md); stop and grid are hidden by 1 % of it.
    """

    def solution(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Solution:
        """See ``Solver``.

        Raises:
            InputError: Events that are not pure, a fit that is not one of the library's two, or no ridge.
        """
        if not steps.private:
            return exact_solution(fit, plan.ridge)
        theta = self.draw(fit, plan, steps, 1)[0]
        return Solution(theta, theta, -plan.ridge * theta)

    def draw(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps, runs: int) -> Tensor:
        """Return the coefficients of independent runs, [runs, p], of which there is one but in audits, paid for."""
        noise = objective_noise(fit, plan, steps.shares.event(plan.step))
        steps.pay(plan.step)
        loss, factor = _loss(fit)
        unit = (noise_ridge(plan) / plan.ridge).sqrt()  # coordinates in which the ridge is its least entry

        batches = fit.read(partial(_weighted, unit, factor))

        def minimum(b: Tensor) -> Tensor:
            stop = noise.tolerance * float(unit.min())
            return minimise_batches(batches, loss, noise_ridge(plan), b * unit, stop) * unit

        source = steps.session.noise
        return source.released(noise.release(minimum, source, runs))


def _weighted(unit: Tensor, factor: float, part: LinearFit) -> tuple[Tensor, ...]:
    """Return features in coordinates by ``unit``, targets and weights, cut and times ``factor``, of a batch."""
    predictors, weights = part.predictors.cpu().double(), part.weights.cpu().double()
    return predictors * unit, part.targets.cpu().double(), cut_weights(predictors, weights) * factor


def objective_noise(fit: LinearFit, plan: FitPlan, event: object) -> ObjectiveNoise:
    """Return the calibrated linear term of a fit, by public facts.

    Args:
        fit: Of which the kind of loss, its slope and the number of features are looked at.
        plan: How it is set up.
        event: What the step is charged.

    Raises:
        InputError: See ``PerturbedObjectiveSolver.solution``.
    """
    if not isinstance(event, PureEvent):
        raise InputError(
            "solver: an objective is perturbed by a pure event; give privacy.delta = 0, or use NoisyNewton"
        )
    loss, factor = _loss(fit)
    curved = LossBounds(fit.slope, LARGEST * loss.curvature * factor, logistic=type(loss) is CrossEntropy)
    perturbed = PrivateFit(curved, WeightBounds.per_record(1.0), noise_ridge(plan), len(plan.ridge))
    return perturbed.objective(PrivacyBudget(event.epsilon, 0.0), "gamma", remedy="use the plan's ridge")


def least_ridge(epsilon: float, curvature: float) -> float:
    r"""Return the ridge at which a record's curvature costs ``RIDGE_SHARE`` of epsilon.

    .. math:: \rho = \max\{\kappa c / (e^{.2 \epsilon} - 1), 10^{-6}\}

    Args:
        epsilon: Of the step.
        curvature: kappa of its loss.
    """
    return max(LARGEST * curvature * ridge_ratio(RIDGE_SHARE * (1 - SOLVER_SHARE) * epsilon), LEAST_RIDGE)


def noise_ridge(plan: FitPlan) -> float:
    """Return the least ridge of a coefficient."""
    return float(plan.ridge.min())


def cut_weights(predictors: Tensor, weights: Tensor) -> Tensor:
    r"""Return weights [n] with :math:`w \|g\|^2` of at most ``LARGEST``, each from its own record."""
    squared = predictors.square().sum(1)
    return weights * (LARGEST / (weights * squared).clamp_min(LARGEST))


def _loss(fit: LinearFit) -> tuple[Loss, float]:
    """Return the loss of ``erm`` and its factor."""
    if fit.kind is HuberFit:
        return Huber(fit.slope), 0.5
    if fit.kind is LogisticFit:
        return CrossEntropy(fit.slope), 1.0
    raise InputError(f"fit = {fit.kind.__name__}: neither HuberFit nor LogisticFit, whose curvature is known")


OBJECTIVE, SUMS, PUBLIC_SUMS = "objective", "sums", "sums, public constants"
"""How a rule's effect is found by pure events: by a perturbed objective, or by sums; then with which constants."""
CLIP = 0.5
"""Covariates are clipped here, in their spreads: a tighter clip says more of a slope for its noise."""
SPREAD = 0.4
"""Spread of covariates on [-1, 1] that is expected where no step looks at them."""
_SLOPE = math.erf(CLIP / math.sqrt(2)) / CLIP  # mean of z clip(z / c) for a standard normal z
_CENTRE_POWER, _SCALE_DECADES = 3.0, 2.0  # of the candidates of quantiles


def clip_slopes(two_levels: Sequence[bool], looked_at: bool) -> Tensor:
    r"""Return the planned means of :math:`z\,\mathrm{clip}(z/c)`, [k]: what a slope of one adds to its sum.

    Args:
        two_levels: Whether each covariate has two levels, which clipping leaves at -1 and 1.
        looked_at: Whether z is in released spreads; else its spread is ``SPREAD``.

    Example:
        >>> [round(slope, 3) for slope in clip_slopes([False, True], looked_at=True).tolist()]
        [0.766, 1.0]
    """
    slope = _SLOPE * (1.0 if looked_at else SPREAD)
    return torch.tensor([1.0 if two else slope for two in two_levels], dtype=torch.float64)


def clipped(z: Tensor, looked_at: bool) -> Tensor:
    """Return 1 and the clipped covariates, all within [-1, 1], [n, 1 + k].

    Args:
        z: Standardised covariates [n, k].
        looked_at: As of ``clip_slopes``.
    """
    unit = CLIP * (1.0 if looked_at else SPREAD)
    return torch.cat([z.new_ones(len(z), 1), (z / unit).clamp(-1, 1)], 1)


def sums_regression(two_levels: Sequence[bool], unit: float, variance: float) -> Regression:
    r"""Return the regression that sums are, of a constant and these covariates.

    .. math:: v_0 = u^2\,\frac{(p + 1)(p + 2)}{3}, \qquad v_j = v_0 / \kappa_j^2, \qquad p = 1 + k

    with the slopes kappa of standardised covariates; weights are such that they give these variances.

    Args:
        two_levels: Whether each covariate has two levels.
        unit: u, what one record may move the constant by over epsilon, in residual scales.
        variance: Prior variance of each covariate's part.

    Example:
        >>> found = sums_regression([True], 0.1, 1.0)
        >>> [round(v, 6) for v in (found.noise / found.basis.feature_weights).tolist()]
        [0.04, 0.04]
    """
    k = len(two_levels)
    feature_weights = torch.cat([torch.ones(1).double(), clip_slopes(two_levels, looked_at=True).square()])
    total = float(feature_weights.sum())
    noise = (unit * k_norm_deviation(1 + k, math.inf)) ** 2 / total
    features = tuple(Feature("1", j, j) for j in range(k))
    return Regression(
        WeightedBasis(features, feature_weights / total),
        torch.full((k,), variance, dtype=torch.float64),
        noise,
        noise * float((total / feature_weights).sum()),
    )


@dataclass(frozen=True, eq=False)
class EffectSums(Statistic):
    """Sums of pull times clipped covariates, [1 + k], of batches of ``residuals``: all of them lie within [-1, 1].

    Attributes:
        scale: At which residuals are clipped, released or public.
        covariates: k, the first ones.
        looked_at: As of ``clip_slopes``.
    """

    scale: float
    covariates: int
    looked_at: bool

    def moved(self) -> tuple[float, float, float]:
        """See ``Statistic``: of each of the sums."""
        return 2.0, 1, 1.0

    def __call__(self, batch: CausalData) -> Tensor:
        pi = propensity_of(batch)
        treatment = batch.a / torch.maximum(pi, 1 - pi)
        pulls = treatment.cpu() * (batch.y.cpu() / self.scale).clamp(-1, 1)
        pulls = times_weight(pulls.clamp(-1, 1), batch)
        features = clipped(batch.x[:, : self.covariates].cpu().double(), self.looked_at)
        return summed(lambda pull, rows: pull.clamp(-1, 1) @ rows.clamp(-1, 1), pulls, features)


def private_sums(rows: Summed, sums: Statistic, step: str, steps: NoisySteps) -> Tensor:
    r"""Return sums over records with K-norm noise of the largest entry.

    Guarantee:
        Certified, pure: one record replaced moves each sum by at most 2 (docs/guarantees/composed_effect.md).

    Args:
        rows: The records.
        sums: What is summed, of this sensitivity each.
        step: The step that pays.
        steps: Pays, and draws noise.

    Raises:
        InputError: The step's event is not pure.
    """
    event = steps.pay(step)
    if not isinstance(event, PureEvent):
        raise InputError("effect by sums: its event is pure; give privacy.delta = 0")
    mechanism = KNormMechanism(event.epsilon, steps.sensitivity(sums, rows.n), math.inf)
    return steps.session.noise.released(mechanism.add_noise(rows.total(sums)[None], steps.session.noise)[0])


def places_of(centre: bool, count: int) -> Tensor:
    """Return which of ``count`` evenly spaced candidates a quantile looks at: they lie nearer where it is expected.

    Args:
        centre: Whether it is the outcome's centre, expected in the middle; else a scale, expected near zero.
        count: Candidates.

    Example:
        >>> places_of(True, 16).tolist(), places_of(False, 16).tolist()
        ([1, 3, 5, 6, 7, 8, 9, 10, 12, 14], [0, 1, 2, 3, 4, 5, 7, 10, 13])
    """
    steps = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    if centre:
        v = 2 * steps - 1
        at = (1 + v.sign() * v.abs() ** _CENTRE_POWER) / 2
    else:
        at = 10 ** (_SCALE_DECADES * (steps - 1))
    return (at * count).floor().long().clamp(0, count - 1).unique()
