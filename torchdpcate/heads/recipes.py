"""What a user chooses of a second stage: public settings, and how they become a fitted stage."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, Legendre, on_domain
from torchdpcate.fit.nuisances import network_error
from torchdpcate.fit.trainer import interruptible, quiet_lightning
from torchdpcate.heads.stage import FittedStage, LinearStage, NeuralStage, PlugInStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, theorem1_multiplier
from torchdpcate.privacy.guarantee import of_library
from torchdpcate.registry import refuse_strings

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from torchdpcate.causal.score import ScoreBounds
    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceModel


_NONPRIVATE_RIDGE = 1e-4
_LEARNS, _LEARNT_NOISE = 3e-3, 5.0  # ridge of a neural head up to which it is more than a constant; its noise then
_MOST_RIDGE = 1e3
_GAIN = 0.05  # share of the plug-in's squared error that heads without noise removed, neural_ridge.csv
_CURVATURE = 0.25  # mean of w^2
_LARGEST = 0.6  # largest product of weight and residual over that of their bounds
QUERIES = 300
"""Answers that a neural head is planned for."""


class SecondStage(ABC):
    """Public settings of a second stage.

    Attributes:
        choice: What users write after ``second_stage=``.
    """

    choice: ClassVar[str]

    def check(self, domain: Domain) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuse what no records of the domain could be fitted with, before anything is spent."""

    @abstractmethod
    def fit(
        self,
        block: SecondStageBlock,
        nuisances: NuisanceModel,
        *,
        threshold: float,
        budget: PrivacyBudget | None,
        trainer: Callable[..., Trainer],
        seed: int,
    ) -> FittedStage:
        """Return the fitted stage, not private.

        Args:
            block: The second-stage block.
            nuisances: Trained nuisances.
            threshold: Private Huber threshold; infinity where there is none.
            budget: The block's budget, from which public settings may be worked out; None without privacy.
            trainer: Makes a Lightning Trainer; heads that train, train under it.
            seed: Public seed of initial weights and batches.
        """


@dataclass(frozen=True, kw_only=True)
class RidgeSecondStage(SecondStage):
    """Settings of the second stages that are strongly convex: certified releases.

    Attributes:
        ridge: lambda in F = mean loss + lambda ||f||^2, positive, public; None works it out by
            ``ridge_for`` from public facts.
        noise_ratio: Noise allowed in an answer, in Huber thresholds, from which a ridge is worked out.
        loss: ``huber`` or ``squared``.
        threshold: A public Huber threshold in outcome units; None takes a private one, a quantile of |s| on the
            nuisance block.
        quantile: Which quantile a private threshold is.
        threshold_share: Share of the nuisance block's epsilon that it is charged (pure).
    """

    choice = "linear or kernel_ridge"
    quantile: ClassVar[float] = 0.9
    threshold_share: ClassVar[float] = 0.05

    ridge: float | None = None
    noise_ratio: float = 0.5
    loss: str = "huber"
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        refuse_strings(type(self), vars(self))
        if self.loss not in ("huber", "squared"):
            words = "; absolute errors are loss=huber with a small threshold" if self.loss == "l1" else ""
            raise InputError(f"second_stage.loss = {self.loss}: choose huber or squared{words}")
        for name, value in (("ridge", 1.0 if self.ridge is None else self.ridge), ("noise_ratio", self.noise_ratio)):
            if not (value and value > 0 and math.isfinite(value)):
                raise InputError(f"second_stage.{name} = {value}: the certificate needs a positive number")
        if self.threshold is not None and not self.threshold > 0:
            raise InputError(f"second_stage.threshold = {self.threshold}: give a positive number or null")
        if self.loss == "squared" and self.threshold is not None:
            raise InputError("second_stage.threshold: the squared loss has none; use second_stage.loss=huber")

    @property
    def private_threshold(self) -> bool:
        """Whether the Huber loss has no public threshold."""
        return self.loss == "huber" and self.threshold is None

    def ridge_for(self, weight_bound: float, n: int, budget: PrivacyBudget | None) -> float:
        r"""Return the ridge: the given one, or the least that keeps the noise of an answer to its ratio.

        .. math:: \lambda = 2 B \sigma_{AG}(\varepsilon, \delta) / (c\, n)

        makes the standard deviation of output perturbation, and to first order the bound of objective
        perturbation, c thresholds where K(x, x) = 1. All of it is public. Without privacy it is 1e-4.

        Args:
            weight_bound: Public bound B of the weighted features.
            n: Records of the second-stage block.
            budget: Its budget.

        Example:
            >>> round(LinearSecondStage().ridge_for(0.95, 13_500, PrivacyBudget(1.0, 1e-5)), 6)
            0.00105
        """
        if self.ridge is not None:
            return self.ridge
        if budget is None:
            return _NONPRIVATE_RIDGE
        sigma = analytic_gaussian_sigma(budget.epsilon, budget.delta)
        return 2 * weight_bound * sigma / (self.noise_ratio * n)


