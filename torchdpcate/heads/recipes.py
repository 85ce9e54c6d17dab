"""What a user chooses of a second stage: public settings, and how they become a fitted stage."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, Legendre, on_domain
from torchdpcate.fit.tangent_features import Tangent
from torchdpcate.fit.trainer import interruptible, quiet_lightning
from torchdpcate.heads.stage import FittedStage, LinearStage, NeuralStage, SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, theorem1_multiplier
from torchdpcate.privacy.guarantee import of_library
from torchdpcate.registry import refuse_strings

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceModel


_NONPRIVATE_RIDGE = 1e-4
LEARNS = 3e-3
"""Ridge of a neural head up to which it learns more than a constant; see ``NeuralSecondStage.ridge_for``."""


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

    choice = "linear, tangent or kernel_ridge"
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
            raise InputError(f"second_stage.loss = {self.loss}: choose huber or squared")
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

    choice = "linear or tangent"

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
        trainer: Callable[..., Trainer] | None = None,
        seed: int = 0,
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
            works it out by ``ridge_for`` from public facts.
        epochs: Passes of Adam over the block; 0 leaves all to the polish.

    Raises:
        InputError: A setting out of its range.

    Example:
        >>> NeuralSecondStage(ridge=0.01).ridge_for(500, None)
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

    def ridge_for(self, n: int, budget: PrivacyBudget | None) -> float:
        r"""Return the ridge: the given one, or the one with which head and noise together err least.

        .. math:: \lambda = \max\{10^{-4}, (50 c)^2\}, \qquad c = 5 \sqrt{2 \ln n \ln(2/\delta)} / (\varepsilon n)

        c is the noise of an answer over the gross-error sensitivity gamma (Theorem 1). A head that is a constant t has
        gamma = g at 300 queries, and errs least with the ridge E[w^2] (c g / t)^2: by E[w^2] = 1/4, g = 20 and t = 1/5
        of the outcome range that is (50 c)^2. From ``LEARNS`` down a head learns more than a constant, with three times
        the noise and more. 1e-4, the ridge without privacy, is the least whose polish ends reliably. Source:
        ``experiments/dp_cate/neural_ridge.py``, R-learner: with n from 1,000 to 100,000, epsilon from 1 to 30 and
        widths from 8 to 64 it errs 1.03 times as much as the best of nine ridges on average, 1.9 times at most.

        Args:
            n: Records of the second-stage block.
            budget: Its budget; None without privacy.

        Example:
            >>> head = NeuralSecondStage()
            >>> [round(head.ridge_for(n, PrivacyBudget(4.0, 1e-5)), 6) for n in (1_350, 13_500, 135_000)]
            [0.377142, 0.004976, 0.0001]
        """
        if self.ridge is not None:
            return self.ridge
        if budget is None:
            return _NONPRIVATE_RIDGE
        epsilon = min(budget.epsilon, 3 * math.log(2 / budget.delta))  # beyond which the theorem is not proved
        return max(_NONPRIVATE_RIDGE, (50 * theorem1_multiplier(epsilon, budget.delta, n)) ** 2)

    def fit(
        self,
        block: SecondStageBlock,
        nuisances: NuisanceModel,
        *,
        threshold: float = math.inf,
        budget: PrivacyBudget | None = None,
        trainer: Callable[..., Trainer],
        seed: int = 0,
    ) -> NeuralStage:
        """Return the polished neural stage."""
        from torchdpcate.heads.neural import NeuralHead, fit_neural_head  # Lightning, for those who train

        domain, ridge = block.domain, self.ridge_for(block.s.shape[0], budget)
        block = block.in_units_of(domain.outcome_range)
        with quiet_lightning(), interruptible(), torch.random.fork_rng():
            torch.manual_seed(seed)
            head = NeuralHead(domain, self.width, self.depth, ridge)
            fit = fit_neural_head(head, block.x, block.s, block.w, trainer, epochs=self.epochs)
        return NeuralStage(block, head, fit, ridge, domain.outcome_range)


@dataclass(frozen=True)
class TangentSecondStage(LinearSecondStage):
    """A linear head on ``Tangent`` features.

    Attributes:
        features: Always ``Tangent``.
    """

    choice: ClassVar[str] = "tangent"

    features: FeatureMap = field(init=False, default_factory=Tangent)
