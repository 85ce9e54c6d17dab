"""The account of one block of records: what its charges cost, and what is left of its budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchdpcate.errors import BudgetError
from torchdpcate.privacy.accounting import EventCount, compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.filters import ROUNDING, Filter, FilterCost
from torchdpcate.privacy.guarantee import Level, weakest
from torchdpcate.privacy.ledger_file import Book, Entry


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