@dataclass(frozen=True)
class LinearSecondStage(RidgeSecondStage):
    r"""A linear head on a public feature map psi, fitted on one block of n records.

    .. math:: \min_\theta \frac1n \sum_i \ell(s_i - w_i \psi(x_i)^\top \theta) + \lambda \lVert \theta \rVert^2

    Guarantee:
        Its mechanism's: certified by ``objective`` and ``output`` (docs/guarantees/two_blocks.md).

    Attributes:
        features: The feature map.

    Raises:
        InputError: A setting out of its range.

    Example:
        >>> LinearSecondStage(ridge=0.1).ridge_for(1.0, 500, None)
        0.1
    """

    choice = "linear"

    features: FeatureMap = field(default_factory=Legendre)

    def check(self, domain: Domain) -> None:
        """See ``SecondStage``: a user's map, of which no trained nuisances are made.

        Raises:
            InputError: It is no map of single records.
        """
        if not of_library(self.features):
            on_domain(self.features, domain)

    def fit(
        self,
        block: SecondStageBlock,
        nuisances: NuisanceModel,
        *,
        threshold: float = math.inf,
        budget: PrivacyBudget | None = None,
        **_: Any,
    ) -> LinearStage:
        """Return the linear stage; its coefficients are solved for when first requested."""
        features = on_domain(self.features, block.domain, nuisances).to(block.x.device)
        ridge = self.ridge_for(block.bounds.weight * features.bound, block.s.shape[0], budget)
        return LinearStage(block, features, ridge, self.threshold or threshold)


