"""The file of a ledger: strict JSON, written completely or not at all, its entries chained by digests."""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, number, some_delta
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event, event_from_dict
from torchdpcate.privacy.filters import Filter, FilterCost, filter_from
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

_FORMAT = "torchdpcate ledger"
_VERSION = 1
_NAMES = {"format", "version", "id", "revision", "private", "filter", "blocks", "entries", "chain"}
_UNIT = "unit"  # of persons alone
_COUNTS = ("id", "count", "planned", "reserved", "used")


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Attributes:
        id: Its number, from 0.
        block: The block of records that is charged.
        charge: What it was for.
        event: What happened, once.
        count: How often it happened so far; never too small.
        planned: How often it may happen; an entry with ``count < planned`` is open.
        level: How far the claim is proved.
        reserved: How often it might have happened, which no later charge may use again.
        used: How often it happened for certain; ``count`` never falls below it.
        cost: What it counts in the block's filter; None where its parameters were fixed before any output.
    """

    id: int
    block: str
    charge: Charge
    event: Event
    count: int
    planned: int
    level: Level
    reserved: int
    used: int
    cost: FilterCost | None = None

    @property
    def label(self) -> str:
        """What it was for, in words for people to read."""
        return self.charge.words

    @property
    def fixed(self) -> bool:
        """Whether its parameters were fixed before any output of its block."""
        return self.cost is None

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for the file."""
        fields = {name: getattr(self, name) for name in ("id", "block", "count", "planned")}
        cost = None if self.cost is None else {"size": self.cost.size, "delta": self.cost.delta}
        more = {"reserved": self.reserved, "used": self.used, "cost": cost}
        event = {"event": self.event.to_dict(), "level": self.level.value}
        return {**fields, "charge": self.charge.to_dict(), **event, **more}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Entry":
        """Inverse of ``to_dict``."""
        identity, count, planned, reserved, used = (integer(name, values[name], least=0) for name in _COUNTS)
        if not used <= count <= planned <= reserved:
            raise InputError(
                f"count = {count}: goes from used = {used} to planned = {planned} <= reserved = {reserved}"
            )
        event, level, cost = event_from_dict(values["event"]), Level.of(values["level"]), values["cost"]
        if cost is not None:
            cost = FilterCost(number("size", cost["size"]), some_delta("delta", cost["delta"]))
        charge = Charge.from_dict(values["charge"])
        return cls(identity, str(values["block"]), charge, event, count, planned, level, reserved, used, cost)


@dataclass(frozen=True)
class Book:
    """All that a ledger's file says.

    Attributes:
        blocks: Budget of each block.
        private: Whether the noise is private.
        filter: How charges count that were chosen after an output.
        entries: In the order of their charge.
        id: Random name of the ledger, which a copy shares.
        revision: How often it was changed.
        unit: Who is protected; budgets and charges are by record all the same.
    """

    blocks: Mapping[str, PrivacyBudget]
    private: bool
    filter: Filter
    entries: tuple[Entry, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    revision: int = 0
    unit: PrivacyUnit = RECORD

    def changed(self, entries: tuple[Entry, ...]) -> "Book":
        """Return the book with other entries, one revision later."""
        return replace(self, entries=entries, revision=self.revision + 1)

    @property
    def digest(self) -> str:
        """The last digest of the chain, which depends on all that the file says."""
        return self._chain()[-1]

    def dump(self) -> str:
        """Return the book as strict JSON."""
        content = {**self._head(), "entries": [entry.to_dict() for entry in self.entries], "chain": self._chain()}
        return json.dumps(content, indent=1, allow_nan=False)

    def _head(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "id": self.id,
            "revision": self.revision,
            "private": self.private,
            "filter": self.filter.config(),
            "blocks": {name: budget.to_dict() for name, budget in self.blocks.items()},
            **({_UNIT: self.unit.to_dict()} if self.unit.is_person else {}),
        }

    def _chain(self) -> list[str]:
        """Return SHA-256 of the head, and then of each entry with the digest before it."""
        digests = [""]
        for part in (self._head(), *(entry.to_dict() for entry in self.entries)):
            text = json.dumps(part, sort_keys=True, allow_nan=False)
            digests.append(hashlib.sha256(f"{digests[-1]}{text}".encode()).hexdigest())
        return digests[1:]


def parse(path: Path) -> Book:
    """What a ledger's file says; an ``InputError`` if it is not sound."""
    try:
        found = os.stat(path)
    except OSError:
        found = None
    if found is None or not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
        raise InputError(f"ledger {path}: there is no such file; restore it, the budget is not known")
    if found.st_nlink > 1:
        raise InputError(
            f"ledger {path}: has {found.st_nlink} names (hard links), each would count alone; remove the others"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        if content["format"] != _FORMAT or content["version"] != _VERSION:
            raise InputError(f"format {content['format']!r}, version {content['version']!r}")
        book = _book(content)
        if [e.id for e in book.entries] != list(range(len(book.entries))):
            raise InputError("its entries do not belong together")
        return book
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]  # an InputError is a ValueError
        raise InputError(f"ledger {path}: damaged or of another format ({why}); restore it from a copy") from error


def _book(content: Mapping[str, Any]) -> Book:
    if content.keys() - {_UNIT} != _NAMES:
        raise InputError(f"its names are not {', '.join(sorted(_NAMES))}")
    entries = tuple(map(Entry.from_dict, content["entries"]))
    revision, identity = integer("revision", content["revision"], least=0), str(content["id"])
    rule, unit = filter_from(content["filter"]), PrivacyUnit.from_dict(content.get(_UNIT, {}))
    book = Book(_blocks(content), _private(content), rule, entries, identity, revision, unit)
    if any(e.block not in book.blocks for e in entries):
        raise InputError("its entries do not belong together")
    if book._chain() != content["chain"] or not identity:
        raise InputError("its entries are not those that were written: edited, reordered or cut")
    return book


def _blocks(content: Mapping[str, Any]) -> dict[str, PrivacyBudget]:
    return {name: PrivacyBudget.from_dict(budget) for name, budget in content["blocks"].items()}


def _private(content: Mapping[str, Any]) -> bool:
    if not isinstance(content["private"], bool):
        raise InputError("private is not a truth value")
    return content["private"]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file; of an entry that is there twice, one would be forgotten."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise InputError("an entry is there twice")
    return result
