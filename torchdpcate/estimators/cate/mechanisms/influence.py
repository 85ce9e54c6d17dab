"""The paper's Theorem 1: noise scaled to the gross-error sensitivity, at the level it really has."""

import math
from collections.abc import Iterator, Sequence
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
from torchdpcate.fit.networks import Nuisances
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.kernel import KernelSecondStage, KernelStage
from torchdpcate.heads.kernel_influence import KernelInfluenceFunction
from torchdpcate.heads.recipes import NeuralSecondStage, RidgeSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, LinearStage, ParametricStage, RKHSStage
from torchdpcate.heads.supremum import Influence, gross_error_sensitivity
from torchdpcate.laws import SecretScale
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import smoothness, theorem1_multiplier
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import ApproximateEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.release import FunctionRelease, QueryRelease

_CONDITIONS = ("C1", "C2", "supremum", "unique minimiser", "no damping")


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
    search for it gives a lower bound; gamma is the curator's.

    Guarantee:
        Linear or kernel head (squared loss): conditional, on (C1), (C2) of the theory note ``dp_cate``, row 7,
        and on the search having found the supremum. Neural head, truncated square, or any damping: heuristic,
        row 8; no guarantee is claimed. Source: Schroeder, Melnychuk & Feuerriegel (2025), Theorem 1.

    Args:
        damping: Added to the Hessian, as in the paper's Remark 1. It shrinks gamma and so the noise, and
            makes the release heuristic.
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
    rests_on = _CONDITIONS
    settings = ("damping",)
    searches = True

    def __init__(self, damping: float = 0.0, starts: int = 1024, seed: int = 0) -> None:
        if not (damping >= 0 and math.isfinite(damping)):
            raise InputError(f"mechanism.damping = {damping}: give 0, or a positive number for a heuristic release")
        if starts < 1:
            raise InputError(f"mechanism.starts = {starts}: give at least one starting point")
        self.damping, self.starts, self.seed = damping, starts, seed

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse an epsilon beyond the lemma behind the theorem; arguments and errors are the base class's."""
        super().check(recipe, weight_bound, n, budget)
        theorem1_multiplier(budget.epsilon, budget.delta, n)
        if isinstance(recipe, KernelSecondStage):
            self._refuse_damping()

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
            self._refuse_damping()
            return KernelInfluenceFunction(stage, queries)
        if not isinstance(stage, ParametricStage):
            raise InputError(f"mechanism = {self.name}: needs a head with parameters; use second_stage=linear")
        block, queries = stage.block, queries.to(stage.theta)
        return InfluenceFunction(
            stage.model, stage.theta, block.x, block.s, block.w, stage.ridge, queries, damping=self.damping
        )

    def _refuse_damping(self) -> None:
        if self.damping > 0:
            raise InputError(f"mechanism.damping = {self.damping}: kernel_ridge has none; raise second_stage.ridge")

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: the largest influence at typical covariates, of outcomes at either end; linear heads."""
        if head.psi is None or head.queries is None or head.curvature is None:
            return math.nan
        moved = head.queries @ torch.linalg.solve(head.curvature, head.psi.T)
        farthest = math.sqrt(head.weight) * head.target_bound / 2  # from a mean outcome in the middle
        gamma = moved.norm(dim=0).amax().item() * farthest
        return gamma * theorem1_multiplier(budget.epsilon, budget.delta, head.n)

    def planned_level(self, recipe: SecondStage) -> Level:
        """See ``Mechanism``: heuristic of a neural head, of the truncated square, and with damping."""
        convex = isinstance(recipe, RidgeSecondStage) and recipe.loss != "truncated_squared"
        return self.level if convex and self.damping == 0 else Level.HEURISTIC

    def fitted(self, stage: FittedStage) -> FittedStage:
        """See ``QueryMechanism``: with the squared loss, but for the truncated one."""
        return stage.squared() if isinstance(stage, RKHSStage) and not _truncated(stage) else stage

    def law(self, head: Head, budget: PrivacyBudget) -> SecretScale:
        """See ``Mechanism``."""
        return SecretScale(ApproximateEvent(budget.epsilon, budget.delta), public_step(head.domain))

    def exact(self, stage: FittedStage, queries: Tensor, law: SecretScale) -> tuple[Tensor, float, None]:
        """See ``QueryMechanism``: answers, and the scale of their noise by the gross-error sensitivity."""
        event = law.event
        multiplier = theorem1_multiplier(event.epsilon, event.delta, stage.block.s.shape[0])
        return stage.correction(queries), self.gross_error_sensitivity(stage, queries) * multiplier, None

    def public(self, head: Head, law: SecretScale) -> dict[str, Any]:
        """See ``Mechanism``."""
        return {"damping": self.damping}

    def guarantee(self, stage: FittedStage, budget: PrivacyBudget, queries: int) -> Guarantee:
        """Return the level of this release with its conditions; everything in it is public."""
        why = self._why_heuristic(stage)
        if why:
            return Guarantee(Level.HEURISTIC, None, why, f"{self.source}; dp_cate row 8")
        assert isinstance(stage, LinearStage | KernelStage)
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

    def _why_heuristic(self, stage: FittedStage) -> tuple[Condition, ...]:
        conditions = []
        if _truncated(stage) or not isinstance(stage, LinearStage | KernelStage):
            head = "the truncated square" if _truncated(stage) else "a neural head"
            conditions += [
                Condition("unique minimiser", f"{head} has several; one record may switch them", False),
                Condition("C1", "local sensitivity within the scale on all data sets", False),
            ]
        if self.damping > 0:
            conditions.append(Condition("no damping", f"damping = {self.damping} shrinks the noise", False))
        return tuple(conditions)

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


def _truncated(stage: FittedStage) -> bool:
    return isinstance(stage, KernelStage) and stage.loss.truncated


def _attack(stages: Sequence[FittedStage], d: int, budget: PrivacyBudget) -> Game:
    """Return the game on d answers at the place of the replaced record."""
    mechanism = InfluencePerturbation(starts=64)
    before, after = (mechanism.prepare(stage, queries(d), budget) for stage in stages)
    means = [stage.correction(queries(d)) for stage in stages]
    return query_game((before, after), (means[0], means[1]))
