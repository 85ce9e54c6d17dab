"""One pure event a regression: the minimiser of its objective with a random linear term."""

from dataclasses import dataclass

from torch import Tensor

from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LinearFit, LogisticFit, Solution, Solver
from torchdpcate.composition.noisy_newton import exact_solution
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.erm.losses import CrossEntropy, Huber, Loss, LossBounds
from torchdpcate.erm.private_fit import SOLVER_SHARE, ObjectiveNoise, PrivateFit, WeightBounds, ridge_ratio
from torchdpcate.erm.solver import minimise
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent

LARGEST = 1.5
"""Clip of w |g|^2, what a record adds to the Hessian, in curvatures of its loss."""
RIDGE_SHARE = 0.2
"""Share of epsilon that the change of a record's curvature may cost: it sets the least ridge."""
LEAST_RIDGE = 1e-6
"""Ridge at any epsilon: with less, directions that no record has would be without bound in floating-point numbers."""
NOISE_SHARE = (1 - SOLVER_SHARE) * (1 - RIDGE_SHARE)
"""Share of epsilon that is left for the noise at the least ridge."""


@dataclass(frozen=True)
class PerturbedObjective(Solver):
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
        docs/guarantees/composed_pure_effect.md); stop and grid are hidden by 1 % of it.
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
        predictors, weights = fit.predictors.cpu().double(), fit.weights.cpu().double()
        weights = cut_weights(predictors, weights)
        loss, factor = _loss(fit)
        unit = (noise_ridge(plan) / plan.ridge).sqrt()  # coordinates in which the ridge is its least entry

        def minimum(b: Tensor) -> Tensor:
            scaled = minimise(
                predictors * unit,
                fit.targets.cpu().double(),
                weights * factor,
                loss,
                noise_ridge(plan),
                b * unit,
                noise.tolerance * float(unit.min()),
            )
            return scaled * unit

        source = steps.session.noise
        return source.released(noise.release(minimum, source, runs))


def objective_noise(fit: LinearFit, plan: FitPlan, event: object) -> ObjectiveNoise:
    """Return the calibrated linear term of a fit, by public facts.

    Args:
        fit: Of which the kind of loss, its slope and the number of features are looked at.
        plan: How it is asked for.
        event: What the step is charged.

    Raises:
        InputError: See ``PerturbedObjective.solution``.
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
    if type(fit) is HuberFit:
        return Huber(fit.slope), 0.5
    if type(fit) is LogisticFit:
        return CrossEntropy(fit.slope), 1.0
    raise InputError(f"fit = {type(fit).__name__}: neither HuberFit nor LogisticFit, whose curvature is known")
