"""Objective perturbation of a Huber head: add noise to the objective, then minimise it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.gaussian_scale import PARALLELOGRAM, gaussian_scale
from torchdpcate.erm.perturbation import SOLVER_SHARE, ObjectiveNoise, calibrate_change, jacobian, ridge_ratio
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import Head, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, function_game, linear_stage
from torchdpcate.laws import PerturbedObjective
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.worst_case import Curve, Game, worst_case
from torchdpcate.second_stage.linear import LinearProblem, solve_perturbed
from torchdpcate.second_stage.recipes import LinearSecondStage, SecondStage
from torchdpcate.second_stage.stage import FittedStage

Minimise = Callable[[Tensor], Tensor]
"""Linear terms [runs, p] -> minimisers [runs, p]."""

_PROFILE: dict[str, Any] = {"dimension": 2, "corners": (PARALLELOGRAM,)}  # of two records' gradients
_SQUARED = (
    "second_stage.loss = squared: objective perturbation needs the Huber loss; "
    "use second_stage.loss=huber or mechanism=output"
)


def objective_noise(
    epsilon: float, delta: float, *, weight_bound: float, threshold: float, ridge: float, n: int
) -> tuple[float, float]:
    r"""Return (epsilon_J, sigma_b) of objective perturbation.

    .. math:: \varepsilon_J = \ln(1 + B^2/(n\lambda)),\quad
        \sigma_b = 4\tau B\,\sigma_{AG}(\varepsilon - \varepsilon_J, \delta/2)

    or ``erm.objective_sigma`` in two dimensions where delta is too large for the first; see ``erm.gaussian_scale``.

    Args:
        epsilon: Budget of the objective noise.
        delta: Budget of the objective noise.
        weight_bound: B, bound of ||v||.
        threshold: Huber threshold tau.
        ridge: lambda.
        n: Records of the block.

    Raises:
        InputError: epsilon <= epsilon_J: the ridge is too small for so few records.

    Example:
        >>> jacobian, sigma = objective_noise(1, 1e-5, weight_bound=0.9, threshold=1, ridge=0.01, n=1350)
        >>> round(jacobian, 10), round(sigma, 8)
        (0.0582689081, 14.77425053)
    """
    spent = _jacobian(epsilon, weight_bound, ridge, n)
    return spent, gaussian_scale(epsilon, delta, 4 * threshold * weight_bound, spent, **_PROFILE)


def _jacobian(epsilon: float, weight_bound: float, ridge: float, n: int) -> float:
    """Return epsilon_J, if it leaves any of epsilon."""
    # with b beside the sum, half of whose Hessian is at least n ridge, and curvature 2 in v'theta
    spent = jacobian(WeightBounds.per_record(1.0), 2 * weight_bound**2, 2 * n * ridge)
    if epsilon <= spent:
        needed = weight_bound**2 / n * ridge_ratio(epsilon / 2)
        raise InputError(
            f"second_stage.ridge = {ridge}: objective perturbation spends epsilon_J = {spent:.4g} of "
            f"{epsilon:.4g} at n = {n}; give a ridge of at least {needed:.2g} or mechanism=output"
        )
    return spent


class ObjectivePerturbation(FunctionMechanism):
    r"""argmin sum H_tau(s - v'theta) + n lambda ||theta||^2 + b'theta, b ~ N(0, sigma_b^2 I).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances (theory note ``dp_cate``, row 3).
        One hundredth of the budget pays a Gaussian on the coefficients that covers the solver's
        gradient-norm stop (Iyengar et al. 2019) and the grid on which the objective noise is drawn. The noise is shaped
        by the Hessian, which stays secret; the public ``noise_scale`` is its bound sigma_b / (2 n lambda):
        theta is a 1/(2 n lambda)-Lipschitz map of b, so by Gaussian isoperimetry (Borell 1975) the answer at
        x is within z s ||psi(x)|| of its median.

    Example:
        >>> ObjectivePerturbation().name
        'objective'
    """

    name = "objective"
    formula = (
        "sigma_b = 4 tau B sigma_AG(epsilon - ln(1 + B^2/(n ridge)), delta/2) with 99 % of epsilon and delta, the "
        "rest pays the solver's stop and the tilt's grid; dp_cate row 3"
    )
    source = "dp_cate row 3; Iyengar et al. 2019"

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse the squared loss, and a ridge too small for n; arguments are the base class's."""
        super().check(recipe, weight_bound, n, budget)
        if isinstance(recipe, LinearSecondStage):
            if recipe.loss == "squared":
                raise InputError(_SQUARED)
            share, ridge = 1 - SOLVER_SHARE, recipe.ridge_for(weight_bound, n, budget)
            objective_noise(
                budget.epsilon * share, budget.delta, weight_bound=weight_bound, threshold=1.0, ridge=ridge, n=n
            )

    def law(self, head: Head, budget: PrivacyBudget) -> PerturbedObjective:
        """See ``Mechanism``."""
        problem = head.problem
        if problem.squared:
            raise InputError(_SQUARED)
        objective = self.calibrated(problem, budget)
        most = problem.threshold * problem.weight_bound / problem.ridge
        return PerturbedObjective(objective, most, self._band(problem, objective))

    def exact(self, stage: FittedStage, law: PerturbedObjective) -> tuple[Minimise]:
        """See ``FunctionMechanism``: the minimisers of the objective with linear terms."""
        problem = self.require_linear(stage).problem
        return (lambda linear_terms: solve_perturbed(problem, linear_terms.to(problem.s) / problem.n),)

    def public(self, head: Head, law: PerturbedObjective) -> dict[str, Any]:
        """See ``Mechanism``."""
        return {**law.constants(), "threshold": head.threshold}

    def band(self, law: PerturbedObjective) -> float:
        """See ``Mechanism``: a bound, for the noise is shaped by the Hessian, which is secret."""
        return law.band

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: by the planned curvature; by the public bound where features are not known yet."""
        problem = head.problem
        objective = self.calibrated(problem, budget)
        if head.spectrum is None:
            return self._band(problem, objective)
        shaped = head.spread(1 / (head.ridge + head.spectrum[0]))
        return math.hypot(objective.scale / (2 * head.n) * shaped, objective.solver_scale * head.length)

    @staticmethod
    def _band(problem: LinearProblem, objective: ObjectiveNoise) -> float:
        """Return the public bound of the noise per unit of ||psi(x)||: the objective's, and the solver's."""
        return math.hypot(objective.scale / (2 * problem.n * problem.ridge), objective.solver_scale)

    @staticmethod
    def calibrated(problem: LinearProblem, budget: PrivacyBudget) -> ObjectiveNoise:
        """Return the noise of the summed objective, n times the mean one, with that for its stop and grid.

        Args:
            problem: The regression, of which public facts alone are looked at.
            budget: What the release may spend.
        """
        n, bound = problem.n, problem.weight_bound
        return calibrate_change(
            budget,
            kind="gaussian",
            size=problem.psi.shape[1],
            shift=4 * problem.threshold * bound,
            jacobian=_jacobian(budget.epsilon * (1 - SOLVER_SHARE), bound, problem.ridge, n),
            gamma=2 * n * problem.ridge,
            tolerance=n * problem.tolerance,
            on_grid=False,  # the head's stop is the same with noise and without
            **_PROFILE,
        )

    @classmethod
    def curve(cls, problem: LinearProblem, budget: PrivacyBudget) -> Curve:
        """Return delta at every epsilon of such releases; see ``ObjectiveNoise.curve`` and ``calibrated``."""
        return cls.calibrated(problem, budget).curve(4 * problem.threshold * problem.weight_bound, PARALLELOGRAM)

    @worst_case("objective", pair="one treated record apart from all others, its outcome at either end of the interval")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        # a large ridge makes the Jacobian's share of the claim small
        stages = [linear_stage((NEAR, y), n=100, ridge=1.0, threshold=0.01) for y in (-0.5, 0.5)]
        game = function_game(stages, lambda stage: ObjectivePerturbation().prepare(stage, budget))
        return replace(game, curve=ObjectivePerturbation.curve(stages[0].problem, budget))
