"""How a linear predictor is fitted privately: the interface of stage one and of the outcome model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from torchdpcate.erm.losses import Loss
from torchdpcate.erm.records import Records, Target
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Condition, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.registry import Registry


@dataclass(frozen=True, eq=False)
class PreparedFit:
    """A private fit about to run; everything here but ``draw`` is public.

    Attributes:
        event: What one run costs, ``count`` times.
        public: Public constants, for the statement.
        draw: (records, target, noise, runs) -> coefficients [runs, p], float64: independent runs on one data set, or
            one run on each of several.
        imbalance: Standard deviation of each entry of sum l'(g) phi at the released coefficients, phi the features
            scaled to largest entry 1: how far they are from stationary, by the noise. For a balancing loss it is the
            imbalance that the noise leaves (theory note, section 3.1).
        ridge: Ridge of the sum, which shrinks: the mean of that gradient is -ridge * theta (in psi's scale).
        level: Of the guarantee.
        conditions: On which it rests.
        count: How often the event happens in one run.
        warning: What a user must know before the draw; empty where there is nothing.
    """

    event: Event
    public: dict[str, Any]
    draw: Callable[[Records, Target, NoiseSource, int], Tensor]
    imbalance: float
    ridge: float
    level: Level = Level.CERTIFIED
    conditions: tuple[Condition, ...] = field(default=())
    count: int = 1
    warning: str = ""


LINEAR_FITS = Registry("effect/fitter")
"""Private linear fits, by name."""


class PrivateLinearFit(ABC):
    """A mechanism that fits the coefficients of a linear predictor; its constructor takes public settings.

    Attributes:
        balancing_only: Whether it fits no other loss than balancing ones.
        level: Of its guarantee.
        conditions: On which it rests.
    """

    name: ClassVar[str]
    balancing_only: ClassVar[bool] = False
    level: ClassVar[Level] = Level.CERTIFIED
    conditions: ClassVar[tuple[Condition, ...]] = ()

    @abstractmethod
    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        """Calibrate the mechanism on public facts; everything that can be refused is refused here.

        Args:
            loss: Of a record.
            n: Number of records.
            features: Feature map, set up: ||psi|| <= 1, |psi_j| <= ``largest_entry``.
            budget: What one run may cost; a pure mechanism ignores its delta.

        Raises:
            InputError: Settings that cannot be released.
        """

    @classmethod
    @abstractmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event, count: int, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        """Return the fit that has these settings among its public constants and was charged this.

        Verification compares its constants, its noise and its charge with those that are stated.

        Args:
            public: Public constants as stated, by the names of ``PreparedFit.public``; each may be forged.
            event: What was charged, so often.
            count: How often.
            loss: Of a record.
            n: Number of records.
            features: Feature map.

        Raises:
            InputError: No fit has these settings and this charge.
        """
