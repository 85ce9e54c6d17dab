"""A private step: it charges its event, then adds the noise that the event needs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.batch_sums import BATCH, most_additions
from torchdpcate.composition.shares import EpsilonShares, Shares, StepEvent
from torchdpcate.errors import InputError
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, KNormMechanism, LaplaceMechanism
from torchdpcate.privacy.session import FitSession

_FINE = 2.0**-39  # of a noise scale: twice the fine grid's step
_ROUNDING = 2.0**-52  # of a float64, twice what one operation errs by


def summation_error(n: int, bound: float, batch: int | None = None) -> float:
    r"""Return how far two floating-point sums of n numbers within [-bound, bound] are off together.

    .. math:: 2 \gamma_k\, n B, \quad \gamma_k \le k\, 2^{-52}

    Higham (2002), sections 3.1 and 4.2; twice what sums alone need, for the products that are summed. It is added to
    what one record moves a sum.

    Args:
        n: Numbers.
        bound: B, of each.
        batch: How many are summed at once, see ``most_additions``, which k is; None: any order, so that k is n.

    Example:
        >>> summation_error(2**26, 1.0), summation_error(2**26, 1.0, batch=2**12)
        (2.0, 0.0006103515625)
    """
    return 2 * most_additions(n, batch) * n * _ROUNDING * bound


@dataclass(frozen=True, eq=False)
class NoisySteps:
    """The steps of a composition: each is charged to the session before its noise is drawn.

    Attributes:
        session: Scope of the records' block, and of what is charged for. Without a budget nothing is charged and
            no noise is added.
        shares: Share of each step.
        batch: How many records a sum over all of them takes at once, public; None: they are added in any order.
    """

    session: FitSession
    shares: Shares
    batch: int | None = BATCH

    @property
    def private(self) -> bool:
        """Whether there is any noise."""
        return math.isfinite(self.shares.total)

    @property
    def pure(self) -> bool:
        """Whether all events are pure."""
        return isinstance(self.shares, EpsilonShares)

    def rounding(self, n: int, bound: float) -> float:
        """Return ``summation_error`` of this composition's sums of n numbers within [-bound, bound]."""
        return summation_error(n, bound, self.batch)

    def pay(self, step: str, part: float = 1.0, count: int = 1) -> StepEvent:
        """Charge ``count`` equal events that share ``part`` of a step, and return one; not without privacy."""
        event = self.shares.event(step, part, count)
        self.session.pay(event, count=count, part=step)
        return event

    def noisy(self, values: Tensor, sensitivity: float, event: StepEvent) -> Tensor:
        """Return values [p] with the noise of an event that was charged, float64 on the CPU.

        Args:
            values: What is asked of the records.
            sensitivity: How far one record moves them, in the l2 norm.
            event: As ``pay`` returned it.
        """
        mechanism = mechanism_of(event, sensitivity, values.numel())
        return self.session.noise.released(mechanism.add_noise(values.detach()[None], self.session.noise)[0])

    def noisy_gradient(self, values: Tensor, sensitivity: float, event: StepEvent) -> Tensor:
        """Return values [p] with noise on a grid 2^20 times finer, as DP-SGD has it: fast for thousands of numbers.

        Arguments are those of ``noisy``, or values of independent runs, [runs, p]; the grid's rounding is part of the
        sensitivity.
        """
        if isinstance(event, PureEvent):
            return self.noisy(values, sensitivity, event)
        values, noise = values.detach().cpu().double(), self.session.noise
        rounding = gradient_rounding(event, values.shape[-1])
        scale = event.noise_multiplier * sensitivity * (1 + rounding)
        step = noise.fine_grid(scale)
        return noise.released(
            torch.round(values / step) * step + noise.fine_gaussian(values.numel(), scale).view_as(values)
        )

    def release(self, step: str, values: Tensor, sensitivity: float) -> Tensor:
        """Charge a step's event, and return values [p] with its noise."""
        if not self.private:
            return values.detach().cpu().double()
        return self.noisy(values, sensitivity, self.pay(step))

    def scale(self, step: str, sensitivity: float, size: int = 1) -> float:
        """Return the standard deviation of each number's noise if a step is one event; zero without privacy.

        Args:
            step: The step.
            sensitivity: Of the numbers, in the l2 norm.
            size: How many numbers there are.
        """
        return sensitivity * self.shares.deviation(step, size) if self.private else 0.0

    def count(self, step: str, chosen: Tensor, event: GaussianEvent) -> float:
        """Return a noisy number of chosen records, of sensitivity one."""
        return self.noisy(chosen.sum(dtype=torch.float64)[None], 1.0, event).item()


def gradient_rounding(event: StepEvent, size: int) -> float:
    """Return how far rounding to their noise's grid moves ``size`` numbers at most, over their sensitivity.

    Raises:
        InputError: So far that it would matter.
    """
    assert isinstance(event, GaussianEvent)
    found = math.sqrt(size) * event.noise_multiplier * _FINE
    if found > 1:
        raise InputError(f"size = {size}: too many numbers for noise of {event.noise_multiplier:g}")
    return found


def mechanism_of(event: StepEvent, sensitivity: float, size: int) -> AdditiveMechanism:
    """Return what adds an event's noise to ``size`` numbers that one record moves so far in the l2 norm."""
    if isinstance(event, GaussianEvent):
        return GaussianMechanism.of_event(event, sensitivity)
    return LaplaceMechanism(event.epsilon, sensitivity) if size == 1 else KNormMechanism(event.epsilon, sensitivity)
