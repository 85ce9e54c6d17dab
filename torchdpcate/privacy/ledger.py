"""The ledger: what each block of records was charged, written to disk before any noise is used."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdpcate._chain import alone
from torchdpcate._text import plain
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.filters import Filter, make_filter
from torchdpcate.privacy.guarantee import Level, weakest
from torchdpcate.privacy.ledger_file import BlockAccount, Book, Entry, change, read, total_of
from torchdpcate.privacy.unit import RECORD, PrivacyUnit
from torchdpcate.registry import refuse_strings


class Ledger:
    """Privacy accounts of disjoint blocks of records.

    Across blocks charges compose in parallel, because a record is in one block and replacing it leaves the others
    alone: the total is the largest epsilon and the largest delta. Within a block there are two kinds. *Fixed* charges
    have parameters that depend on no output of the block: the first one of every block, and all that are made between
    ``open_plan`` and ``close_plan`` before any later one; they compose tightly (``compose``). All *later* ones may have
    been chosen by looking, and pass a privacy filter, which has all of the budget that the fixed ones leave. A
    charge that would overspend is refused.

    The file is of ``sqlite3``. A charge is one transaction, on the disk before the call returns, so that a crash may
    waste budget but never spend it twice, and neither two threads nor two processes can overspend together. Its lines
    are chained by digests. Each revision is also noted in the user's state folder (``$XDG_STATE_HOME/torchdpcate``,
    ``ledgers``): a file that is older than the last one, or a copy that went its own way, is refused. A ledger in
    memory is of one process alone.

    A ledger whose file exists takes up its entries; blocks and filter must be the same.

    Args:
        blocks: Budget of each block, by name.
        path: Where it is kept; None for memory alone.
        private: Whether the noise is private (``NoiseSource.private``). Charges are counted and refused alike
            without it, but nothing is claimed: see ``spent``.
        filter: How later charges count: ``sums`` of epsilons and deltas, whatever their events; ``gaussian``, by the
            squares of mu, for Gaussian and pure events alone, which is less for Gaussian ones; or a ``Filter``. It
            cannot be changed, for a choice by what was seen would void it.
        unit: Who is protected. Budgets and charges are by record all the same: what they come to for a person with
            several records is ``unit.cost``.

    Raises:
        InputError: If there are no blocks, a name, budget or filter is not allowed, or the file is damaged, older than
            what was charged, of other blocks, or held by another process.

    Example:
        >>> from torchdpcate.privacy.events import PureEvent
        >>> ledger = Ledger({"nuisance": PrivacyBudget(1.0, 0.0), "second_stage": PrivacyBudget(1.0, 0.0)})
        >>> ledger.charge("nuisance", "propensity", PureEvent(0.75))
        0
        >>> ledger.remaining("nuisance")
        PrivacyBudget(epsilon=0.25, delta=0.0)
    """

    def __init__(
        self,
        blocks: Mapping[str, PrivacyBudget],
        path: str | os.PathLike | None = None,
        private: bool = True,
        filter: str | Filter = "sums",
        unit: PrivacyUnit = RECORD,
    ) -> None:
        refuse_strings(Ledger, {"blocks": blocks, "unit": unit})
        budgets = {str(name): budget for name, budget in blocks.items()}
        self._book, self._process = Book(budgets, bool(private), make_filter(filter), unit), os.getpid()
        # One file is one ledger, by whatever name or link it is reached, and from whatever folder later.
        self._path = None if path is None else Path(os.path.realpath(path))
        self._planning: tuple[int, frozenset[str]] | None = None  # thread, and the blocks without an entry before
        if self._path is not None:
            self._book = change(self._path, lambda book: self._same(book, book.id), lambda: self._book)

    def __copy__(self) -> "Ledger":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ledger":
        return self  # a copy of a learner spends from the same budget

    def __reduce__(self) -> Any:
        if self._path is None:
            raise TypeError("a ledger in memory is not pickled, for each copy would spend its budget: give ledger_path")
        return Ledger.load, (self._path,)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Ledger":
        """The ledger kept in a file; it stays tied to the file.

        Raises:
            InputError: If the file is missing, damaged, or of another format.
        """
        book = read(Path(path))
        ledger = cls(book.blocks, None, book.private, book.filter, book.unit)
        ledger._path, ledger._book = Path(os.path.realpath(path)), book
        return ledger

    @property
    def blocks(self) -> dict[str, PrivacyBudget]:
        """Budget of each block."""
        return dict(self._book.blocks)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of their charge."""
        return self._seen().entries

    @property
    def filter(self) -> Filter:
        """How charges count that were chosen after an output."""
        return self._book.filter

    @property
    def unit(self) -> PrivacyUnit:
        """Who is protected; budgets and charges are by record all the same."""
        return self._book.unit

    @property
    def private(self) -> bool:
        """Whether the noise charged for is private."""
        return self._book.private

    @property
    def path(self) -> Path | None:
        """Where the ledger is kept, if anywhere."""
        return self._path

    def open_plan(self) -> None:
        """Begin with charges whose parameters are public: settings, n, bounds, and what other blocks released.

        Blocks that already have an entry are left out: whatever they are charged may follow what came of it. The list
        of the charges must be public too, not only the parameters of each: see docs/guarantees/composition.md.
        """
        with self._alone():
            known = {entry.block for entry in self._seen().entries}
            self._planning = threading.get_ident(), frozenset(self._book.blocks.keys() - known)

    def close_plan(self) -> None:
        """End ``open_plan``: whatever is charged from here on passes the filter. Nothing happens if none is open."""
        self._planning = None

    def charge(
        self,
        block: str,
        charge: "Charge | str",
        event: Event,
        count: int = 1,
        planned: int | None = None,
        level: Level = Level.CERTIFIED,
    ) -> int:
        """Enter a charge, before its noise is drawn.

        Args:
            block: The block of records that is charged.
            charge: What for; words make a charge of ``Purpose.OTHER``.
            event: What happens, once.
            count: How often it happens, or for a planned run how often so far (0 to begin with).
            planned: How often it may happen in all; None for ``count``. The budget must cover it now.
            level: How far the claim is proved.

        Returns:
            The entry's number, for ``advance``, ``settle`` and ``reopen``.

        Raises:
            BudgetError: If it would overspend, or the filter of the block cannot count such an event; the message says
                what is left. Nothing is charged then.
            InputError: If an argument is not allowed or the file is damaged.
            OSError: If the file cannot be written. Nothing is charged then, or the charge is wasted.
        """
        count = integer("count", count, least=0 if planned is not None else 1)
        most = count if planned is None else integer("planned", planned, least=max(count, 1))
        self._account(block, ())
        level, charge = Level.of(level), Charge.of(charge)

        def added(entries: tuple[Entry, ...]) -> Entry:
            used = count if planned is None else 0
            new = Entry(len(entries), block, charge, event, count, most, level, reserved=most, used=used)
            if not self._is_fixed(entries, block):
                new = replace(new, cost=self._account(block, entries).cost(new))
            self._account(block, (*entries, new)).require_affordable(new)
            return new

        return self._change(added).entries[-1].id

    def advance(self, entry: int, count: int) -> None:
        """Raise an open entry's count, before the noise of those steps is drawn.

        Steps that were counted before have been taken: ``settle`` gives none of them back.

        Args:
            entry: Its number.
            count: How often the event will have happened; between the present count and ``planned``.

        Raises:
            InputError: If the count falls or exceeds ``planned``.
        """

        def advanced(old: Entry) -> Entry:
            new = integer("count", count, least=0)
            if not old.count <= new <= old.planned:
                raise InputError(f"count = {new}: entry {entry} goes from {old.count} up to planned = {old.planned}")
            return replace(old, count=new, used=old.count)

        self._replace(entry, advanced)

    def settle(self, entry: int, count: int) -> None:
        """End an entry with the count really used.

        What was counted before the last ``advance`` was used, and so was all of a charge that was never open. What is
        not used is not spent; but when to stop may have been decided by looking, so it stays reserved and nothing else
        may use it, unless nothing of the block was used at all.

        Args:
            entry: Its number.
            count: How often the event really happened, at most ``planned``.

        Raises:
            InputError: If the count exceeds ``planned``, or is below what was used.
        """

        def settled(entries: tuple[Entry, ...]) -> Entry:
            old, new = _find(entries, entry), integer("count", count, least=0)
            if new > old.planned:
                raise InputError(f"count = {new}: entry {entry} planned {old.planned}; reopen it first")
            if new < old.used:
                raise InputError(f"count = {new}: entry {entry} has used {old.used}, which nothing gives back")
            end = replace(old, count=new, planned=new, used=new)
            return end if self._account(end.block, _with(entries, end)).used else replace(end, reserved=0)

        self._change(settled)

    def cancel(self, entry: int) -> None:
        """Take back an entry of which nothing has happened: no noise of it was drawn, and nothing was seen.

        Args:
            entry: Its number.

        Raises:
            InputError: Some of it was used.
        """

        def cancelled(old: Entry) -> Entry:
            if old.used:
                raise InputError(f"entry = {entry}: {old.used} of it was used, which nothing gives back")
            return replace(old, count=0, planned=0, reserved=0, cost=None)

        self._replace(entry, cancelled)

    def weaken(self, entry: int, level: Level) -> None:
        """Say that an entry's claim is proved no further than this; a weaker level that it has stays.

        Args:
            entry: Its number.
            level: How far the claim is proved.
        """
        self._replace(entry, lambda old: replace(old, level=weakest([old.level, Level.of(level)])))

    def reopen(self, entry: int, planned: int) -> None:
        """Take up an entry that was settled, as when an interrupted run is resumed.

        Steps that a resumed run repeats are charged again: of ``planned``, those not counted before are left.

        Args:
            entry: Its number.
            planned: How often the event may happen in all, from the present count to what was planned when it was
                charged: to plan more after an output is a choice by looking, and a charge of its own.

        Raises:
            BudgetError: If it is more than was charged; the entry then stays as it was.
            InputError: If it is less than the present count.
        """

        def reopened(entries: tuple[Entry, ...]) -> Entry:
            old = _find(entries, entry)
            new = replace(old, planned=integer("planned", planned, least=old.count), used=old.count)
            if new.planned <= old.reserved:
                return new
            if self._account(old.block, entries).used or not old.fixed:
                raise BudgetError(
                    f"planned = {new.planned}: entry {entry} was charged for {old.reserved} x {old.event}; "
                    "charge the rest anew"
                )
            new = replace(new, reserved=new.planned)
            self._account(old.block, _with(entries, new)).require_affordable(new)
            return new

        self._change(reopened)

    def entry(self, entry: int) -> Entry:
        """An entry by its number.

        Raises:
            InputError: If there is none.
        """
        return _find(self._seen().entries, entry)

    def spent(self, block: str | None = None) -> dict[str, Any]:
        """What was spent: by composition, and beside it by adding epsilons.

        Counts what was used (``Entry.count``) of fixed charges, and all that the filter took for later ones; what is
        only reserved shows in ``remaining``. It is the privacy cost of these charges if neither their number nor when
        to end was decided by looking; in any case all that is released from a block costs at most its budget. Each
        account holds
        ``epsilon`` (composed; None if none holds), ``delta`` (0 if all was pure and fits, else the block's),
        ``naive_epsilon`` (basic composition, ``naive_sum``) and ``level``, the weakest of its entries. A
        heuristic account has None for all three numbers, so that none reads like a claim; so has the total if
        one block is heuristic. Without private noise each account that has entries is heuristic.

        Args:
            block: One block; None for all.

        Returns:
            The account of the block; or one for each block and ``"total"``, the largest of each number.

        Raises:
            InputError: If there is no such block.
        """
        entries = self._seen().entries
        if block is not None:
            return self._account(block, entries).spent(self.private)
        accounts = {name: self._account(name, entries).spent(self.private) for name in self._book.blocks}
        return {**accounts, "total": total_of(list(accounts.values()))}

    def __repr__(self) -> str:
        """Return the blocks, their budgets and how often they were charged, in one line."""
        blocks = "; ".join(
            f"{name}: epsilon = {b.epsilon:.4g}, delta = {b.delta:.3g}" for name, b in self.blocks.items()
        )
        return plain(f"<Ledger: {blocks}; charges: {len(self.entries)}>")

    def remaining(self, block: str, gaussian: bool = False) -> PrivacyBudget | None:
        """What is left of a block's budget, open entries counted as planned; None if nothing is.

        ``charge`` accepts, as the next one, any of: an ``ApproximateEvent`` of this epsilon and delta, a
        ``PureEvent`` of this epsilon, a ``GaussianEvent`` of ``analytic_gaussian_sigma`` at this budget.

        Where only pure and approximate events were charged and their epsilons add up, this is epsilon less
        theirs and delta less theirs. Gaussian and DP-SGD events hold at any delta for some epsilon, so that
        what they leave trades one for the other: of a few shares of the free delta that one is taken at which
        Gaussian noise can be smallest, with the largest epsilon found that composes, to 1e-4 of it. Delta is
        0 where no share of it leaves any epsilon. What the fixed charges leave belongs to the filter; later ones
        take from it what they count there.

        Args:
            block: Name of the block.
            gaussian: Whether the next charge is a ``GaussianEvent``: with ``filter=gaussian`` it takes less than others
                of its epsilon and delta, so that more is left.

        Raises:
            InputError: If there is no such block.
        """
        return self._account(block, self._seen().entries).remaining(gaussian)

    def to_json(self) -> str:
        """The ledger as strict JSON, for people and programs to read."""
        return self._seen().to_json()

    def _account(self, block: str, entries: tuple[Entry, ...]) -> BlockAccount:
        """Return the account of a block, of these entries of the ledger."""
        if block not in self._book.blocks:
            raise InputError(f"block = {block!r}: choose from {', '.join(self._book.blocks)}")
        return BlockAccount.of(self._book, block, entries)

    def _is_fixed(self, entries: tuple[Entry, ...], block: str) -> bool:
        """Whether the next charge of a block cannot depend on an output of it."""
        mine = self._account(block, entries).entries
        if not any(e.reserved for e in mine):
            return True
        if any(not e.fixed for e in mine):  # another thread, or another ledger of this file, has ended the plan
            return False
        thread, blocks = self._planning or (None, frozenset())
        return block in blocks and thread == threading.get_ident()

    def _replace(self, entry: int, change: Callable[[Entry], Entry]) -> None:
        self._change(lambda entries: change(_find(entries, entry)))

    def _change(self, entry: Callable[[tuple[Entry, ...]], Entry]) -> Book:
        """Enter an entry, new or in place of an old one; it is on the disk before it can be read."""

        def changed(book: Book) -> Book:
            return self._same(book, self._book.id).changed(entry(book.entries))

        with self._alone():
            self._book = changed(self._book) if self._path is None else change(self._path, changed)
            return self._book

    def _seen(self) -> Book:
        """The present book."""
        with self._alone():
            if self._path is not None:
                self._book = self._same(read(self._path), self._book.id)
            return self._book

    def _same(self, book: Book, identity: str) -> Book:
        """Refuse what a file says that is of another ledger."""
        names = ("blocks", "private", "filter", "unit")
        if book.id != identity or any(getattr(book, name) != getattr(self._book, name) for name in names):
            why = "another one is in its place, or its blocks, budgets, unit, filter or private differ"
            raise InputError(f"ledger {self._path}: {why}; restore it, or use another path")
        return book

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out; a process that is not the ledger's is refused where there is no file to share."""
        if self._path is None and os.getpid() != self._process:
            raise InputError(
                f"ledger: is in the memory of process {self._process}, and this is {os.getpid()}: each would spend "
                "all of the budget; give ledger_path, or release in the process that fitted"
            )
        with alone:
            yield


def _find(entries: tuple[Entry, ...], entry: int) -> Entry:
    if entry not in range(len(entries)):
        raise InputError(f"entry = {entry!r}: the ledger has {len(entries)} entries, from 0")
    return entries[entry]


def _with(entries: tuple[Entry, ...], new: Entry) -> tuple[Entry, ...]:
    return tuple(new if e.id == new.id else e for e in entries)
