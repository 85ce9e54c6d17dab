"""The ledger: what each block of records has paid, written to disk before any noise is used."""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from torchdpcate._files import PRIVATE, private_folder
from torchdpcate._files import write_private as write_text
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.accounting import Charge, compose, naive_sum
from torchdpcate.privacy.budget import PrivacyBudget, whole
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger_file import Entry, dump, parse
from torchdpcate.privacy.what_is_left import what_is_left

_LEVELS = list(Level)  # from the strongest to the weakest

Result = TypeVar("Result")


class Ledger:
    """Privacy accounts of disjoint blocks of records.

    Within a block charges compose sequentially and adaptively (`compose`); across blocks in parallel, because
    a record is in one block and replacing it leaves the others alone: the total is the largest epsilon and
    the largest delta. A charge that would overspend is refused. The file is written whole before a call
    returns, and read anew under a lock before each change, so that a crash may waste budget but never spend
    it twice, and two processes cannot overspend together.

    A ledger whose file exists takes up its entries; the blocks must be the same.

    Args:
        blocks: Budget of each block, by name.
        path: Where it is kept; None for memory alone.
        private: Whether the noise is private (`NoiseSource.private`). Charges are counted and refused alike
            without it, but nothing is claimed: see `spent`.

    Raises:
        InputError: If there are no blocks, a name or budget is not allowed, or the file is damaged or of
            other blocks.

    Example:
        >>> from torchdpcate.privacy import PureEvent
        >>> ledger = Ledger({"nuisance": PrivacyBudget(1.0, 0.0), "second_stage": PrivacyBudget(1.0, 0.0)})
        >>> ledger.charge("nuisance", "propensity", PureEvent(0.75))
        0
        >>> ledger.remaining("nuisance")
        PrivacyBudget(epsilon=0.25, delta=0.0)
    """

    def __init__(
        self, blocks: Mapping[str, PrivacyBudget], path: str | os.PathLike | None = None, private: bool = True
    ) -> None:
        if not blocks or "total" in blocks or not all(isinstance(b, PrivacyBudget) for b in blocks.values()):
            raise InputError(f"blocks = {dict(blocks)!r}: name at least one with a PrivacyBudget, none 'total'")
        self._blocks = {str(name): budget for name, budget in blocks.items()}
        # One file has one lock, by whatever name or link it is reached, and from whatever folder later.
        self._path = None if path is None else Path(os.path.realpath(path))
        self._private = bool(private)
        self._entries: tuple[Entry, ...] = ()
        if self._path is not None:
            if not self._path.parent.exists():
                private_folder(self._path.parent)
            with self._locked():
                if self._path.exists():
                    self._entries = self._read()
                else:
                    write_text(self._path, dump(self._blocks, self._private, ()))

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
        blocks, private, _ = parse(Path(path))
        return cls(blocks, path, private)

    @property
    def blocks(self) -> dict[str, PrivacyBudget]:
        """Budget of each block."""
        return dict(self._blocks)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of their charge."""
        return self._seen()

    @property
    def private(self) -> bool:
        """Whether the noise charged for is private."""
        return self._private

    @property
    def path(self) -> Path | None:
        """Where the ledger is kept, if anywhere."""
        return self._path

    def charge(
        self,
        block: str,
        label: str,
        event: Event,
        count: int = 1,
        planned: int | None = None,
        level: Level = Level.CERTIFIED,
    ) -> int:
        """Enter a charge, before its noise is drawn.

        Args:
            block: The block of records that pays.
            label: What for.
            event: What happens, once.
            count: How often it happens, or for a planned run how often so far (0 to begin with).
            planned: How often it may happen in all; None for ``count``. The budget must cover it now.
            level: How far the claim is proved.

        Returns:
            The entry's number, for `advance`, `settle` and `reopen`.

        Raises:
            BudgetError: If it would overspend; the message says what is left. Nothing is charged then.
            InputError: If an argument is not allowed or the file is damaged.
            OSError: If the file cannot be written. Nothing is charged then.
        """
        count = whole("count", count, least=0 if planned is not None else 1)
        most = count if planned is None else whole("planned", planned, least=max(count, 1))
        self._budget(block)
        level = Level.of(level)

        def change(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], int]:
            new = Entry(len(entries), block, str(label), event, count, most, level)
            self._afford((*entries, new), new)
            return (*entries, new), new.id

        return self._change(change)

    def advance(self, entry: int, count: int) -> None:
        """Raise an open entry's count, before the noise of those steps is drawn.

        Args:
            entry: Its number.
            count: How often the event will have happened; between the present count and ``planned``.

        Raises:
            InputError: If the count falls or exceeds ``planned``.
        """

        def change(old: Entry) -> Entry:
            new = whole("count", count, least=0)
            if not old.count <= new <= old.planned:
                raise InputError(f"count = {new}: entry {entry} goes from {old.count} up to planned = {old.planned}")
            return replace(old, count=new)

        self._replace(entry, change)

    def settle(self, entry: int, count: int) -> None:
        """End an entry with the count really used, which frees the rest.

        Args:
            entry: Its number.
            count: How often the event really happened, at most ``planned``.

        Raises:
            InputError: If the count exceeds ``planned``.
        """

        def change(old: Entry) -> Entry:
            new = whole("count", count, least=0)
            if new > old.planned:
                raise InputError(f"count = {new}: entry {entry} planned {old.planned}; reopen it first")
            return replace(old, count=new, planned=new)

        self._replace(entry, change)

    def reopen(self, entry: int, planned: int) -> None:
        """Plan more of an entry, as when an interrupted run is resumed.

        Steps that a resumed run repeats are paid again: ``planned`` is the present count plus those to do.

        Args:
            entry: Its number.
            planned: How often the event may happen in all, at least the present count.

        Raises:
            BudgetError: If the budget does not cover it; the entry then stays as it was.
            InputError: If it is less than the present count.
        """

        def change(old: Entry) -> Entry:
            return replace(old, planned=whole("planned", planned, least=old.count))

        self._replace(entry, change, afford=True)

    def entry(self, entry: int) -> Entry:
        """An entry by its number.

        Raises:
            InputError: If there is none.
        """
        return _find(self._seen(), entry)

    def spent(self, block: str | None = None) -> dict[str, Any]:
        """What was spent: by composition, and beside it by adding epsilons.

        Counts what was used (`Entry.count`); what is only reserved shows in `remaining`. Each account holds
        ``epsilon`` (composed; None if none holds), ``delta`` (0 if all was pure and fits, else the block's),
        ``naive_epsilon`` (basic composition, `naive_sum`) and ``level``, the weakest of its entries. A
        heuristic account has None for all three numbers, so that none reads like a claim; so has the total if
        one block is heuristic. Without private noise each account that has entries is heuristic.

        Args:
            block: One block; None for all.

        Returns:
            The account of the block; or one for each block and ``"total"``, the largest of each number.

        Raises:
            InputError: If there is no such block.
        """
        entries = self._seen()
        if block is not None:
            return _account(_of(entries, block), self._budget(block), self._private)
        accounts = {name: _account(_of(entries, name), b, self._private) for name, b in self._blocks.items()}
        return {**accounts, "total": _total(list(accounts.values()))}

    def remaining(self, block: str, gaussian: bool = False) -> PrivacyBudget | None:
        """What is left of a block's budget, open entries counted as planned; None if nothing is.

        `charge` accepts, as the next one, any of: an `ApproximateEvent` of this epsilon and delta, a
        `PureEvent` of this epsilon, a `GaussianEvent` of `analytic_gaussian_sigma` at this budget.

        Where only pure and approximate events were charged and their epsilons add up, this is epsilon less
        theirs and delta less theirs. Gaussian and DP-SGD events hold at any delta for some epsilon, so that
        what is left trades one for the other: of a few shares of the free delta that one is taken at which
        Gaussian noise can be smallest, with the largest epsilon found that composes, to 1e-4 of it. Delta is
        0 where no share of it leaves any epsilon.

        Args:
            block: Name of the block.
            gaussian: Whether the next charge is a `GaussianEvent`: it composes more cheaply, so that more is left.

        Raises:
            InputError: If there is no such block.
        """
        return what_is_left(_charges(_of(self._seen(), block), reserved=True), self._budget(block), gaussian)

    def to_json(self) -> str:
        """The ledger as strict JSON, as in its file."""
        return dump(self._blocks, self._private, self._seen())

    def _budget(self, block: str) -> PrivacyBudget:
        try:
            return self._blocks[block]
        except KeyError as error:
            raise InputError(f"block = {block!r}: choose from {', '.join(self._blocks)}") from error

    def _afford(self, entries: tuple[Entry, ...], new: Entry) -> None:
        """Refuse ``entries`` if the block of ``new``, one of them, would overspend."""
        budget = self._budget(new.block)
        mine = _of(entries, new.block)
        cost = compose(_charges(mine, reserved=True), budget.delta)
        if cost <= budget.epsilon:
            return
        others = tuple(e for e in mine if e.id != new.id)
        left = what_is_left(_charges(others, reserved=True), budget)
        what = "nothing" if left is None else f"epsilon = {left.epsilon:.6g}, delta = {left.delta:.6g}"
        raise BudgetError(
            f"charge {new.label!r} of {new.planned} x {new.event}: block {new.block!r} would spend epsilon = "
            f"{cost:.6g} of {budget.epsilon:.6g} at delta = {budget.delta:.6g}; {what} is left: "
            "use more noise or fewer steps, or raise the budget"
        )

    def _replace(self, entry: int, change: Callable[[Entry], Entry], afford: bool = False) -> None:
        def on_all(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], None]:
            new = change(_find(entries, entry))
            result = tuple(new if e.id == entry else e for e in entries)
            if afford:
                self._afford(result, new)
            return result, None

        self._change(on_all)

    def _change(self, change: Callable[[tuple[Entry, ...]], tuple[tuple[Entry, ...], Result]]) -> Result:
        """Apply a change to the entries on disk; the new ones are written before anyone sees them."""
        with self._locked():
            entries, result = change(self._read())
            if self._path is not None:
                write_text(self._path, dump(self._blocks, self._private, entries))
            self._entries = entries
            return result

    def _seen(self) -> tuple[Entry, ...]:
        """The present entries; reading needs no lock, because the file is only ever replaced whole."""
        self._entries = self._read()
        return self._entries

    def _read(self) -> tuple[Entry, ...]:
        if self._path is None:
            return self._entries
        blocks, private, entries = parse(self._path)
        if blocks != self._blocks or private != self._private:
            raise InputError(
                f"ledger {self._path}: its blocks, budgets or private = {private} differ; use another path"
            )
        if len(entries) < len(self._entries):
            raise InputError(f"ledger {self._path}: entries were lost; restore it, the budget is not known")
        return entries

    def _locked(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._path is None else FileLock(f"{self._path}.lock", mode=PRIVATE)


def _find(entries: tuple[Entry, ...], entry: int) -> Entry:
    for candidate in entries:
        if candidate.id == entry:
            return candidate
    raise InputError(f"entry = {entry!r}: the ledger has {len(entries)} entries, from 0")


def _of(entries: tuple[Entry, ...], block: str) -> tuple[Entry, ...]:
    return tuple(e for e in entries if e.block == block)


def _charges(entries: tuple[Entry, ...], reserved: bool) -> list[Charge]:
    return [(e.event, e.planned if reserved else e.count) for e in entries]


def _account(entries: tuple[Entry, ...], budget: PrivacyBudget, private: bool) -> dict[str, Any]:
    used = tuple(e for e in entries if e.count)
    level = max((e.level for e in used), key=_LEVELS.index, default=Level.CERTIFIED)
    if level is Level.HEURISTIC or (entries and not private):
        return {"epsilon": None, "delta": None, "naive_epsilon": None, "level": Level.HEURISTIC.value}
    charges = _charges(used, reserved=False)
    pure = compose(charges, 0.0)
    # pure events stay pure where their sum fits the budget; nothing at all costs nothing
    delta = 0.0 if pure <= budget.epsilon else budget.delta
    return {
        "epsilon": _finite(pure if delta == 0 else compose(charges, delta)),
        "delta": delta,
        "naive_epsilon": _finite(naive_sum(charges, delta).epsilon) if used else 0.0,
        "level": level.value,
    }


def _total(accounts: list[dict[str, Any]]) -> dict[str, Any]:
    def largest(key: str) -> float | None:
        values = [account[key] for account in accounts]
        return None if None in values else max(values)

    level = max((Level(account["level"]) for account in accounts), key=_LEVELS.index)
    return {**{key: largest(key) for key in ("epsilon", "delta", "naive_epsilon")}, "level": level.value}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
