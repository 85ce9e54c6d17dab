"""Additive noise mechanisms for a vector of numbers, safe in floating point."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, laplace_scale
from torchdpcate.privacy.events import Event, GaussianEvent, PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource, float_loss
from torchdpcate.privacy.worst_case import Evidence, Game, k_norm_evidence, worst_case


@dataclass(frozen=True)
class Spread:
    """How far noise of a known law reaches.

    Attributes:
        scale: Of the noise.
        size: Number of coefficients p.
        order: Norm of K-norm noise; None of Gaussian noise.

    Example:
        >>> round(Spread(2.0, 4, None).length, 6), round(Spread(1.0, 5, 2.0).deviation, 6)
        (4.0, 2.44949)
    """

    scale: float
    size: int
    order: float | None

    @property
    def deviation(self) -> float:
        r"""Standard deviation of each number.

        .. math:: \sigma \text{ (Gaussian)}, \quad s\sqrt2 \text{ (1)}, \quad s\sqrt{p+1} \text{ (2)}, \quad
            s\sqrt{(p+1)(p+2)/3} \text{ (infinity)}
        """
        if self.order is None:
            return self.scale
        return self.scale * (math.sqrt(2) if self.order == 1 else k_norm_deviation(self.size, self.order))

    @property
    def length(self) -> float:
        """Root mean square of its Euclidean length."""
        return math.sqrt(self.size) * self.deviation

    def lengths(self, levels: np.ndarray) -> np.ndarray:
        """Return quantiles of its Euclidean length, [k]; of a cube's noise those of the same root mean square.

        Args:
            levels: [k], in (0, 1).

        Raises:
            InputError: Laplace noise.
        """
        if self.order is None:
            return self.scale * np.sqrt(2 * scipy.special.gammaincinv(self.size / 2, levels))
        if self.order == 2 or self.size == 1:
            return self.scale * scipy.special.gammaincinv(self.size, levels)
        if self.order == 1:
            raise InputError("noise: the length of Laplace noise is not known here; use gamma, box or gaussian")
        # a point of the cube, whose mean square length is p / 3, times Gamma(p + 1)
        return self.scale * (math.sqrt(self.size / 3) * scipy.special.gammaincinv(self.size + 1, levels))


class AdditiveMechanism(ABC):
    """A mechanism that rounds a value to the public grid of its noise and adds the noise.

    Rounding moves each number by up to half a grid step on either data set, so the noise answers for a
    sensitivity enlarged by ``p ** (1 / norm)`` steps, p the number of values, and where it is drawn in floating point
    for what that adds to epsilon (``released_scale``).

    Attributes:
        norm: 1, 2 or infinity, the norm of the sensitivity.
        sensitivity: Replace-one sensitivity of the value.
        scale: Noise scale before that enlargement.
    """

    norm: float
    sensitivity: float
    scale: float

    @property
    @abstractmethod
    def event(self) -> Event:
        """The event to charge to a ledger before ``release``."""

    def size(self, moved: Tensor) -> Tensor:
        """Return the norm of the sensitivity of vectors, [...], of differences of values [..., p]."""
        return torch.linalg.vector_norm(moved, self.norm, dim=-1)

    @abstractmethod
    def _noise(self, like: Tensor, scale: float, noise: NoiseSource) -> Tensor:
        """Noise for values of the shape [runs, p] of ``like``."""

    def released_scale(self, size: int) -> float:
        """Noise scale of a release of ``size`` numbers, rounding included; public.

        Raises:
            InputError: If there are so many numbers that rounding would matter.
        """
        # a grid step is at most 2^-20 of the scale that it is chosen for, which is the enlarged one
        share = (size ** (1 / self.norm) * 2.0**-20 + self._float_loss(size)) * self.scale / self.sensitivity
        if share > 0.1:
            raise InputError(
                f"size = {size}: noise of {self.scale:g}, where one record moves {self.sensitivity:g}, is too much for "
                "its grid, or these are too many numbers; give a larger privacy.epsilon, or release fewer"
            )
        return self.scale / (1 - share)

    def spread(self, size: int) -> Spread:
        """Return how far the noise in ``size`` numbers reaches, before the enlargement."""
        return Spread(self.scale, size, self.norm)

    def _float_loss(self, size: int) -> float:
        """What drawing noise for ``size`` numbers in float64 adds to the privacy loss; nothing where it is discrete."""
        return 0.0

    def add_noise(self, values: Tensor, noise: NoiseSource) -> Tensor:
        """Independent runs on the rows of ``values`` [runs, p]: rounded to the noise's grid, plus noise.

        Args:
            values: One value of p numbers a run; finite.
            noise: Where the noise comes from.

        Returns:
            float64 [runs, p] on the CPU.

        Raises:
            InputError: If a value is not finite.
        """
        if not bool(torch.isfinite(values).all()):
            raise InputError(f"value of shape {tuple(values.shape)}: not finite; nothing can be released")
        exact = values.detach().cpu().double()
        scale = self.released_scale(exact.shape[1])
        step = noise.grid(scale)
        return torch.round(exact / step) * step + self._noise(exact, scale, noise)

    def release(self, value: Tensor, noise: NoiseSource) -> Tensor:
        """The value with noise; charge ``event`` first.

        Args:
            value: Any shape; finite.
            noise: Where the noise comes from.

        Returns:
            float64 on the CPU, of the value's shape.

        Raises:
            InputError: If the value is not finite.
        """
        return noise.released(self.add_noise(value.reshape(1, -1), noise).reshape(value.shape))


class GaussianMechanism(AdditiveMechanism):
    """Gaussian noise by the analytic calibration (Balle & Wang 2018).

    Guarantee: certified (epsilon, delta) if ``sensitivity`` bounds the l2 distance of the values of any two
    neighbouring data sets.

    Args:
        budget: What one release may cost; delta > 0.
        sensitivity: Replace-one l2 sensitivity.

    Raises:
        InputError: If delta is 0, or the sensitivity not positive.

    Example:
        >>> mechanism = GaussianMechanism(PrivacyBudget(1.0, 1e-5), sensitivity=2.0)
        >>> round(mechanism.scale, 6)
        7.461263
        >>> mechanism.release(torch.zeros(3), NoiseSource.system()).shape
        torch.Size([3])
    """

    norm = 2

    def __init__(self, budget: PrivacyBudget, sensitivity: float) -> None:
        self.budget = budget
        self.sensitivity = positive("sensitivity", sensitivity)
        self.scale = analytic_gaussian_sigma(budget.epsilon, budget.delta, self.sensitivity)
        self._event = GaussianEvent(analytic_gaussian_sigma(budget.epsilon, budget.delta))

    @classmethod
    def of_event(cls, event: GaussianEvent, sensitivity: float) -> "GaussianMechanism":
        """Return the mechanism whose releases cost this event, whatever budget it came from."""
        mechanism = cls.__new__(cls)
        mechanism._event, mechanism.sensitivity = event, positive("sensitivity", sensitivity)
        mechanism.scale = event.noise_multiplier * mechanism.sensitivity
        return mechanism

    @property
    def event(self) -> GaussianEvent:
        """``GaussianEvent`` of the calibrated multiplier."""
        return self._event

    def spread(self, size: int) -> Spread:
        return Spread(self.scale, size, None)

    def _noise(self, like: Tensor, scale: float, noise: NoiseSource) -> Tensor:
        return noise.gaussian(like.numel(), scale).reshape(like.shape)


class _PureMechanism(AdditiveMechanism):
    """Noise of one scale, the sensitivity over epsilon, in the norm of the sensitivity."""

    def __init__(self, epsilon: float, sensitivity: float) -> None:
        self.epsilon = positive("epsilon", epsilon)
        self.sensitivity = positive("sensitivity", sensitivity)
        self.scale = laplace_scale(self.epsilon, self.sensitivity)

    @property
    def event(self) -> PureEvent:
        """``PureEvent`` of this epsilon."""
        return PureEvent(self.epsilon)


class LaplaceMechanism(_PureMechanism):
    """Laplace noise (Dwork et al. 2006).

    Guarantee: certified epsilon, pure, if ``sensitivity`` bounds the l1 distance of the values of any two
    neighbouring data sets.

    Args:
        epsilon: What one release costs.
        sensitivity: Replace-one l1 sensitivity.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> LaplaceMechanism(0.5, sensitivity=1.0).scale
        2.0
    """

    norm = 1

    def _noise(self, like: Tensor, scale: float, noise: NoiseSource) -> Tensor:
        return noise.laplace(like.numel(), scale).reshape(like.shape)


class KNormMechanism(_PureMechanism):
    r"""Noise with density proportional to exp(-||z|| / s) in p dimensions (Hardt & Talwar 2010).

    In the Euclidean norm its direction is uniform and its length Gamma(p, s); in the norm of the largest entry it is a
    uniform point of the cube times Gamma(p + 1, s). Guarantee: certified epsilon, pure, float64 counted, if
    ``sensitivity`` bounds the distance in that norm of the values of any two neighbouring data sets.

    Args:
        epsilon: What one release costs.
        sensitivity: Replace-one sensitivity in the norm.
        order: The norm: 2, or infinity for the largest entry.

    Raises:
        InputError: If an argument is not positive, or the order another.

    Example:
        >>> mechanism = KNormMechanism(0.5, sensitivity=1.0)
        >>> mechanism.scale, mechanism.release(torch.zeros(3), NoiseSource.system()).shape
        (2.0, torch.Size([3]))
    """

    def __init__(self, epsilon: float, sensitivity: float, order: float = 2.0) -> None:
        if order not in (2, math.inf):
            raise InputError(f"order = {order}: give 2 or infinity")
        self.norm = order
        super().__init__(epsilon, sensitivity)

    def _float_loss(self, size: int) -> float:
        return float_loss(size, self.norm)

    def _noise(self, like: Tensor, scale: float, noise: NoiseSource) -> Tensor:
        return noise.k_norm(like.shape[0], like.shape[1], scale, self.norm)


def k_norm_deviation(dimension: int, order: float = 2.0) -> float:
    r"""Standard deviation of an entry of K-norm noise of scale 1.

    .. math:: \sqrt{p + 1} \text{ (2)}, \qquad \sqrt{(p + 1)(p + 2) / 3} \text{ (infinity)}

    Args:
        dimension: p.
        order: The norm: 2, or infinity.

    Example:
        >>> round(k_norm_deviation(5), 6), round(k_norm_deviation(5, math.inf), 6)
        (2.44949, 3.741657)
    """
    variance = dimension + 1 if order == 2 else (dimension + 1) * (dimension + 2) / 3
    return math.sqrt(variance)


def _pair(mechanism: AdditiveMechanism, shift: Tensor, evidence: Evidence, guarantee: Guarantee) -> Game:
    """Neighbours with the values 0 and ``shift`` [p], one sensitivity apart."""
    values = torch.stack([torch.zeros_like(shift), shift])
    return Game(
        draw=lambda dataset, runs, noise: mechanism.add_noise(values[dataset].expand(runs, -1), noise),
        event=mechanism.event,
        guarantee=guarantee,
        evidence=evidence,
    )


def _first(outputs: Tensor) -> Tensor:
    return outputs[:, 0]


@worst_case("gaussian", GaussianMechanism, pair="two numbers one sensitivity apart")
def _gaussian(budget: PrivacyBudget) -> Game:
    return _pair(GaussianMechanism(budget, 1.0), _ONE[:1], _first, Guarantee(Level.CERTIFIED, budget))


@worst_case("laplace", LaplaceMechanism, attacks=[], pair="two numbers one sensitivity apart")
def _laplace(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)
    return _pair(LaplaceMechanism(budget.epsilon, 1.0), _ONE[:1], _first, Guarantee(Level.CERTIFIED, pure))


def _k_norm_game(budget: PrivacyBudget, order: float, shift: Tensor) -> Game:
    mechanism, pure = KNormMechanism(budget.epsilon, 1.0, order), PrivacyBudget(budget.epsilon, 0.0)
    return _pair(mechanism, shift, k_norm_evidence(shift, mechanism.scale, order), Guarantee(Level.CERTIFIED, pure))


@worst_case("k_norm", KNormMechanism, pair="two points of the plane one sensitivity apart")
def _k_norm(budget: PrivacyBudget) -> Game:
    return _k_norm_game(budget, 2.0, _ONE)


@worst_case("cube", KNormMechanism, pair="two points of the plane, both coordinates one sensitivity apart")
def _cube(budget: PrivacyBudget) -> Game:
    return _k_norm_game(budget, math.inf, torch.ones_like(_ONE))


_ONE = torch.tensor([1.0, 0.0], dtype=torch.float64)