@dataclass(frozen=True)
class NeuralSecondStage(SecondStage):
    """The paper's neural head: tanh layers, Adam, then a polish to a stationary point.

    Guarantee:
        None: its releases are heuristic (docs/guarantees/two_blocks.md). Source: Schroeder et al. (2025).

    Attributes:
        width: Units of each hidden layer.
        depth: Hidden layers.
        ridge: lambda in F = mean (s - w f)^2 + lambda ||theta||^2, s in units of the outcome range; positive; None
            works it out by ``ridge_for`` from public facts. f corrects the nuisances' own effect, at which a large
            ridge leaves it.
        epochs: Passes of Adam over the block; 0 leaves all to the polish.

    Raises:
        InputError: A setting out of its range.

    Example:
        >>> NeuralSecondStage(ridge=0.01).ridge
        0.01
    """

    choice = "neural"

    width: int = 32
    depth: int = 2
    ridge: float | None = None
    epochs: int = 50

    def __post_init__(self) -> None:
        """Check the settings before anything is trained or spent."""
        refuse_strings(type(self), vars(self))
        for name, least in (("width", 1), ("depth", 1), ("epochs", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                raise InputError(f"second_stage.{name} = {value}: give an integer of at least {least}")
        if self.ridge is not None and not (self.ridge > 0 and math.isfinite(self.ridge)):
            raise InputError(f"second_stage.ridge = {self.ridge}: give a positive number")

    def ridge_for(self, n: int, budget: PrivacyBudget | None, domain: Domain, bounds: ScoreBounds) -> float:
        r"""Return the ridge: the given one, or the one with which the release is planned to err least.

        Without noise a head of mean weight v = 1/4 removes up to a share s = 1/20 of the squared error
        :math:`e^2` of the nuisances' own effect, and c gamma is its noise at ridge zero (``planned_noise``). With
        :math:`u = v / (v + \lambda)` the release errs by

        .. math:: e^2 (1 - 2 s u + s u^2) + (c \gamma u)^2, \quad \text{least at} \quad
            \lambda = \min\{10^3, \max(10^{-4}, v (c \gamma)^2 / (s e^2))\}

        all of it public. 1e-4, the ridge without privacy, is the least whose polish ends reliably.

        Args:
            n: Records of the second-stage block, and about those of the nuisances'.
            budget: Its budget; None without privacy.
            domain: Public bounds.
            bounds: Of the learner's score.

        Example:
            >>> from torchdpcate.causal.score import RScore
            >>> from torchdpcate.data.domain import Domain
            >>> domain, head = Domain([0, 0], [1, 1], -1, 1), NeuralSecondStage()
            >>> budget, bounds = PrivacyBudget(4.0, 1e-5), RScore().bounds(domain)
            >>> [round(head.ridge_for(n, budget, domain, bounds), 3) for n in (1_350, 135_000, 13_500_000)]
            [476.301, 1.682, 0.005]
        """
        if self.ridge is not None:
            return self.ridge
        if budget is None:
            return _NONPRIVATE_RIDGE
        own = network_error(n, domain.dimension, budget) * domain.outcome_range
        noise = self.planned_noise(n, budget, bounds, ridge=0.0)
        return min(_MOST_RIDGE, max(_NONPRIVATE_RIDGE, _CURVATURE * (noise / own) ** 2 / _GAIN))

    def planned_noise(
        self, n: int, budget: PrivacyBudget, bounds: ScoreBounds, ridge: float, queries: int = QUERIES
    ) -> float:
        r"""Return the standard deviation of the noise in an answer by Theorem 1, in outcome units: c gamma.

        The head is planned as the constant that it is above a ridge of 3e-3:
        :math:`\gamma = .6 \sqrt d B S / (1/4 + \lambda)`; from there down it has about five times as much.

        Args:
            n: Records of the second-stage block.
            budget: What the release may spend.
            bounds: Of the learner's score: B of weights, S of targets.
            ridge: lambda; 0 stands for the constant without one.
            queries: Number of queries d.
        """
        epsilon = min(budget.epsilon, 3 * math.log(2 / budget.delta))  # beyond which the theorem is not proved
        gamma = _LARGEST * math.sqrt(queries) * bounds.weight * bounds.target / (_CURVATURE + ridge)
        learnt = _LEARNT_NOISE if 0 < ridge <= _LEARNS else 1.0
        return learnt * gamma * theorem1_multiplier(epsilon, budget.delta, n)

    def fit(
        self,
        block: SecondStageBlock,
        nuisances: NuisanceModel,
        *,
        trainer: Callable[..., Trainer],
        budget: PrivacyBudget | None = None,
        seed: int = 0,
        **_: Any,
    ) -> NeuralStage:
        """Return the polished neural stage."""
        from torchdpcate.heads.neural import NeuralHead, fit_neural_head  # Lightning, for those who train

        domain, ridge = block.domain, self.ridge_for(block.s.shape[0], budget, block.domain, block.bounds)
        block = block.in_units_of(domain.outcome_range)
        with quiet_lightning(), interruptible(), torch.random.fork_rng():
            torch.manual_seed(seed)
            head = NeuralHead(domain, self.width, self.depth, ridge)
            fit = fit_neural_head(head, block.x, block.s, block.w, trainer, epochs=self.epochs)
        return NeuralStage(block, head, fit, ridge, domain.outcome_range)


@dataclass(frozen=True)
class PlugInSecondStage(SecondStage):
    r"""No second stage: all records train the nuisances, whose own effect mu1 - mu0 is released.

    .. math:: g(x) = \mu_1(x) - \mu_0(x)

    Of a skewed continuous outcome networks learn medians rather than means, for nearly all gradients are clipped, and
    no second stage corrects it. A clip norm of 8 outcome deviations over its range, at a rate lower by as much, took
    the mean effect's error on exponential outcomes from .55 to .13, and PEHE on ``Dataset1`` and ``Dataset2`` to 1.15
    to 2.9 times what it was (29 November 2026, two seeds, a script that was not kept). No public fact says which it is.

    Guarantee:
        That of the nuisances: (epsilon, delta), certified for networks by DP-SGD; g is post-processing.

    Example:
        >>> PlugInSecondStage().choice
        'plug_in'
    """

    choice = "plug_in"

    def fit(self, block: SecondStageBlock, nuisances: NuisanceModel, **_: Any) -> PlugInStage:
        """Return the stage whose f is zero."""
        return PlugInStage(block)
