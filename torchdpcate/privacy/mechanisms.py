"""Additive noise mechanisms for a vector of numbers, safe in floating point."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, laplace_scale
from torchdpcate.privacy.events import Event, GaussianEvent, PureEvent
from torchdpcate.privacy.noise import NoiseSource


class AdditiveMechanism(ABC):
    """A mechanism that rounds a value to the public grid of its noise and adds the noise.

    Rounding moves each number by up to half a grid step on either data set, so the noise answers for a
    sensitivity enlarged by ``p ** (1 / norm)`` steps, p the number of values (`released_scale`).

    Attributes:
        norm: 1 or 2, the norm of the sensitivity.
        sensitivity: Replace-one sensitivity of the value.
        scale: Noise scale before that enlargement.
    """

    norm: int
    sensitivity: float
    scale: float

    @property
    @abstractmethod
    def event(self) -> Event:
        """The event to charge to a ledger before `release`."""

    @abstractmethod
    def _noise(self, size: int, scale: float, noise: NoiseSource) -> Tensor: ...

    def released_scale(self, size: int) -> float:
        """Noise scale of a release of ``size`` numbers, rounding included; public.

        Raises:
            InputError: If there are so many numbers that rounding would matter.
        """
        # a grid step is at most 2^-20 of the scale that it is chosen for, which is the enlarged one
        share = size ** (1 / self.norm) * 2.0**-20 * self.scale / self.sensitivity
        if share > 0.1:
            raise InputError(f"size = {size}: too many numbers for noise of {self.scale:g}; release fewer")
        return self.scale / (1 - share)

    def release(self, value: Tensor, noise: NoiseSource) -> Tensor:
        """The value with noise; charge `event` first.

        Args:
            value: Any shape; finite.
            noise: Where the noise comes from.

        Returns:
            float64 on the CPU, of the value's shape.

        Raises:
            InputError: If the value is not finite.
        """
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"value of shape {tuple(value.shape)}: not finite; nothing can be released")
        exact = value.detach().cpu().double()
        scale = self.released_scale(exact.numel())
        step = noise.grid(scale)
        drawn = self._noise(exact.numel(), scale, noise)
        return torch.round(exact / step) * step + drawn.reshape(exact.shape)


class GaussianMechanism(AdditiveMechanism):
    """Gaussian noise by the analytic calibration (Balle & Wang 2018).

    Guarantee: certified (epsilon, delta) if ``sensitivity`` bounds the l2 distance of the values of any two
    neighbouring data sets.

    Args:
        budget: What one release may cost; delta > 0.
        sensitivity: Replace-one l2 sensitivity.

    Raises:
        InputError: If delta is 0 or the sensitivity is not positive.

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

    @property
    def event(self) -> GaussianEvent:
        """`GaussianEvent` of the calibrated multiplier."""
        return GaussianEvent(analytic_gaussian_sigma(self.budget.epsilon, self.budget.delta))

    def _noise(self, size: int, scale: float, noise: NoiseSource) -> Tensor:
        return noise.gaussian(size, scale)


class LaplaceMechanism(AdditiveMechanism):
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

    def __init__(self, epsilon: float, sensitivity: float) -> None:
        self.epsilon = positive("epsilon", epsilon)
        self.sensitivity = positive("sensitivity", sensitivity)
        self.scale = laplace_scale(self.epsilon, self.sensitivity)

    @property
    def event(self) -> PureEvent:
        """`PureEvent` of this epsilon."""
        return PureEvent(self.epsilon)

    def _noise(self, size: int, scale: float, noise: NoiseSource) -> Tensor:
        return noise.laplace(size, scale)
