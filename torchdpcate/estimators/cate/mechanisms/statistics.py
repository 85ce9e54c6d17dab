"""Sufficient statistics of ridge regression, released once: every ridge afterwards is free."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import Head, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import QUERIES, FunctionMechanism, Prepared
from torchdpcate.estimators.cate.mechanisms.worst_pairs import function_game, given_stage
from torchdpcate.fit.feature_maps import batches
from torchdpcate.fit.minimise import NormalEquations
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.heads.stage import FittedStage
from torchdpcate.laws import UnequalNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statistics import StatisticsRelease

_MOST_FEATURES = 4_096  # their 8 million noisy numbers take about a minute to draw
_CLOSE = 1e-6  # how well coefficients must agree with those that the statistics give
_RIDGE_SHARE = 0.3  # of the matrix noise's norm: on generated data 0.1 to 1 were best, by features and records


def statistics_units(weight_bound: float, target_bound: float) -> tuple[float, float]:
    r"""Return the scales of sum v v' and of sum s v in which one record moves the two of them by at most one.

    .. math:: \kappa_A = \tfrac{3}{\sqrt 2} B^2,\quad \kappa_b = \tfrac{3}{\sqrt 2} B S

    Two records at an angle of cosine c move them by at most sqrt(2 a (1 - c^2) + 2 g (1 + c)), a = B^4 / kappa_A^2
    and g = B^2 S^2 / kappa_b^2, which for g <= 2 a is largest at c = g / (2 a): (2 a + g) / sqrt(2 a). Equal shares
    g = a have the least error, to first order, for a head whose predictions reach S. The largest moves of the two,
    2 a and 4 g, never happen together: counted so, there were 15 per cent more noise.

    Args:
        weight_bound: B, bound of ||v||.
        target_bound: S, bound of |s|.

    Example:
        >>> [round(unit, 6) for unit in statistics_units(0.9, 0.5)]
        [1.718269, 0.954594]
    """
    return 3 / math.sqrt(2) * weight_bound**2, 3 / math.sqrt(2) * weight_bound * target_bound


class SufficientStatistics(FunctionMechanism):
    r"""A~ = sum v v' + sigma_A N, b~ = sum s v + sigma_b z; theta~ = (A~_+ + n lambda I)^{-1} b~ for every lambda.

    N is symmetric with variances 1 on and 1/2 off its diagonal, z standard normal, A~_+ the positive part.

    Targets are clipped to the threshold, |s| <= tau, before they enter: a public map of each record, so that S is tau.
    Their regression is then squared; with ``loss=squared`` there is no threshold and S is the score's bound.

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances and the threshold: a Gaussian mechanism on
        the statistics, in units of which one record moves them by at most one (``statistics_units``). Conditions:
        ||v|| <= B, |s| <= S by the clip. The coefficients, and those of every other ridge, are post-processing.
        Their noise depends on the records, so there is no public band. Source: theory note ``dp_cate``, row 4, with
        a sharper sensitivity.

    Args:
        ridge: lambda of the released coefficients; None takes the larger of the second stage's own and
            0.3 sigma_A sqrt(2 p) / n: far below the norm of the matrix noise, that noise is inverted.

    Raises:
        InputError: A ridge that is not positive.

    Example:
        >>> SufficientStatistics().name
        'statistics'
    """

    name = "statistics"
    formula = (
        "sigma_A = (3 / sqrt 2) B^2 sigma_AG(epsilon, delta), sigma_b = (3 / sqrt 2) B S sigma_AG(epsilon, delta), "
        "S the clip of the targets; dp_cate row 4, with a sharper sensitivity"
    )
    source = "dp_cate row 4; Balle & Wang 2018"
    kinds = (StatisticsRelease.kind, *QUERIES)
    settings = ("ridge",)

    def __init__(self, ridge: float | None = None) -> None:
        if ridge is not None and not 0 < ridge < math.inf:
            raise InputError(f"mechanism.ridge = {ridge}: give a positive number or null")
        self.ridge = ridge

    def law(self, head: Head, budget: PrivacyBudget) -> UnequalNoise:
        """See ``Mechanism``: of the diagonal of A~, what is above it row by row, and b~."""
        p = head.size or 1
        if p > _MOST_FEATURES:
            raise InputError(
                f"features: {p:,} of them have {p * (p + 1) // 2:,} products to release; take at most "
                f"{_MOST_FEATURES:,}, or mechanism=objective"
            )
        matrix, vector = statistics_units(head.weight_bound, head.clip)
        # of the statistics in units that one record moves by at most one
        mechanism = GaussianMechanism(budget, 1.0)
        return UnequalNoise(mechanism, (p, p * (p - 1) // 2, p), (matrix, matrix / math.sqrt(2), vector))

    def exact(self, stage: FittedStage, law: UnequalNoise) -> tuple[Tensor, ...]:
        """See ``FunctionMechanism``."""
        problem = self.require_linear(stage).problem
        return _blocks(_equations(problem, min(problem.target_bound, problem.threshold)))

    def public(self, head: Head, law: UnequalNoise) -> dict[str, Any]:
        """See ``Mechanism``."""
        matrix, _, vector = law.scales
        ridge = self.ridge or max(head.ridge, _RIDGE_SHARE * matrix * math.sqrt(2 * law.sizes[0]) / head.n)
        return {"matrix_scale": matrix, "vector_scale": vector, "threshold": head.threshold, "ridge": ridge}

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """See ``Mechanism``: of the noisy vector alone; that of the matrix grows with the head, which is not known."""
        if head.spectrum is None:
            return math.nan
        found = self.public(head, self.law(head, budget))
        return float(found["vector_scale"] / head.n * head.spread(1 / (found["ridge"] + head.spectrum[0])))

    def make_release(self, stage: FittedStage, private: Prepared, **parts: Any) -> StatisticsRelease:
        """Return the release of the statistics; see the base class."""
        problem = self.require_linear(stage).problem
        statistics = unpacked(private.output, problem.design.shape[1], problem.n)
        ridge = private.public["ridge"]
        theta = statistics.solve(ridge)
        return StatisticsRelease(theta=theta, noise_scale=None, statistics=statistics, ridge=ridge, **parts)

    def release_problems(self, head: Head, law: UnequalNoise, release: FunctionRelease | QueryRelease) -> Iterator[str]:
        """See ``Mechanism``: coefficients follow from the statistics, at the ridge that is stated."""
        if isinstance(release, StatisticsRelease):
            released = release.statistics
            above = released.matrix[tuple(torch.triu_indices(law.sizes[0], law.sizes[0], 1))]
            yield from law.answer_problems(
                "statistics", torch.cat([released.matrix.diagonal(), above, released.vector])
            )
            if released.n != head.n or release.ridge != release.privacy.public["ridge"]:
                yield "records or ridge of its statistics are not those of the statement"
            elif not torch.allclose(release.theta, released.solve(release.ridge), rtol=_CLOSE, atol=_CLOSE * head.clip):
                yield "its coefficients do not follow from its statistics"

    @worst_case(
        "statistics",
        pair="a record turns by 60 degrees and its target changes sign, both at their bounds",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        s, w = torch.zeros(10, dtype=torch.float64), torch.ones(10, dtype=torch.float64)
        problems = []
        for angle, target in ((0.0, 1.0), (math.pi / 3, -1.0)):
            psi = torch.zeros(10, 2, dtype=torch.float64)
            psi[0] = torch.tensor([math.cos(angle), math.sin(angle)])
            problems.append(LinearProblem(psi, s.clone().index_fill_(0, torch.tensor(0), target), w, 0.1, 1.0, 1.0))
        before, after = (torch.cat(_blocks(_equations(problem, 1.0))) for problem in problems)
        variances = torch.tensor([1.0, 1.0, 0.5, 1.0, 1.0], dtype=torch.float64)  # equal bounds, equal scales
        stages = [given_stage(problem) for problem in problems]
        direction = (after - before) / variances
        return function_game(stages, lambda stage: SufficientStatistics().prepare(stage, budget), direction)


def unpacked(draw: Tensor, p: int, n: int) -> NormalEquations:
    """Return the normal equations of one draw of the mechanism, of p features and n records."""
    diagonal, above, vector = draw.split([p, p * (p - 1) // 2, p])
    matrix = torch.diag(diagonal)
    rows, columns = torch.triu_indices(p, p, 1)
    matrix[rows, columns] = above
    matrix[columns, rows] = above
    return NormalEquations.of(matrix, vector.clone(), n)


def _equations(problem: LinearProblem, bound: float) -> NormalEquations:
    """The exact statistics, batch by batch, with targets clipped to the bound."""
    p = problem.design.shape[1]
    equations, s = NormalEquations(p, problem.s.device), problem.s.clamp(-bound, bound)
    for rows in batches(torch.arange(problem.n, device=s.device), p):
        equations.add(problem.w[rows, None] * problem.psi[rows], s[rows])
    return equations


def _blocks(equations: NormalEquations) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonal, what is above it, and vector, on the CPU; one noise scale each."""
    matrix = equations.matrix.cpu()
    rows, columns = torch.triu_indices(len(matrix), len(matrix), 1)
    return matrix.diagonal(), matrix[rows, columns], equations.vector.cpu()
