"""Objective perturbation of a Huber head: tilt the objective at random, then minimise it."""

import math
from collections.abc import Iterator

from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.perturbation import SOLVER_SHARE, Tilt, jacobian, make_tilt, ridge_ratio
from torchdpcate.erm.tilt_scale import gaussian_tilt
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.base import FUNCTION, FunctionMechanism, effects_stated
from torchdpcate.estimators.cate.mechanisms.worst_pairs import NEAR, function_game, linear_stage
from torchdpcate.estimators.cate.recompute import EffectFacts
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.estimators.recompute import far_problems, grid_problems
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.release import FunctionRelease
from torchdpcate.second_stage.linear import LinearProblem, solve_tilted
from torchdpcate.second_stage.recipes import LinearSecondStage, SecondStage
from torchdpcate.second_stage.stage import FittedStage

_VERTICES = 2  # sum |h|^2 / (4 tau B)^2 over the four h = +-2 tau v +- 2 tau v'
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

    or `erm.tilt_sigma` in two dimensions where delta is too large for the first; see `erm.gaussian_tilt`.

    Args:
        epsilon: Budget of the tilt.
        delta: Budget of the tilt.
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
    # with b tilting the sum, half of whose Hessian is at least n ridge, and curvature 2 in v'theta
    spent = jacobian(WeightBounds.per_record(1.0), 2 * weight_bound**2, 2 * n * ridge)
    if epsilon <= spent:
        needed = weight_bound**2 / n * ridge_ratio(epsilon / 2)
        raise InputError(
            f"second_stage.ridge = {ridge}: objective perturbation spends epsilon_J = {spent:.4g} of "
            f"{epsilon:.4g} at n = {n}; give a ridge of at least {needed:.2g} or mechanism=output"
        )
    shift = 4 * threshold * weight_bound
    return spent, gaussian_tilt(epsilon, delta, shift, spent, dimension=2, vertices=_VERTICES)


class ObjectivePerturbation(FunctionMechanism):
    r"""argmin sum H_tau(s - v'theta) + n lambda ||theta||^2 + b'theta, b ~ N(0, sigma_b^2 I).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances (theory note ``dp_cate``, row 3).
        One hundredth of the budget pays a Gaussian on the coefficients that covers the solver's
        gradient-norm stop (Iyengar et al. 2019) and the grid on which the tilt is drawn. The noise is shaped
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
    states = effects_stated(formula, FUNCTION, "tilt_scale", "epsilon_jacobian", "threshold")

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

    def prepare(self, stage: FittedStage, budget: PrivacyBudget) -> Prepared:
        """Return the tilted fit's mechanism; the arguments and errors are the base class's."""
        linear = self.require_linear(stage)
        problem = linear.problem
        if problem.squared:
            raise InputError(_SQUARED)
        tilt = self.tilt(problem, budget)

        def draw(noise: NoiseSource, runs: int) -> Tensor:
            return tilt.release(lambda tilts: solve_tilted(problem, tilts.to(problem.s) / problem.n), noise, runs)

        return Prepared(
            event=tilt.event,
            guarantee=Guarantee(Level.CERTIFIED, budget, source="dp_cate row 3; Iyengar et al. 2019"),
            draw=draw,
            public={
                "tilt_scale": tilt.scale,
                "epsilon_jacobian": tilt.jacobian,
                "threshold": problem.threshold,
            },
            noise_scale=self.band(problem, tilt),
        )

    @staticmethod
    def band(problem: LinearProblem, tilt: Tilt) -> float:
        """Return the public bound of the noise per unit of ||psi(x)||: that of the tilt, and the solver's."""
        return math.hypot(tilt.scale / (2 * problem.n * problem.ridge), tilt.solver.released_scale(tilt.size))

    @staticmethod
    def tilt(problem: LinearProblem, budget: PrivacyBudget) -> Tilt:
        """Return the tilt of the summed objective, n times the mean one, with the noise for its stop and grid.

        Args:
            problem: The regression, of which public facts alone are looked at.
            budget: What the release may spend.
        """
        n, share = problem.n, 1 - SOLVER_SHARE
        spent, scale = objective_noise(
            budget.epsilon * share,
            budget.delta * share,
            weight_bound=problem.weight_bound,
            threshold=problem.threshold,
            ridge=problem.ridge,
            n=n,
        )
        size, stop = problem.psi.shape[1], n * problem.tolerance
        return make_tilt(budget, "gaussian", size, scale, spent, tolerance=stop, gamma=2 * n * problem.ridge)

    @classmethod
    def problems(cls, facts: EffectFacts) -> Iterator[str]:
        """Return what does not follow from public facts; see the base class."""
        problem = facts.problem(facts.threshold)
        tilt = cls.tilt(problem, facts.budget)
        band = cls.band(problem, tilt)
        yield from facts.once()
        yield from facts.stated(tilt_scale=tilt.scale, epsilon_jacobian=tilt.jacobian)
        yield from facts.band(band)
        if isinstance(facts.release, FunctionRelease):
            reach = problem.threshold * problem.weight_bound / problem.ridge
            yield from grid_problems("theta", facts.release.theta, tilt.solver.released_scale(tilt.size))
            yield from far_problems("theta", facts.release.theta, reach, band)

    @worst_case("objective", pair="one treated record apart from all others, its outcome at either end of the interval")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        # a large ridge makes the Jacobian's share of the claim small
        stages = [linear_stage((NEAR, y), n=100, ridge=1.0, threshold=0.01) for y in (-0.5, 0.5)]
        return function_game(stages, lambda stage: ObjectivePerturbation().prepare(stage, budget))
