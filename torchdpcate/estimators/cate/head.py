"""What is public of a second stage that is released: all that its noise is calibrated to."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.second_stage.kernel import KernelStage
from torchdpcate.second_stage.linear import LinearProblem
from torchdpcate.second_stage.stage import FittedStage, LinearStage

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
            n, size, bound, target = problem.n, problem.design.shape[1], problem.weight_bound, problem.target_bound
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

    @property
    def most(self) -> float:
        """Largest coefficient of the exact fit.

        The gradient of the ridge is at most that of the records, and the ridge at most their loss at zero.
        """
        huber = self.threshold * self.weight_bound / self.ridge
        return min(huber, self.target_bound / self.ridge**0.5)
