"""Sessions for tests: of a given ledger, or with payments that are only noted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession


@dataclass(frozen=True, eq=False)
class Noted(FitSession):
    """Tells ``note`` of each payment: its event, level and count, and the part where there is one."""

    note: Callable[..., Any] = lambda *_: None

    def pay(
        self,
        event: Event,
        level: Level = Level.CERTIFIED,
        count: int = 1,
        *,
        charge: Charge | None = None,
        part: str = "",
    ) -> None:
        del charge
        self.note(*((part,) if part else ()), event, level, count)


def noted(noise: NoiseSource, note: Callable[..., Any]) -> Noted:
    """A session whose payments ``note`` hears of."""
    return Noted(noise, note=note)


def of_ledger(ledger: Ledger | None, block: str, noise: NoiseSource | None = None, **parts: Any) -> FitSession:
    """The session of a ledger, in the scope of a block."""
    return FitSession(noise or NoiseSource.system(), ledger=ledger, blocks=(block,), **parts)
