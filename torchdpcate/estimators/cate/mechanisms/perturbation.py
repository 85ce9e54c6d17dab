"""Mechanisms whose noise has a public scale: on coefficients, in the objective, of a function, on sums over records."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.estimators.cate.head import SQUARED, Head, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import (
    QUERIES,
    SENSITIVITY,
    FunctionMechanism,
    QueryMechanism,
)
from torchdpcate.estimators.cate.mechanisms.worst_pairs import (
    FAR,
    NEAR,
    function_game,
    given_stage,
    prepared_game,
    stages_apart,
)
from torchdpcate.estimators.cate.online.path import EXCESS, JITTER, LATTICE, answer_step
from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.heads.linear import LinearProblem, sensitivity, solve_perturbed, worst_pair
from torchdpcate.heads.recipes import LinearSecondStage, RidgeSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, RKHSStage
from torchdpcate.laws import AddedNoise, FunctionNoise, PerturbedObjective
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.worst_case import Curve, Game, Target, function_evidence, worst_case


class OutputPerturbation(FunctionMechanism):
    r"""theta + N(0, s^2 I) with s = Delta sigma(epsilon, delta).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances: Delta is the replace-one
        sensitivity of the strongly convex fit (``second_stage.linear.sensitivity``), sigma the analytic
        Gaussian of Balle & Wang (2018). The noise of the answer at x is exactly s ||psi(x)||.
        Source: theory note ``dp_cate``, row 2.

    Example:
        >>> OutputPerturbation().name
        'output'
    """

    name = "output"
    gaussian = True
    noise_ratio = 0.1  # its noise is what the ratio says, while objective perturbation's is far below that bound
    formula = f"s = Delta sigma_AG(epsilon, delta), {SENSITIVITY}; dp_cate row 2"
    source = "dp_cate row 2; Balle & Wang 2018"

    def law(self, head: Head, budget: PrivacyBudget) -> AddedNoise:
        mechanism = GaussianMechanism(budget, sensitivity(head.problem))
        return AddedNoise(mechanism, head.size or 1)

    def public(self, head: Head, law: AddedNoise) -> dict[str, Any]:
        return {"sensitivity": law.mechanism.sensitivity, "noise_scale": law.scale, "threshold": head.threshold}

    def band(self, law: AddedNoise) -> float:
        """See ``Mechanism``: the noise of the coefficients."""
        return law.scale

    @worst_case(
        "output",
        pair="Huber loss: one treated record apart from all others, its outcome at either end of the interval",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = stages_apart(ridge=0.1)
        return function_game(stages, lambda stage: OutputPerturbation().prepare(stage, budget))

    @worst_case(
        "output_squared",
        attacks=[Target(Charge(Purpose.RELEASE, "output"), {"threshold": SQUARED})],
        pair="squared loss: a record of the opposite target jumps across the line on which all others lie",
    )
    @staticmethod
    def worst_neighbours_squared(budget: PrivacyBudget) -> Game:
        """Return the attack on those of the squared loss."""
        pair = worst_pair(weight_bound=0.9, target_bound=1.0, ridge=0.01, n=10_000)
        stages = [given_stage(problem) for problem in (pair.first, pair.second)]
        return function_game(stages, lambda stage: OutputPerturbation().prepare(stage, budget))


Minimise = Callable[[Tensor], Tensor]
"""Linear terms [runs, p] -> minimisers [runs, p]."""

_SQUARED = (
    "second_stage.loss = squared: objective perturbation needs the Huber loss; "
    "use second_stage.loss=huber or mechanism=output"
)


def perturbed_head(
    n: int, ridge: float, weight_bound: float, threshold: float, size: int = 1, tolerance: float = 1e-10
) -> PrivateFit:
    r"""Return the sum that a Huber head minimises with objective noise, n times the mean one, by public facts.

    A record's gradient is 2 tau B long at most and its curvature 2 B^2, and half of the Hessian is at least n lambda:

    .. math:: \xi = 4\tau B, \qquad \varepsilon_J = \ln(1 + B^2/(n\lambda))

    Args:
        n: Records of the block.
        ridge: lambda.
        weight_bound: B, bound of ||v||.
        threshold: Huber threshold tau.
        size: Number of coefficients.
        tolerance: Stop of the mean objective, the same with noise and without.

    Example:
        >>> head = perturbed_head(1350, 0.01, weight_bound=0.9, threshold=1.0, size=2)
        >>> noise = head.objective(PrivacyBudget(1 / 0.99, 1e-5 / 0.99), "gaussian")
        >>> round(noise.jacobian, 10), round(noise.scale, 8)
        (0.0582689081, 14.43181876)
    """
    loss, once = LossBounds(2 * threshold * weight_bound, 2 * weight_bound**2), WeightBounds.per_record(1.0)
    return PrivateFit(loss, once, 2 * n * ridge, size, tolerance=n * tolerance)


def _summed(problem: LinearProblem) -> PrivateFit:
    """Return what is public of a regression's sum."""
    facts = problem.n, problem.ridge, problem.weight_bound, problem.threshold
    return perturbed_head(*facts, problem.psi.shape[1], problem.tolerance)


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
        "sigma_b = 4 tau B sigma_AG(epsilon - ln(1 + B^2/(n ridge)), 3 delta / 4) with 99 % of epsilon and delta, the "
        "rest pays the solver's stop and the tilt's grid; dp_cate row 3, with a sharper scale"
    )
    source = "dp_cate row 3; Iyengar et al. 2019"

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse the squared loss, and a ridge too small for n; arguments are the base class's."""
        super().check(recipe, weight_bound, n, budget)
        if isinstance(recipe, LinearSecondStage):
            if recipe.loss == "squared":
                raise InputError(_SQUARED)
            head = perturbed_head(n, recipe.ridge_for(weight_bound, n, budget), weight_bound, threshold=1.0)
            self._noise(head, n, budget)

    def law(self, head: Head, budget: PrivacyBudget) -> PerturbedObjective:
        problem = head.problem
        if problem.squared:
            raise InputError(_SQUARED)
        objective = self.calibrated(problem, budget)
        return PerturbedObjective(objective)

    def exact(self, stage: FittedStage, law: PerturbedObjective) -> tuple[Minimise]:
        """See ``FunctionMechanism``: the minimisers of the objective with linear terms."""
        problem = self.require_linear(stage).problem
        return (lambda linear_terms: solve_perturbed(problem, linear_terms.to(problem.s) / problem.n),)

    def public(self, head: Head, law: PerturbedObjective) -> dict[str, Any]:
        return {**law.constants(), "threshold": head.threshold}

    def band(self, law: PerturbedObjective) -> float:
        """See ``Mechanism``: a bound, for the noise is shaped by the Hessian, which is secret."""
        return law.band

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: by the planned curvature; by the public bound where features are not known yet."""
        if head.spectrum is None:
            return super().planned(head, budget)
        shaped, noise = head.spread(1 / (head.ridge + head.spectrum[0])), self.law(head, budget).objective
        return math.hypot(noise.scale / (2 * head.n) * shaped, noise.solver_scale * head.length)

    @classmethod
    def calibrated(cls, problem: LinearProblem, budget: PrivacyBudget) -> ObjectiveNoise:
        """Return the noise of the summed objective, n times the mean one, with that for its stop and grid.

        Args:
            problem: The regression, of which public facts alone are looked at.
            budget: What the release may spend.
        """
        return cls._noise(_summed(problem), problem.n, budget)

    @staticmethod
    def _noise(head: PrivateFit, n: int, budget: PrivacyBudget) -> ObjectiveNoise:
        return head.objective(budget, "gaussian", argument="second_stage.ridge", unit=2 * n)

    @classmethod
    def curve(cls, problem: LinearProblem, budget: PrivacyBudget) -> Curve:
        """Return delta at every epsilon of such releases; see ``ObjectiveNoise.curve`` and ``calibrated``."""
        head = _summed(problem)
        return cls.calibrated(problem, budget).curve(head.shift, head.corners)

    @worst_case("objective", pair="one treated record apart from all others, its outcome at either end of the interval")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        # a large ridge makes the Jacobian's share of the claim small
        stages = stages_apart(ridge=1.0)
        game = function_game(stages, lambda stage: ObjectivePerturbation().prepare(stage, budget))
        return replace(game, curve=ObjectivePerturbation.curve(stages[0].problem, budget))


ONLINE = "online"
"""What statements have under ``answers`` for those of a service."""


class GaussianProcess(QueryMechanism):
    r"""f(queries) + r U(queries), U ~ GP(0, K + jitter), r = Delta sigma(epsilon, delta).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances, whatever the number of queries: Delta
        bounds the replace-one change of f in the norm of the public kernel's space (``RKHSStage.sensitivity``),
        sigma is the analytic Gaussian of Balle & Wang (2018). Conditions: queries and kernel are public; real
        arithmetic. Source: theory note ``dp_cate``, row 5; Hall, Rinaldo & Wasserman (2013).

    The noise of the answer at x is r sqrt(K(x, x) + jitter), public. A query that is requested twice gets one answer.

    Example:
        >>> GaussianProcess().name
        'gaussian_process'
    """

    name = "gaussian_process"
    formula = f"r = Delta sigma_AG(epsilon, delta), {SENSITIVITY}; noise r GP(0, K); dp_cate row 5"
    source = "dp_cate row 5; Hall et al. 2013; Balle & Wang 2018"
    kinds = QUERIES
    jitter = JITTER
    loss = "huber"
    accepts = (RidgeSecondStage,)
    online = True
    gaussian = True
    noise_ratio = 0.1  # as output perturbation

    def fitted(self, stage: FittedStage) -> RKHSStage:
        """See ``QueryMechanism``; refuses a loss without a bound."""
        rkhs = self.require_rkhs(stage)
        assert rkhs.sensitivity > 0
        return rkhs

    def law(self, head: Head, budget: PrivacyBudget, excess: float = 0.0) -> FunctionNoise:
        """See ``Mechanism``.

        Args:
            head: What is public of the second stage.
            budget: What the release may spend.
            excess: Share by which the variance is raised, for answers online.
        """
        return FunctionNoise(GaussianMechanism(budget, sensitivity(head.problem)), JITTER, LATTICE, excess)

    @classmethod
    def stated_law(cls, public: Mapping[str, Any], head: Head, budget: PrivacyBudget) -> FunctionNoise:
        return cls().law(head, budget, EXCESS if public.get("answers") == ONLINE else 0.0)

    def exact(self, stage: FittedStage, queries: Tensor, law: FunctionNoise) -> tuple[Tensor, Tensor, float, Tensor]:
        """See ``QueryMechanism``: values and kernel at different queries, and which of them each answer is of."""
        rkhs = self.require_rkhs(stage)
        rows, place = torch.unique(queries + 0.0, dim=0, return_inverse=True)  # + 0.0: there is one zero
        covariance = rkhs.covariance(rows, rows)
        covariance.diagonal().add_(JITTER)
        return rkhs.correction(rows).cpu(), _root(covariance), answer_step(rkhs.block.domain, law.scale), place

    def public(self, head: Head, law: FunctionNoise) -> dict[str, Any]:
        return {**law.constants(), "threshold": head.threshold, **({"answers": ONLINE} if law.excess else {})}

    def band(self, law: FunctionNoise) -> float:
        """See ``Mechanism``: exact."""
        return law.scale

    @worst_case(
        "gaussian_process",
        pair="one treated record apart from all others, its outcome at either end; queried there and beside",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = stages_apart(ridge=0.1)
        datasets = [GaussianProcess().prepare(stage, AUDITED, budget) for stage in stages]
        shift = stages[1].correction(AUDITED) - stages[0].correction(AUDITED)
        covariance = stages[0].covariance(AUDITED, AUDITED) + JITTER * torch.eye(len(AUDITED), dtype=torch.float64)
        return prepared_game(datasets, function_evidence(shift, covariance))


def _root(covariance: Tensor) -> Tensor:
    """Lower Cholesky factor on the CPU.

    Raises:
        NumericalError: Not a covariance, even with the jitter.
    """
    factor, info = torch.linalg.cholesky_ex(covariance)
    if bool(info):
        raise NumericalError(
            f"the kernel of {len(covariance)} queries is not positive definite, even with a jitter of {JITTER:g}: "
            "request fewer queries; nothing was charged or released"
        )
    return factor.cpu()


AUDITED = torch.tensor([[NEAR], [0.5], [FAR], [0.25]], dtype=torch.float64)
"""Queries of the attacks: the replaced record's place, and others beside it."""
