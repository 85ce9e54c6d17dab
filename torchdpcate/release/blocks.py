"""Blocks of records in a privacy statement, and what each was charged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import LEAST_DELTA
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import Event, event_from_dict
from torchdpcate.privacy.filters import Filter, FilterCost, cost_from
from torchdpcate.privacy.guarantee import Level

Check = Callable[[Any], bool]

_MOST_RECORDS, _MOST_EPSILON, _LARGEST = 2**53, 1e9, 1e100  # beyond any release: what a plan is made of stays finite
_LONGEST_TEXT, _LONGEST_LIST = 10_000, 10_000  # the longest list names candidates


def check_fields(fields: Any, checks: Mapping[str, Check], what: str) -> None:
    """Refuse fields that cannot be what their names say; fields without a check are ignored.

    Args:
        fields: As read from a file.
        checks: Whether a value is of its field's kind, by the name of the field.
        what: What the fields belong to, for the message.

    Raises:
        InputError: Names the field.

    Example:
        >>> check_fields({"n": "many"}, {"n": is_count}, "privacy statement")
        Traceback (most recent call last):
        torchdpcate.errors.InputError: privacy statement: 'n' is 'many', not of its kind
    """
    if not isinstance(fields, Mapping):
        raise InputError(f"{what}: {_shortened(fields)} has no fields")
    for name, value in fields.items():
        if name in checks and not checks[name](value):
            raise InputError(f"{what}: {name!r} is {_shortened(value)}, not of its kind")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_text(value: Any) -> bool:
    """Whether it is text in one line, with nothing in it that a terminal would obey."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and is_plain(value)


def is_count(value: Any) -> bool:
    """Whether it is an integer from 0 to 2^53, the most that is exact in float64."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_RECORDS


def is_number(value: Any) -> bool:
    """Whether it is a number of at most 1e100."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def is_cost(value: Any) -> bool:
    """Whether it is nothing, or a number from 0 to 1e9."""
    return value is None or (is_number(value) and 0 <= value <= _MOST_EPSILON)


def is_delta(value: Any) -> bool:
    """Whether it is nothing, 0, or a number in [1e-30, 1)."""
    return is_cost(value) and (not value or LEAST_DELTA <= value < 1)


def is_level(value: Any) -> bool:
    """Whether it names a ``Level``."""
    return isinstance(value, str) and value in list(Level)


def is_list_of_text(value: Any) -> bool:
    """Whether it is a list of texts in one line each, of at most 10,000."""
    return isinstance(value, list) and len(value) <= _LONGEST_LIST and all(map(is_text, value))


def is_facts(value: Any) -> bool:
    """Whether it maps names to words, numbers, truth values, nothing, or lists of at most 10,000 of these."""
    if not (isinstance(value, dict) and all(map(is_text, value))):
        return False
    if any(isinstance(entry, list) and len(entry) > _LONGEST_LIST for entry in value.values()):
        return False
    flat = [v for entry in value.values() for v in (entry if isinstance(entry, list) else [entry])]
    return all(v is None or isinstance(v, bool) or is_number(v) or is_text(v) for v in flat)


def is_text_by_name(value: Any) -> bool:
    """Whether it maps names to texts."""
    return isinstance(value, dict) and is_list_of_text([*value, *value.values()])


def has_keys(*names: str) -> Check:
    """Return the check that a value is a list of mappings with these keys."""

    def check(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(v, dict) and v.keys() >= set(names) for v in value)

    return check


def is_mapping(value: Any) -> bool:
    """Whether it is a JSON object."""
    return isinstance(value, dict)


def is_bool(value: Any) -> bool:
    """Whether it is true or false."""
    return isinstance(value, bool)


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
