"""The second-stage block and the heads fitted to it. Not private."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.heads.linear import LinearProblem, Minimiser, sensitivity, solve
from torchdpcate.privacy.guarantee import Condition

if TYPE_CHECKING:
    from torchdpcate.causal.score import ScoreBounds
    from torchdpcate.data.domain import Domain
    from torchdpcate.heads.neural import NeuralFit, NeuralHead

Regression = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(x [B, q], a [B], y [B]) -> (s [B], w [B]), differentiable in x."""


@dataclass(frozen=True, eq=False)
class SecondStageBlock:
    """Covariates and regression pairs of the second-stage block, float64 on the fitting device.

    Attributes:
        x: Covariates, [n, q].
        s: Targets after the offset, [n].
        w: Weights, [n].
        regression: The map from any record of the domain to its (s, w).
        domain: Public bounds.
        bounds: Worst-case bounds of the score over the domain.
    """

    x: Tensor
    s: Tensor
    w: Tensor
    regression: Regression
    domain: "Domain"
    bounds: "ScoreBounds"

    def in_units_of(self, unit: float) -> "SecondStageBlock":
        """Return the same block with s, its regression and its bound divided by a public unit."""

        def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            s, w = self.regression(x, a, y)
            return s / unit, w

        bounds = dataclasses.replace(self.bounds, target=self.bounds.target / unit, rho_phi=self.bounds.rho_phi / unit)
        return dataclasses.replace(self, s=self.s / unit, regression=regression, bounds=bounds)


Model = Callable[[Tensor, Tensor], Tensor]
"""(theta [p], x [B, q]) -> f_theta(x) [B]."""


class FittedStage(ABC):
    """A second stage g = g0 + unit f whose f minimises its ridge objective.

    Attributes:
        block: The second-stage block, its s in the stage's own unit.
        ridge: lambda, public.
        unit: Outcome units of one unit of s and f, public.
    """

    block: SecondStageBlock
    ridge: float
    unit: float = 1.0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What a guarantee of a release from this stage rests on beside its proof."""
        return ()

    @property
    @abstractmethod
    def gradient_norm(self) -> float:
        """Norm of the objective's gradient at the fit."""

    @property
    @abstractmethod
    def coefficients(self) -> Tensor:
        """The fitted coefficients, float64 and flat. Never to be released as they are."""

    @abstractmethod
    def correction(self, x: Tensor) -> Tensor:
        """Return the non-private unit f(x), [B], that the head adds to the offset."""


@dataclass(frozen=True, eq=False)
class PlugInStage(FittedStage):
    """No second stage: f is zero, and g the nuisances' own effect.

    Attributes:
        block: The records that trained the nuisances.
    """

    block: SecondStageBlock
    ridge = math.inf
    gradient_norm = 0.0

    @property
    def coefficients(self) -> Tensor:
        """None."""
        return self.block.s.new_zeros(0)

    def correction(self, x: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros(len(x), dtype=torch.float64)


class ParametricStage(FittedStage):
    """A second stage with parameters theta, f = f_theta.

    Attributes:
        fit: The minimiser and its gradient norm.
    """

    fit: "Minimiser | NeuralFit"

    @property
    def theta(self) -> Tensor:
        """The minimiser, float64 [p]. Never to be released as it is."""
        return self.fit.theta

    @property
    def gradient_norm(self) -> float:
        """Euclidean norm of the objective's gradient at ``theta``."""
        return self.fit.gradient_norm

    @property
    def coefficients(self) -> Tensor:
        """Theta."""
        return self.theta

    @property
    @abstractmethod
    def model(self) -> Model:
        """The map f as a function of theta and x, differentiable in both."""

    def correction(self, x: Tensor) -> Tensor:
        """Return the non-private unit f_theta(x), [B], that the head adds to the offset."""
        with torch.no_grad():
            return self.unit * self.model(self.theta, x.to(self.theta))


class RKHSStage(FittedStage):
    """A second stage whose f lies in a Hilbert space H of functions with a public kernel, K(x, x) <= 1."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Replace-one bound of ||f_D - f_D'||_H in outcome units, the solver's inexactness included.

        Raises:
            InputError: The loss has no such bound.
        """

    @abstractmethod
    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the kernel K(x, y), float64 [m, k], for covariates x [m, q] and y [k, q]."""

    @abstractmethod
    def squared(self) -> "RKHSStage":
        """Return the same stage with the squared loss."""


@dataclass(frozen=True, eq=False)
class LinearStage(ParametricStage, RKHSStage):
    """A linear head on a feature map: f_theta(x) = psi(x)'theta.

    Attributes:
        block: The second-stage block.
        features: The feature map, set up.
        ridge: lambda, public.
        threshold: Huber threshold, public or private; infinity means the squared loss.
    """

    block: SecondStageBlock
    features: FeatureMap
    ridge: float
    threshold: float = math.inf

    @cached_property
    def problem(self) -> LinearProblem:
        """The regression of s on w psi(x) with its public bounds."""
        return LinearProblem(
            psi=self.features(self.block.x),
            s=self.block.s,
            w=self.block.w,
            ridge=self.ridge,
            weight_bound=self.block.bounds.weight * self.features.bound,
            target_bound=self.block.bounds.target,
            threshold=self.threshold,
        )

    @cached_property
    def fit(self) -> Minimiser:  # type: ignore[override]  # a field in the base, computed here on first use
        """The minimiser without noise."""
        return solve(self.problem)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of the feature map."""
        return self.features.conditions

    @property
    def model(self) -> Model:
        """psi(x)'theta."""
        return self.features.product

    @property
    def sensitivity(self) -> float:
        """Replace-one sensitivity of theta, hence of f in the space of the kernel psi(x)'psi(y)."""
        return self.unit * sensitivity(self.problem)

    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return psi(x)'psi(y), [m, k]."""
        left = x.to(self.block.x)
        return self.features.covariance(left, left if x is y else y.to(left))

    def squared(self) -> "LinearStage":
        """Return the same stage with the squared loss."""
        return dataclasses.replace(self, threshold=math.inf)


@dataclass(frozen=True, eq=False)
class NeuralStage(ParametricStage):
    """A neural head, polished to a stationary point of its ridge objective.

    Attributes:
        block: The second-stage block.
        head: The network.
        fit: Its flat parameters and gradient norm.
        ridge: lambda, public.
        unit: Outcome units of one unit of s and f: the outcome range.
    """

    block: SecondStageBlock
    head: "NeuralHead"
    fit: "NeuralFit"
    ridge: float
    unit: float

    @property
    def model(self) -> Model:
        """The network's output at parameters theta; its own type, so that the fast Hessian is found."""
        return self.head.functional
