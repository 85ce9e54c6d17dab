"""The file of a ledger, in sqlite; what it may not forget; and the account of one of its blocks of records."""

import json
import math
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdpcate._chain import Chain, alone, chained
from torchdpcate._files import own_state
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.accounting import EventCount, compose
from torchdpcate.privacy.budget import PrivacyBudget, integer, number, some_delta
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event, event_from_dict
from torchdpcate.privacy.filters import ROUNDING, Filter, FilterCost, GaussianFilter, filter_from
from torchdpcate.privacy.guarantee import Level, weakest
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

LEDGER = "ledger.sqlite"
"""Name of a run's own ledger, in the curator's folder."""

_FORMAT, _VERSION = "torchdpcate ledger", 1
_COUNTS = ("id", "count", "planned", "reserved", "used")
_known: dict[Path, "Book"] = {}  # so that no line is parsed twice


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
        numbers = {name: getattr(self, name) for name in _COUNTS}
        what = {"block": self.block, "charge": self.charge.to_dict(), "event": self.event.to_dict()}
        return {**what, **numbers, "level": self.level.value, "cost": self.cost and self.cost._asdict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Entry":
        """Inverse of ``to_dict``."""
        identity, count, planned, reserved, used = (integer(name, values[name], least=0) for name in _COUNTS)
        if not used <= count <= planned <= reserved:
            raise InputError(f"count = {count}: used = {used}, planned = {planned}, reserved = {reserved} do not agree")
        event, level, cost = event_from_dict(values["event"]), Level.of(values["level"]), values["cost"]
        if cost is not None:
            cost = FilterCost(number("size", cost["size"]), some_delta("delta", cost["delta"]))
        charge = Charge.from_dict(values["charge"])
        return cls(identity, str(values["block"]), charge, event, count, planned, level, reserved, used, cost)


@dataclass(frozen=True)
class Book:
    """All that a ledger's file says.

    Its lines are a head and each change of an entry, none of which is ever written over. Their digests are chained.

    Attributes:
        blocks: Budget of each block.
        private: Whether the noise is private.
        filter: How charges count that were chosen after an output.
        unit: Who is protected; budgets and charges are by record all the same.
        id: Random name of the ledger, which a copy shares.
        entries: In the order of their charge.
        revision: How often it was changed.
        line: The last line.
        digest: SHA-256 of the digest before it and the line.

    Raises:
        InputError: No blocks, or a name, budget, filter or id that is not allowed.
    """

    blocks: Mapping[str, PrivacyBudget]
    private: bool
    filter: Filter
    unit: PrivacyUnit = RECORD
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    entries: tuple[Entry, ...] = ()
    revision: int = 0
    line: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        budgets = self.blocks.values()
        if not budgets or "total" in self.blocks or not all(isinstance(budget, PrivacyBudget) for budget in budgets):
            raise InputError(f"blocks = {dict(self.blocks)!r}: name at least one with a PrivacyBudget, none 'total'")
        if isinstance(self.filter, GaussianFilter) and not all(budget.delta for budget in budgets):
            raise InputError(f"filter = {self.filter}: needs blocks of a delta above 0; use filter=sums")
        if not isinstance(self.private, bool) or not re.fullmatch("[0-9a-f]{32}", self.id):
            raise InputError("private is not a truth value, or id not 32 digits")

    @property
    def head(self) -> dict[str, Any]:
        """What never changes, as plain types."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "id": self.id,
            "private": self.private,
            "filter": self.filter.config(),
            "blocks": {name: budget.to_dict() for name, budget in self.blocks.items()},
            "unit": self.unit.to_dict(),
        }

    @classmethod
    def from_head(cls, head: Mapping[str, Any]) -> "Book":
        """Return the book without entries of a head."""
        if (head["format"], head["version"]) != (_FORMAT, _VERSION):
            raise InputError(f"format {head['format']!r}, version {head['version']!r}")
        blocks = {name: PrivacyBudget.from_dict(budget) for name, budget in head["blocks"].items()}
        unit = PrivacyUnit.from_dict(head["unit"])
        return cls(blocks, head["private"], filter_from(head["filter"]), unit, str(head["id"])).begun()

    def begun(self) -> "Book":
        """Return the book without entries, whose line is its head."""
        return self._with(self.head, entries=(), revision=0, digest="")

    def changed(self, entry: Entry) -> "Book":
        """Return the book one revision later, with a new entry or in place of one that it has."""
        if not 0 <= entry.id <= len(self.entries) or entry.block not in self.blocks:
            raise InputError("its entries do not belong together")
        entries = (*self.entries[: entry.id], entry, *self.entries[entry.id + 1 :])
        return self._with(entry.to_dict(), entries=entries, revision=self.revision + 1, digest=self.digest)

    def _with(self, line: Mapping[str, Any], digest: str, **changes: Any) -> "Book":
        text = json.dumps(line, sort_keys=True, allow_nan=False)
        return replace(self, line=text, digest=chained(digest, text), **changes)

    def to_json(self) -> str:
        """Return the book as strict JSON."""
        content = {**self.head, "revision": self.revision, "digest": self.digest}
        return json.dumps({**content, "entries": [e.to_dict() for e in self.entries]}, indent=1, allow_nan=False)


def is_begun(path: Path) -> bool:
    """Return whether a file is there that a ledger was begun in; one that was killed meanwhile left it empty."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def read(path: Path) -> Book:
    """Return what a ledger's file says; of lines that this process knows only the last one is read.

    Args:
        path: The file, without links.

    Raises:
        InputError: It is missing, damaged, held by another process, or older than what was charged.
        OSError: It cannot be read.
    """
    chain = _chain(path)
    with alone, chain.database() as database:
        _known[path] = _book(chain, database)
        return _known[path]


def change(path: Path, changed: Callable[[Book], Book], new: Callable[[], Book] | None = None) -> Book:
    """Change a ledger's file; the change is on the disk before this returns, and no other process comes between.

    Args:
        path: The file, without links.
        changed: Returns a book, or one with another line; what it raises leaves all as it was.
        new: Makes the book of a file that is not there, whose folder is made too; None refuses it.

    Raises:
        InputError: See ``read``.
        OSError: It cannot be written. If the revision alone could not be noted, the change is in the file.
    """
    chain = _chain(path)
    own_state("ledgers")
    with alone, chain.database(make=new is not None) as database:
        database.execute("BEGIN IMMEDIATE")
        if new is not None and chain.is_new(database):
            old, book = None, new().begun()
            database.execute(chain.table)
        else:
            book = changed(old := _book(chain, database))
        if book is not old:
            chain.add(database, book.id, book.revision, book.line, book.digest)
        _known[path] = book
        return book


def _chain(path: Path) -> Chain:
    return Chain(path, "ledger", "the budget is not known")


def _book(chain: Chain, database: sqlite3.Connection) -> Book:
    """Return what the lines say, if they go on from every change that this user was told of."""
    try:
        chain.require_table(database)
        book = _known.get(chain.path)
        last = database.execute("SELECT digest FROM ledger ORDER BY revision DESC LIMIT 1").fetchone()
        if book is None or last != (book.digest,):
            book = _parsed(database.execute("SELECT revision, line, digest FROM ledger ORDER BY revision").fetchall())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError) as error:
        raise chain.damaged(error) from error  # an InputError is a ValueError
    chain.require_newest(database, book.id)
    return book


def _parsed(lines: Sequence[tuple[int, str, str]]) -> Book:
    book = Book.from_head(json.loads(lines[0][1]))
    for place, line in enumerate(lines):
        book = book.changed(Entry.from_dict(json.loads(line[1]))) if place else book
        if line != (place, book.line, book.digest):
            raise InputError("its lines are not those that were written: edited, reordered or cut")
    return book


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
