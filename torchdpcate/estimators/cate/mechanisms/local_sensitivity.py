"""Mechanisms whose noise has a secret scale: by influence functions, and by smooth sensitivity."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate._progress import bar
from torchdpcate.causal.score import RScore
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import Head, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import QUERIES, QueryMechanism, public_step
from torchdpcate.estimators.cate.mechanisms.worst_pairs import (
    DOMAIN,
    FAR,
    NEAR,
    given_stage,
    linear_stage,
    queries,
    query_game,
    treated_block,
)
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.kernel import KernelInfluenceFunction, KernelSecondStage, KernelStage
from torchdpcate.heads.linear import LinearProblem, squared_sensitivity, worst_pair
from torchdpcate.heads.recipes import LinearSecondStage, NeuralSecondStage, RidgeSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, LinearStage, ParametricStage, RKHSStage
from torchdpcate.heads.supremum import Influence, gross_error_sensitivity
from torchdpcate.laws import SecretScale
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.calibration import (
    SmoothNoise,
    largest_smoothness,
    smooth_gaussian_curve,
    smooth_gaussian_multiplier,
    smoothness,
    theorem1_multiplier,
)
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import ApproximateEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.release import FunctionRelease, QueryRelease

_CONDITIONS = ("C1", "C2", "supremum", "unique minimiser")


def minimum_records(epsilon: float, delta: float, *, weight_bound: float, ridge: float, queries: int) -> float:
    r"""Return n_min = (B^2 / ridge) / (e^xi - 1), below which condition (C2) fails.

    Source: theory note ``dp_cate``, section 3.5.

    Example:
        >>> round(minimum_records(1, 1e-5, weight_bound=0.9, ridge=0.01, queries=300), 2)
        105069.04
    """
    return weight_bound**2 / ridge / math.expm1(smoothness(epsilon, delta, queries))


class InfluencePerturbation(QueryMechanism):
    r"""Answers plus N(0, (gamma c)^2 I_d), c = 5 sqrt(2 ln n ln(2/delta)) / (epsilon n).

    gamma is the supremum over the public domain of the norm of the influence function of the answers. The
    search for it gives a lower bound; gamma is the curator's. Answers are :math:`g = \tau_0 + f`, :math:`\tau_0` the
    effect of the nuisances, which other records released: neighbours have the same one, so that
    :math:`g' - g = f' - f`, and a record's target :math:`s = y - m - w \tau_0(x)` keeps its public bound. What a large
    ridge leaves is :math:`\tau_0`.

    Guarantee:
        Linear or kernel head (squared loss): conditional, on (C1), (C2) of the theory note ``dp_cate``, row 7,
        and on the search having found the supremum. Neural head: heuristic, row 8; no guarantee is claimed.
        Source:
        Schroeder, Melnychuk & Feuerriegel (2025), Theorem 1.

    Args:
        starts: Starting points of the search over the covariate box.
        seed: Public seed of the starting points.

    Example:
        >>> InfluencePerturbation().name
        'influence'
    """

    name = "influence"
    formula = "sd = gamma 5 sqrt(2 ln n ln(2/delta)) / (epsilon n), gamma secret; dp_cate rows 7 and 8"
    source = "Schroeder, Melnychuk & Feuerriegel 2025, Theorem 1"
    level = Level.CONDITIONAL
    kinds = QUERIES
    accepts = (NeuralSecondStage, RidgeSecondStage)
    searches = True

    def __init__(self, starts: int = 1024, seed: int = 0) -> None:
        if starts < 1:
            raise InputError(f"mechanism.starts = {starts}: give at least one starting point")
        self.starts, self.seed = starts, seed

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse an epsilon beyond the lemma behind the theorem; arguments and errors are the base class's."""
        super().check(recipe, weight_bound, n, budget)
        theorem1_multiplier(budget.epsilon, budget.delta, n)

    def gross_error_sensitivity(self, stage: FittedStage, queries: Tensor) -> float:
        """Return gamma of the answers at the queries, in outcome units. The curator's, never to be published.

        Raises:
            InputError: The head has no influence function here.
        """
        block = stage.block
        with bar("Influence function, worst record of the domain") as count:

            def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                count()
                return block.regression(x, a, y)

            influence = self._influence(stage, queries)
            found = gross_error_sensitivity(influence, regression, block.domain, starts=self.starts, seed=self.seed)
        return stage.unit * found.value

    def _influence(self, stage: FittedStage, queries: Tensor) -> Influence:
        if isinstance(stage, KernelStage):
            return KernelInfluenceFunction(stage, queries)
        if not isinstance(stage, ParametricStage):
            raise InputError(f"mechanism = {self.name}: needs a head with parameters; use second_stage=linear")
        block, queries = stage.block, queries.to(stage.theta)
        return InfluenceFunction(stage.model, stage.theta, block.x, block.s, block.w, stage.ridge, queries)

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: the largest influence at typical covariates, of outcomes at either end; linear heads."""
        if head.psi is None or head.queries is None or head.curvature is None:
            return math.nan
        moved = head.queries @ torch.linalg.solve(head.curvature, head.psi.T)
        farthest = math.sqrt(head.weight) * head.target_bound / 2  # from a mean outcome in the middle
        gamma = moved.norm(dim=0).amax().item() * farthest
        return gamma * theorem1_multiplier(budget.epsilon, budget.delta, head.n)

    def planned_level(self, recipe: SecondStage) -> Level:
        """See ``Mechanism``: heuristic of a neural head."""
        return self.level if isinstance(recipe, RidgeSecondStage) else Level.HEURISTIC

    def fitted(self, stage: FittedStage) -> FittedStage:
        """See ``QueryMechanism``: with the squared loss."""
        return stage.squared() if isinstance(stage, RKHSStage) else stage

    def law(self, head: Head, budget: PrivacyBudget) -> SecretScale:
        return SecretScale(ApproximateEvent(budget.epsilon, budget.delta), public_step(head.domain))

    def exact(self, stage: FittedStage, queries: Tensor, law: SecretScale) -> tuple[Tensor, float, None]:
        """See ``QueryMechanism``: answers, and the scale of their noise by the gross-error sensitivity."""
        event = law.event
        multiplier = theorem1_multiplier(event.epsilon, event.delta, stage.block.s.shape[0])
        return stage.correction(queries), self.gross_error_sensitivity(stage, queries) * multiplier, None

    def public(self, head: Head, law: SecretScale) -> dict[str, Any]:
        return {"damping": 0.0}  # of the Hessian, as in the paper's Remark 1, which would shrink the noise

    def guarantee(self, stage: FittedStage, budget: PrivacyBudget, queries: int) -> Guarantee:
        """Return the level of this release with its conditions; everything in it is public."""
        if not isinstance(stage, LinearStage | KernelStage):
            why = (
                Condition("unique minimiser", "a neural head has several; one record may switch them", False),
                Condition("C1", "local sensitivity within the scale on all data sets", False),
            )
            return Guarantee(Level.HEURISTIC, None, why, f"{self.source}; dp_cate row 8")
        problem = stage.problem if isinstance(stage, LinearStage) else stage
        n, eta = problem.n, problem.condition
        needed = minimum_records(
            budget.epsilon,
            budget.delta,
            weight_bound=problem.weight_bound,
            ridge=problem.ridge,
            queries=queries,
        )
        conditions = (
            Condition(
                "C1",
                f"local sensitivity within the scale: sqrt(ln n) = {math.sqrt(math.log(n)):.3f} >= "
                f"2 (1 + eta) = {2 * (1 + eta):.3f} is needed, and that 2 (1 + eta) gamma / n bounds it is not proved",
                None if math.sqrt(math.log(n)) >= 2 * (1 + eta) else False,
            ),
            Condition(
                "C2",
                f"smooth scale: needs n = {n} >= {math.ceil(needed)} records, which is not enough: gamma also moves "
                "with the fit",
                None if n >= needed else False,
            ),
            Condition("supremum", "the search found the largest influence over the domain", None),
        )
        return Guarantee(Level.CONDITIONAL, budget, conditions, f"{self.source}; dp_cate row 7")

    def release_problems(self, head: Head, law: SecretScale, release: FunctionRelease | QueryRelease) -> Iterator[str]:
        """See ``Mechanism``: its conditions follow from records, ridge, queries and budget."""
        event, privacy = law.event, release.privacy
        stage, budget = given_stage(head.problem), PrivacyBudget(event.epsilon, event.delta)
        guarantee = self.guarantee(stage, budget, head.answers or 0)
        stated = [c for c in privacy.conditions if c["name"] in _CONDITIONS]
        if [condition.to_dict() for condition in guarantee.conditions] != stated:
            yield "its conditions are not those of its records, ridge, queries and charge"
        if not guarantee.holds_claim:
            yield "a condition of its mechanism fails, yet epsilon is claimed"

    @worst_case(
        "influence",
        pair="linear head, more than n_min records: one treated record apart, its outcome at either end; queried there",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        ridge, bound = 1.0, RScore().bounds(DOMAIN).weight
        needed = minimum_records(budget.epsilon, budget.delta, weight_bound=bound, ridge=ridge, queries=1)
        n = 1 + max(math.ceil(needed), 100)  # C1 needs more than 55
        stages = [linear_stage((NEAR, y), n=n, ridge=ridge, threshold=math.inf) for y in (-0.5, 0.5)]
        return _attack(stages, 1, budget)

    @worst_case(
        "influence_below_n_min",
        attacks=[Charge(Purpose.RELEASE, "influence")],
        pair="linear head, fewer than n_min records, none with a residual: one of them moved to the queries",
    )
    @staticmethod
    def worst_neighbours_below_n_min(budget: PrivacyBudget) -> Game:
        """Return the attack on those of few records."""
        # the scale alone distinguishes the datasets: gamma is 1 + B^2 / (n ridge) times larger without the record
        stages = [linear_stage((x, 0.0), n=100, ridge=0.01, threshold=math.inf) for x in (FAR, NEAR)]
        return _attack(stages, 30, budget)

    @worst_case(
        "influence_neural",
        pair="neural head that fits one of two equal steps: one outcome, at either end, decides which, "
        "and so the scale",
    )
    @staticmethod
    def worst_neighbours_neural(budget: PrivacyBudget) -> Game:
        """Return the attack on those of a network."""
        # one tanh unit can rise on one side alone; the head that one record leaves behind has another, smaller gamma
        from torchdpcate.fit.trainer import default_trainer  # Lightning

        recipe, n = NeuralSecondStage(width=1, depth=1, epochs=0, ridge=1e-4), 200
        x = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
        steps = 0.5 * ((x[:, 0] - 0.5).abs() > 0.2).double()
        datasets = [torch.cat([torch.tensor([y], dtype=torch.float64), steps[1:]]) for y in (-0.5, 0.5)]
        nuisances = Nuisances(DOMAIN)  # not looked at: the head learns its own features
        stages = [recipe.fit(treated_block(x, y), nuisances, trainer=default_trainer) for y in datasets]
        return _attack(stages, 30, budget)


def _attack(stages: Sequence[FittedStage], d: int, budget: PrivacyBudget) -> Game:
    """Return the game on d answers at the place of the replaced record."""
    mechanism = InfluencePerturbation(starts=64)
    before, after = (mechanism.prepare(stage, queries(d), budget) for stage in stages)
    means = [stage.correction(queries(d)) for stage in stages]
    return query_game((before, after), (means[0], means[1]))


_CLOSE = 1e-6  # by which noise may differ that two choices of smoothness promise


def smooth_bound(local: float, worst: float, condition: float, xi: float) -> float:
    r"""Return the xi-smooth bound GS (min(a, GS) / GS)^{min(1, xi / ln(1 + eta))}.

    Args:
        local: a(D), a bound of the local sensitivity that one record changes by at most 1 + eta.
        worst: GS, a bound of the global sensitivity.
        condition: eta = B^2 / (n ridge).
        xi: Smoothness wanted.

    Returns:
        Sigma(D) >= a bound of the local sensitivity, within e^xi of its value on every neighbour.
        Source: theory note ``dp_cate``, section 3.5.

    Example:
        >>> round(smooth_bound(0.2, 1.5, 0.06, 7.706246626e-4), 9)
        1.460556286
    """
    exponent = min(1.0, xi / math.log1p(condition))
    return worst * (min(local, worst) / worst) ** exponent


def local_sensitivity(problem: LinearProblem, J: Tensor) -> tuple[float, float]:
    r"""Return (a(D), GS) of the squared head's answers J theta at public queries.

    .. math:: a(D) = \|J A_D^{-1}\|\,c,\qquad
        GS = \|J\|\,c/\lambda,\qquad c = \tfrac{2BS}{n}\max_t \sin t\,(1+\tfrac\beta2\cos t)

    No answer moves by more than a(D), nor by more than a(D') of the neighbour, and a(D) is at most 1 + eta times that.
    Both include the gradient-norm stop of the fit, ||J|| tol / ridge. a(D) depends on the records.

    Args:
        problem: The squared regression.
        J: Features at the queries, [d, p].
    """
    norm = torch.linalg.matrix_norm(J, 2).item()
    return _sensitivities(problem, torch.linalg.matrix_norm(problem.solve_curvature(J), 2).item(), norm)


def kernel_local_sensitivity(stage: KernelStage, queries: Tensor) -> tuple[float, float]:
    r"""Return (a(D), GS) of the squared kernel head's answers: ||J A_D^{-1}|| = N(D), ||J||^2 = lambda_max(K_qq).

    Args:
        stage: The kernel stage with the squared loss.
        queries: Covariates of the queries, [d, q].
    """
    norm = math.sqrt(torch.linalg.eigvalsh(stage.covariance(queries, queries))[-1].item())
    return _sensitivities(stage, KernelInfluenceFunction(stage, queries).operator_norm(), norm)


def _sensitivities(problem: LinearProblem | KernelStage, N: float, norm: float) -> tuple[float, float]:
    """Return (a(D), GS) from N = ||J A_D^{-1}|| and ||J||."""
    step = problem.ridge * squared_sensitivity(problem.weight_bound, problem.target_bound, problem.ridge, problem.n)
    inexact = norm * problem.tolerance / problem.ridge
    return N * step + inexact, norm * step / problem.ridge + inexact


def _noise(budget: PrivacyBudget, answers: int, condition: float, n: int) -> SmoothNoise:
    return SmoothNoise(budget.epsilon, budget.delta, answers, condition, n)


def answer_axes(J: Tensor) -> Tensor:
    """Return an orthonormal basis of what J theta can be, [d, r]: all answers, or fewer where there are more of them.

    Args:
        J: Features at the queries, [d, p]; r = min(d, p).
    """
    d, p = J.shape
    return torch.linalg.qr(J).Q if d > p else torch.eye(d, dtype=J.dtype, device=J.device)


def known_smoothness(stated: float, noise: SmoothNoise) -> bool:
    """Return whether a stated smoothness is the one picked.

    Args:
        stated: By a release.
        noise: What its public numbers make of it.
    """
    most = largest_smoothness(noise.epsilon, noise.dimension)
    if not 0 < stated <= most * (1 + 1e-12):  # a logarithm's last bit
        return False
    # of two that promise the same noise, rounding may pick either
    return noise.expected(min(stated, most)) <= noise.expected(noise.smoothness) * (1 + _CLOSE)


class SmoothSensitivity(QueryMechanism):
    r"""Answers plus N(0, sd^2 U U'), sd = kappa Sigma(D), of which one record changes Sigma by at most e^xi.

    U, [d, r], spans what the answers of p coefficients can be: r = min(d, p), and r = d for kernels. kappa is the least
    that is (epsilon, delta)-private in r dimensions, of ``smooth_gaussian_multiplier``; xi is picked by public numbers
    (``SmoothNoise``).

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances: the construction of Nissim,
        Raskhodnikova & Smith (2007) with the exact worst pair, ``docs/guarantees/two_blocks.md``. The scale
        depends on the records and stays secret. Source: theory note ``dp_cate``, row 6.

    Example:
        >>> SmoothSensitivity().name
        'smooth_sensitivity'
    """

    name = "smooth_sensitivity"
    formula = "sd = kappa Sigma(D), kappa least of the exact worst pair, Sigma smooth (secret); dp_cate row 6"
    source = "dp_cate row 6; Nissim, Raskhodnikova & Smith 2007"
    kinds = QUERIES
    # its sensitivity is of the targets' whole range instead of a Huber threshold; on 20 random laws, n = 16,000 and
    # epsilon = 4 (25 November 2026), errors were 77.99, 4.59, 1.55, 1.01 and .95 at .5, .05, .01, .002 and .001
    noise_ratio = 0.002
    accepts = (LinearSecondStage, KernelSecondStage)

    def fitted(self, stage: FittedStage) -> LinearStage | KernelStage:
        """See ``QueryMechanism``: with the squared loss."""
        return stage.squared() if isinstance(stage, KernelStage) else self.require_linear(stage).squared()

    def law(self, head: Head, budget: PrivacyBudget) -> SecretScale:
        return self._of_smoothness(_noise(budget, head.dimension, head.condition, head.n).smoothness, head, budget)

    @classmethod
    def stated_law(cls, public: Mapping[str, Any], head: Head, budget: PrivacyBudget) -> SecretScale:
        """See ``Mechanism``: of two that promise the same noise, rounding may have picked either."""
        noise, stated = _noise(budget, head.dimension, head.condition, head.n), as_number(public["smoothness"])
        known = known_smoothness(stated, noise)
        return cls._of_smoothness(stated if known else noise.smoothness, head, budget)

    @staticmethod
    def _of_smoothness(smoothness: float, head: Head, budget: PrivacyBudget) -> SecretScale:
        return SecretScale(ApproximateEvent(budget.epsilon, budget.delta), public_step(head.domain), smoothness)

    def exact(self, stage: FittedStage, queries: Tensor, law: SecretScale) -> tuple[Tensor, float, Tensor]:
        """See ``QueryMechanism``: answers along the axes that they can have, and the smooth scale of their noise."""
        assert isinstance(stage, LinearStage | KernelStage)
        problem: LinearProblem | KernelStage
        if isinstance(stage, KernelStage):
            problem = stage
            bounds, axes = kernel_local_sensitivity(stage, queries), torch.eye(len(queries), dtype=torch.float64)
        else:
            problem, J = stage.problem, stage.features(queries.to(stage.theta))
            bounds, axes = local_sensitivity(problem, J), answer_axes(J).cpu()
        rounding = math.sqrt(axes.shape[1]) * law.step
        local, worst = (bound + rounding for bound in bounds)
        xi, event = law.smoothness, law.event
        assert xi is not None
        multiplier = smooth_gaussian_multiplier(event.epsilon, event.delta, axes.shape[1], xi)
        scale = smooth_bound(local, worst, problem.condition, xi) * multiplier
        return axes.T @ stage.correction(queries).cpu(), scale, axes

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: the smooth bound at the planned curvature; linear heads."""
        if head.queries is None or head.curvature is None:
            return math.nan
        norm = torch.linalg.matrix_norm(head.queries, 2).item()
        N = torch.linalg.matrix_norm(torch.linalg.solve(head.curvature, head.queries.T), 2).item()
        step = head.ridge * squared_sensitivity(head.weight_bound, head.target_bound, head.ridge, head.n)
        eta = head.problem.condition
        d, dimension = len(head.queries), min(head.queries.shape)
        noise = _noise(budget, dimension, eta, head.n)
        scale = smooth_bound(N * step, norm * step / head.ridge, eta, noise.smoothness) * noise.multiplier
        return scale * math.sqrt(dimension / d)

    @worst_case(
        "smooth_sensitivity",
        pair="a record of the opposite target jumps across the line on which all others lie; queried across it",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        # at this ridge the answer moves by .9996 of the bound
        pair = worst_pair(weight_bound=0.9, target_bound=1.0, ridge=0.3, n=1_000)
        far, near = Identity().setup(DOMAIN)(torch.tensor([[FAR], [NEAR]], dtype=torch.float64))
        turn = torch.stack([far, near])  # orthonormal; the pair moves along the second axis
        stages = [
            given_stage(replace(problem, psi=torch.as_tensor(problem.psi) @ turn))
            for problem in (pair.first, pair.second)
        ]
        before, after = (SmoothSensitivity().prepare(stage, queries(1), budget) for stage in stages)
        means = [stage.correction(queries(1)) for stage in stages]
        xi = before.public["smoothness"]
        kappa = smooth_gaussian_multiplier(budget.epsilon, budget.delta, 1, xi)
        return query_game(
            (before, after),
            (means[0], means[1]),
            most_runs=1_000_000,
            curve=lambda factor, epsilons: smooth_gaussian_curve(epsilons, kappa / factor, 1, xi),
        )
