"""What a statement of an average effect tells in numbers: public constants, and what was paid for each part."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.recompute import CLOSE, FAR, compared
from torchdpcate.privacy.budget import as_number
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism
from torchdpcate.release.average_effect import AverageEffectRelease

RECORDS, NUISANCE = "records", "nuisance"
"""The block that is released from, and that which trains nuisances."""


@dataclass(frozen=True, eq=False)
class AverageFacts:
    """A released average effect, and its estimand and clip.

    Attributes:
        release: The release; it claims something.
        estimand: Estimand and clip, as its statement tells them.
    """

    release: AverageEffectRelease
    estimand: Estimand

    @property
    def n(self) -> int:
        """Number of records that are released from."""
        return next(block.n for block in self.release.privacy.blocks if block.name == RECORDS)

    @property
    def balancing(self) -> bool:
        """Whether the weights are fitted by the balancing loss."""
        return self.release.privacy.public.get("loss") == "balancing"

    def number(self, name: str) -> float:
        """Return a public constant.

        Raises:
            KeyError: There is none of that name.
            TypeError: It is no number.
        """
        return as_number(self.release.privacy.public[name])

    def epsilon(self, part: str, piece: str = "") -> float:
        """Return the epsilon of a part of the release itself, as a rule one charge.

        Args:
            part: The part.
            piece: Which number of it.

        Raises:
            ValueError: Nothing of that name was charged, or not at a pure epsilon.
        """
        charge, total = Charge(Purpose.RELEASE, self.release.privacy.mechanism, part, piece), 0.0
        paid = [stated for stated in self.release.privacy.charges if stated.charge == charge]
        for stated in paid:
            if not isinstance(stated.event, PureEvent) or stated.count is None:
                raise ValueError(f"{part} was not paid at a pure epsilon")
            total += stated.event.epsilon * stated.count
        if not paid:
            raise ValueError(f"{part} was not paid")
        return total

    def scale(
        self, part: str, mechanism: AdditiveMechanism, size: int = 1, least: bool = False, name: str = ""
    ) -> Iterator[str]:
        """Return problems of a public scale of noise against that of the mechanism at the price that was paid.

        Args:
            part: What was bought.
            mechanism: Its noise.
            size: How many numbers it adds noise to at once.
            least: Whether more noise than that is in order, because not all is public that it depends on.
            name: Of the public scale, if not ``scale_`` and the part.
        """
        yield from compared(part, self.number(name or f"scale_{part}"), mechanism.released_scale(size), least)

    def far(self, name: str, most: float, scale: float) -> Iterator[str]:
        """Return problems of a released number beyond what records and noise can make it.

        Args:
            name: Of the number.
            most: Largest absolute value without noise.
            scale: Of its noise.
        """
        if not abs(self.release.numbers[name]) <= most * (1 + CLOSE) + FAR * scale:
            yield f"the number {name!r} is larger than records and noise can make it"
