"""Blocks of records in a privacy statement, and what each was charged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import Event, event_from_dict
from torchdpcate.privacy.filters import Filter, FilterCost, cost_from
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.fields import (
    Check,
    check_fields,
    has_keys,
    is_cost,
    is_count,
    is_delta,
    is_level,
    is_mapping,
    is_text,
)

_CHARGE: dict[str, Check] = {
    **dict.fromkeys(("purpose", "mechanism", "part", "piece", "text"), is_text),
    "level": is_level,
    "event": is_mapping,
    "count": is_count,
    "later": is_mapping,
}
_BLOCK: dict[str, Check] = {
    "name": is_text,
    "n": is_count,
    "charges": has_keys("purpose", "level"),
    "epsilon": is_cost,
    "delta": is_delta,
    "naive_epsilon": is_cost,
    "level": is_level,
}


@dataclass(frozen=True)
class StatedCharge:
    """A charge as a privacy statement has it.

    Attributes:
        charge: What for.
        level: How far the claim is proved.
        event: What happened, once; None where nothing is claimed.
        count: How often; None where nothing is claimed.
        later: The filter that it passed, and what it counts there; None where its parameters were fixed before any
            output of the block.
    """

    charge: Charge
    level: Level
    event: Event | None = None
    count: int | None = None
    later: tuple[Filter, FilterCost] | None = None

    @property
    def purpose(self) -> Purpose:
        """What it is for."""
        return self.charge.purpose

    @property
    def words(self) -> str:
        """What it is for, in words for people to read."""
        return self.charge.words

    def is_release(self, mechanism: str, part: str | None = None) -> bool:
        """Whether it is for a release by a mechanism, or for a part of one.

        Args:
            mechanism: Name of the mechanism.
            part: The part, with all its pieces; None stands for any.
        """
        own = self.purpose is Purpose.RELEASE and self.charge.mechanism == mechanism
        return own and part in (None, self.charge.part)

    def to_dict(self) -> dict[str, Any]:
        """Return the charge as plain types."""
        stated: dict[str, Any] = {**self.charge.to_dict(), "level": self.level.value}
        if self.event is not None:
            stated |= {"event": self.event.to_dict(), "count": self.count}
        if self.later is not None:
            filter, cost = self.later
            stated["later"] = filter.cost_to_dict(cost)
        return stated

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "StatedCharge":
        """Inverse of ``to_dict``; other fields are not looked at.

        Raises:
            InputError: Fields that are not of their kind.
        """
        check_fields(fields, _CHARGE, "charge of the privacy statement")
        event = event_from_dict(fields["event"]) if "event" in fields else None
        later = cost_from(fields["later"]) if "later" in fields else None
        return cls(Charge.from_dict(fields), Level.of(fields["level"]), event, fields.get("count"), later)


@dataclass(frozen=True)
class Block:
    """A block of records in a privacy statement.

    Attributes:
        name: Its name.
        n: Its records, public.
        charges: What it was charged, in this order.
        epsilon: What all of it costs; None where nothing is claimed.
        delta: At which delta; None where nothing is claimed.
        naive_epsilon: What it costs by adding epsilons; None where nothing is claimed.
        level: The weakest of its charges; None where nothing is claimed.
    """

    name: str
    n: int
    charges: tuple[StatedCharge, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    naive_epsilon: float | None = None
    level: Level | None = None

    def of(self, *purposes: Purpose) -> list[StatedCharge]:
        """Return the charges of these purposes."""
        return [charge for charge in self.charges if charge.purpose in purposes]

    def to_dict(self) -> dict[str, Any]:
        """Return the block as plain types; what it cost is left out where nothing is claimed."""
        stated = {"name": self.name, "n": self.n, "charges": [charge.to_dict() for charge in self.charges]}
        costs = {key: getattr(self, key) for key in ("epsilon", "delta", "naive_epsilon", "level")}
        return {**stated, **{key: value for key, value in costs.items() if value is not None}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Block":
        """Inverse of ``to_dict``; other fields are not looked at.

        Raises:
            InputError: Fields that are not of their kind.
        """
        check_fields(fields, _BLOCK, "block of the privacy statement")
        charges = tuple(StatedCharge.from_dict(charge) for charge in fields["charges"])
        level = None if fields.get("level") is None else Level.of(fields["level"])
        costs = {key: fields.get(key) for key in ("epsilon", "delta", "naive_epsilon")}
        return cls(fields["name"], fields["n"], charges, **costs, level=level)
