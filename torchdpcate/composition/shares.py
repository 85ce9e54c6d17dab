"""How the budget of one composition is divided among its steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import DPSGDEvent, Event, GaussianEvent, PureEvent

StepEvent = GaussianEvent | PureEvent
"""What a step of a composition may be."""

_INWARDS = 1e-9  # of the shares: the accountant's rounding never exceeds the budget that they divide


def total_mu(budget: PrivacyBudget | None) -> float:
    r"""Return mu of the Gaussian that costs all of a budget; infinite without privacy.

    .. math:: \delta = \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon\,\Phi(-\mu/2 - \epsilon/\mu)

    Args:
        budget: (epsilon, delta) with delta > 0.

    Raises:
        InputError: delta = 0, which no Gaussian keeps.

    Example:
        >>> round(total_mu(PrivacyBudget(1.0, 1e-5)), 10)
        0.2680511232
    """
    return math.inf if budget is None else 1 / analytic_gaussian_sigma(budget.epsilon, budget.delta)


def squared_mu(event: Event) -> float:
    """Return mu^2 of a Gaussian event.

    Raises:
        TypeError: It is none.

    Example:
        >>> squared_mu(GaussianEvent(4.0))
        0.0625
    """
    if isinstance(event, DPSGDEvent) and event.sampling_rate == 1:
        return (2 / event.noise_multiplier) ** 2
    if not isinstance(event, GaussianEvent):
        raise TypeError(f"{event} is no Gaussian")
    return 1 / event.noise_multiplier**2


@dataclass(frozen=True)
class Shares:
    r"""Shares of mu^2, one a step: Gaussian events on the same records cost :math:`\mu^2 = \sum_k \mu_k^2`.

    The shares are fixed before any output; the steps may look at the outputs before them (Dong, Roth & Su 2022,
    corollary 3.3).

    Attributes:
        total: mu of all steps together; infinite without privacy.
        shares: Share of each step, positive, together at most one.

    Raises:
        InputError: Shares that are not positive, or add up to more than one.

    Example:
        >>> shares = Shares(0.5, {"moments": 0.36, "head": 0.64})
        >>> round(shares.of("moments"), 6), round(shares.event("head").noise_multiplier, 6)
        (0.3, 2.5)
    """

    total: float
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        total = math.fsum(self.shares.values())
        if not all(share > 0 for share in self.shares.values()) or total > 1 + 1e-9:
            raise InputError(f"shares = {dict(self.shares)}: give positive shares of at most 1 together")

    def of(self, step: str) -> float:
        """Return mu of a step."""
        return self.total * math.sqrt(self.shares[step])

    def deviation(self, step: str, size: int = 1) -> float:
        """Return the standard deviation of a number's noise over the sensitivity, if a step is one event.

        Args:
            step: The step.
            size: How many numbers the event releases.
        """
        return 1 / self.of(step)

    def cost(self, event: Event) -> float:
        """Return what an event takes of what the steps divide: its mu^2.

        Raises:
            TypeError: It is no Gaussian.
        """
        return squared_mu(event)

    def due(self, step: str) -> float:
        """Return what all events of a step cost together."""
        return self.of(step) ** 2

    def event(self, step: str, part: float = 1.0, count: int = 1) -> StepEvent:
        """Return one of ``count`` equal events that share ``part`` of a step.

        Args:
            step: The step.
            part: Share of the step.
            count: Number of events.
        """
        return GaussianEvent(math.sqrt(count / (part * (1 - _INWARDS))) / self.of(step))


@dataclass(frozen=True)
class EpsilonShares(Shares):
    r"""Shares of epsilon, one a step: pure events on the same records cost :math:`\epsilon = \sum_k \epsilon_k`.

    Attributes:
        total: epsilon of all steps together.
        shares: Share of each step, positive, together at most one.

    Example:
        >>> shares = EpsilonShares(2.0, {"moments": 0.25, "head": 0.75})
        >>> shares.of("head"), round(shares.event("moments", count=2).epsilon, 6)
        (1.5, 0.25)
    """

    def of(self, step: str) -> float:
        """Return epsilon of a step."""
        return self.total * self.shares[step]

    def deviation(self, step: str, size: int = 1) -> float:
        """See ``Shares``: K-norm noise in the Euclidean norm, which is Laplace noise for one number."""
        return math.sqrt(size + 1) / self.of(step)

    def cost(self, event: Event) -> float:
        """See ``Shares``: its epsilon."""
        if not isinstance(event, PureEvent):
            raise TypeError(f"{event} is not pure")
        return event.epsilon

    def due(self, step: str) -> float:
        """See ``Shares``."""
        return self.of(step)

    def event(self, step: str, part: float = 1.0, count: int = 1) -> PureEvent:
        """See ``Shares``."""
        return PureEvent(self.of(step) * part * (1 - _INWARDS) / count)
