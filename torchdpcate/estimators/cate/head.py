"""A ridge regression as public facts have it: its learner, what its noise is calibrated to, how plans expect it."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdpcate.causal.score import RegressionScore
from torchdpcate.composition.constants import EXPECTED
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.heads.recipes import LinearSecondStage, RidgeSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, LinearStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.registry import Registry

LEARNERS = Registry("learner")
"""Learners of effects by the names that users give."""
AVERAGE_LEARNERS = Registry("effect")
"""Learners of average effects by the names that users give."""
SQUARED = "squared loss"
"""What a statement has for the threshold of the squared loss."""


@dataclass(frozen=True, eq=False)
class Head:
    """Public facts of a ridge regression of n records, none of which it holds.

    Attributes:
        n: Records that fit it.
        ridge: lambda.
        weight_bound: B, bound of the weighted features.
        target_bound: S, bound of |s|, in outcome units.
        threshold: Huber threshold tau, in outcome units; infinite for the squared loss.
        domain: Public bounds.
        size: Number of coefficients; None where it has none, or they are no answer's basis.
        answers: Number of queries; None of a function.
    """

    n: int
    ridge: float
    weight_bound: float
    target_bound: float
    threshold: float
    domain: Domain
    size: int | None
    answers: int | None = None

    @classmethod
    def of(cls, stage: FittedStage, answers: int | None = None) -> "Head":
        """Return what is public of a fitted stage.

        Args:
            stage: The stage, of whose records nothing is kept.
            answers: Number of queries; None of a function.
        """
        block, size, bound = stage.block, None, stage.block.bounds.weight
        n, target, threshold = block.s.shape[0], block.bounds.target, math.inf
        if isinstance(stage, LinearStage):
            problem = stage.problem
            n, size, bound, target = problem.n, problem.psi.shape[1], problem.weight_bound, problem.target_bound
            threshold = problem.threshold
        elif isinstance(stage, KernelStage):
            threshold = stage.loss.threshold
        return cls(n, stage.ridge, bound, target, threshold, block.domain, size, answers)

    @property
    def dimension(self) -> int:
        """Dimension of what the answers to the queries can be: all of them, or as many as there are coefficients."""
        assert self.answers is not None
        return self.answers if self.size is None else min(self.answers, self.size)

    @cached_property
    def problem(self) -> LinearProblem:
        """The regression with its public constants, of records that are nothing."""
        zero = torch.zeros(1, dtype=torch.float64)
        return LinearProblem(
            zero[None].expand(self.n, self.size or 1),
            zero.expand(self.n),
            zero.expand(self.n),
            self.ridge,
            self.weight_bound,
            self.target_bound,
            self.threshold,
        )

    @property
    def condition(self) -> float:
        """Eta = B^2 / (n ridge), the most one record can multiply the curvature by, less one."""
        return self.weight_bound**2 / (self.n * self.ridge)

    @property
    def clip(self) -> float:
        """Bound of a target that the loss sees: the threshold, or S where that is smaller."""
        return min(self.target_bound, self.threshold)


_POINTS = 512  # public points that stand for typical records
_INSIDE = 0.9  # records within the Huber threshold, which is the 0.9 quantile of |s| by default
ASSUMED = (
    f"the Huber threshold is 1/{1 / EXPECTED.residual_scale:.0f} of the outcome's range where it is private, or what "
    "follows from its standard deviation where one is stated",
    "covariates fill their bounds evenly, and propensities are near a half",
)
"""What the noise of a second stage is planned on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedHead(Head):
    """A ridge regression of n records that have not been read; its Huber threshold is a planned one.

    Attributes:
        weight: Planned mean of w^2.
        psi: Features at typical records, [m, p]; None where they are made of nuisances, or of a kernel.
        queries: Features at the queries, [d, p]; None where there are none.
    """

    weight: float
    psi: Tensor | None
    queries: Tensor | None

    @classmethod
    def of_recipe(
        cls,
        recipe: SecondStage,
        score: RegressionScore,
        schema: TableSchema,
        n: int,
        budget: PrivacyBudget,
        queries: Tensor | None = None,
    ) -> "PlannedHead | None":
        """Return the head of a recipe; None where it is no ridge regression.

        Args:
            recipe: Settings of the second stage.
            score: Of the learner.
            schema: Columns and public bounds.
            n: Records of the second-stage block.
            budget: What a release may spend.
            queries: Public queries, [d, q].
        """
        if not isinstance(recipe, RidgeSecondStage):
            return None
        bounds, psi, requested = score.bounds(schema.domain), None, None
        if isinstance(recipe, LinearSecondStage):
            try:
                features = on_domain(recipe.features, schema.domain)
            except InputError:  # made of trained nuisances
                features = None
            if features is not None:
                psi = features(schema.grid(_POINTS))
                requested = None if queries is None else features(queries)
        bound = bounds.weight * FeatureMap.bound
        half, one = torch.tensor([0.5], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        rho = score.rho(one, half).item()
        typical, weight = score.ratio(half).item() * 0.5 / math.sqrt(rho), rho
        threshold = math.inf if recipe.loss == "squared" else recipe.threshold
        deviation = schema.domain.outcome_sd or EXPECTED.residual_scale * schema.domain.outcome_range
        return cls(
            n,
            recipe.ridge_for(bound, n, budget),
            bound,
            bounds.target,
            typical * deviation if threshold is None else threshold,
            schema.domain,
            None if psi is None else psi.shape[1],
            None if requested is None else len(requested),
            weight=weight,
            psi=psi,
            queries=requested,
        )

    @property
    def length(self) -> float:
        """Root mean square of ||psi(x)|| at typical records; 1, its bound, where it is not known."""
        return 1.0 if self.psi is None else self.psi.square().sum(1).mean().sqrt().item()

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues [p] and vectors of the mean of w^2 psi psi' over records within the threshold."""
        if self.psi is None:
            return None
        inside = 1.0 if math.isinf(self.threshold) else _INSIDE
        values, vectors = torch.linalg.eigh(inside * self.weight * self.psi.T @ self.psi / len(self.psi))
        return values.clamp_min(0), vectors

    @property
    def curvature(self) -> Tensor | None:
        """A = lambda I + mean w^2 psi psi', half the Hessian of the mean loss, [p, p]."""
        if self.spectrum is None:
            return None
        values, vectors = self.spectrum
        return (vectors * (values + self.ridge)) @ vectors.T

    def spread(self, factors: Tensor) -> float:
        """Return the root mean square of psi' V diag(factors), V the eigenvectors of A: noise of answers."""
        assert self.psi is not None
        assert self.spectrum is not None
        return (self.psi @ (self.spectrum[1] * factors)).square().sum(1).mean().sqrt().item()

    @property
    def retained(self) -> float | None:
        """Share of a correction that the ridge leaves at typical records; None where features are not known yet."""
        if self.spectrum is None:
            return None
        values = self.spectrum[0]
        weight = values * values / (values + self.ridge)
        return (weight.sum() / values.sum()).item()


def score_of(learner: str) -> RegressionScore:
    """Return the score of the learner that statements call so.

    Raises:
        LookupError: There is none.
    """
    score: RegressionScore = LEARNERS[LEARNERS.class_names()[learner]].regression_score
    return score


def is_learner(name: object) -> bool:
    """Whether statements may call a learner so."""
    return name in LEARNERS.class_names()
