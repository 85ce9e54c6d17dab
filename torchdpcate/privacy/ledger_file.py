"""The file of a ledger, its entries chained by digests, and the account of one of its blocks of records."""

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.accounting import EventCount, compose
from torchdpcate.privacy.budget import PrivacyBudget, integer, number, some_delta
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event, event_from_dict
from torchdpcate.privacy.filters import ROUNDING, Filter, FilterCost, filter_from
from torchdpcate.privacy.guarantee import Level, weakest
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
    except (OSError, ValueError):  # a name that no file can have
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


@dataclass(frozen=True)
class BlockAccount:
    """The entries of one block, read against its budget and its ledger's filter.

    Attributes:
        block: Name of the block.
        budget: Its budget.
        filter: How its later charges count.
        entries: Its entries, in the order of their charge.
    """

    block: str
    budget: PrivacyBudget
    filter: Filter
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, book: Book, block: str, entries: Sequence[Entry]) -> "BlockAccount":
        """Return the account of a block of a book, with these of all entries in place of the book's own."""
        return cls(block, book.blocks[block], book.filter, tuple(e for e in entries if e.block == block))

    @property
    def used(self) -> bool:
        """Whether anything that depends on the block may have been seen."""
        return any(e.count or e.cost is not None for e in self.entries)

    @property
    def costs(self) -> list[FilterCost]:
        """What the later charges count in the filter."""
        return [e.cost for e in self.entries if e.cost is not None]

    def fixed(self, reserved: bool) -> list[EventCount]:
        """Return the charges whose parameters were fixed before any output, as reserved or as used."""
        return [(e.event, e.reserved if reserved else e.count) for e in self.entries if e.fixed]

    @property
    def reserve(self) -> FilterCost | None:
        """What all later charges may come to beside the fixed ones; None if nothing."""
        return self.filter.reserve(self.fixed(reserved=True), self.budget)

    @property
    def left(self) -> FilterCost | None:
        """What the filter still gives; None if nothing."""
        reserve = self.reserve
        return None if reserve is None else self.filter.left(reserve, self.costs)

    def remaining(self, gaussian: bool = False) -> PrivacyBudget | None:
        """Return what is left of the budget; see ``Ledger.remaining``."""
        if not any(e.reserved for e in self.entries):
            return self.budget  # the first charge is fixed, whatever it is
        left = self.left
        return None if left is None else self.filter.budget(left, self.budget, gaussian)

    def cost(self, new: Entry) -> FilterCost:
        """Return what a later charge counts in the filter.

        Raises:
            BudgetError: The filter cannot count such an event.
        """
        cost = self.filter.cost(new.event, new.planned, self.left or FilterCost(0.0, 0.0))
        if cost is None:
            raise self._refusal(new, f"has filter={self.filter.kind}, in which it would count without bound")
        return cost

    def require_affordable(self, new: Entry) -> None:
        """Refuse an entry of this account, the last change to it, with which the block would overspend.

        Raises:
            BudgetError: It would; the message says what is left without the entry.
        """
        if not self.filter.takes(new.event):
            raise self._refusal(new, f"has filter={self.filter.kind} for Gaussian noise alone")
        before = BlockAccount(self.block, self.budget, self.filter, tuple(e for e in self.entries if e.id != new.id))
        if new.cost is None:
            cost = compose(self.fixed(reserved=True), self.budget.delta)
            if cost > self.budget.epsilon:
                limit = f"{self.budget.epsilon:.6g} at delta = {self.budget.delta:.6g}"
                raise before._refusal(new, f"would spend epsilon = {cost:.6g} of {limit}")
            return
        reserve = self.reserve
        if reserve is None or not self.filter.fits(reserve, self.costs):
            size, delta = new.cost
            raise before._refusal(new, f"counts {self.filter.unit} = {size:.6g}, delta = {delta:.6g} for it")

    def _refusal(self, new: Entry, why: str) -> BudgetError:
        left = self.remaining()
        what = "nothing" if left is None else f"epsilon = {left.epsilon:.6g}, delta = {left.delta:.6g}"
        return BudgetError(
            f"charge {new.label!r} of {new.planned} x {new.event}: block {self.block!r} {why}; {what} is left: "
            "use more noise or fewer steps, or raise the budget"
        )

    def spent(self, private: bool) -> dict[str, Any]:
        """Return what was spent, see ``Ledger.spent``.

        Args:
            private: Whether the noise charged for is private.
        """
        used = tuple(e for e in self.entries if e.count)
        level = weakest(e.level for e in used)
        if level is Level.HEURISTIC or (self.entries and not private):
            return {"epsilon": None, "delta": None, "naive_epsilon": None, "level": Level.HEURISTIC.value}
        fixed = [(e.event, e.count) for e in used if e.fixed]
        costs, filter, budget = self.costs, self.filter, self.budget
        reserve = self.reserve if costs else None
        if costs and (reserve is None or not filter.fits(reserve, costs)):
            # of a file by another hand: accepted by no filter, so that other outputs may have had all of the reserve
            total, least = filter.total(costs), reserve or FilterCost(0.0, 0.0)
            costs = [FilterCost(max(total.size, least.size), max(total.delta, least.delta))]
        pure = filter.compose(fixed, costs, 0.0)
        # pure events stay pure where their sum fits the budget; nothing at all costs nothing
        delta = 0.0 if pure <= budget.epsilon * (1 + ROUNDING) else budget.delta
        epsilon = pure if delta == 0 else filter.compose(fixed, costs, delta)
        if epsilon <= budget.epsilon * (1 + ROUNDING):
            epsilon = min(epsilon, budget.epsilon)
        return {
            "epsilon": _finite(epsilon),
            "delta": delta,
            "naive_epsilon": _finite(filter.naive(fixed, costs, delta)) if used or costs else 0.0,
            "level": level.value,
        }


def total_of(accounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the largest of each number of what blocks spent, and the weakest level."""

    def largest(key: str) -> float | None:
        values = [account[key] for account in accounts]
        return None if None in values else max(values)

    level = weakest(Level(account["level"]) for account in accounts)
    return {**{key: largest(key) for key in ("epsilon", "delta", "naive_epsilon")}, "level": level.value}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
