"""The session of a fit: which blocks it charges, and what is left of their budget."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.filters import Filter
from torchdpcate.privacy.guarantee import Level, weakest
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.shared_ledger import Reservation, RunLedger
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

Result = TypeVar("Result")

# Composition leaves next to nothing of a spent budget; a release from less than this share would be noise alone.
_SMALLEST_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class FitSession:
    """Everything that a fit spends, over disjoint blocks of records, each of which has the full budget.

    A session without a ledger, ``FitSession(noise)``, is that of a fit without privacy or of a simulation: it charges
    nothing. ``charging`` gives the same session to a part of the fit: it then knows which blocks are charged, and what
    for.

    Attributes:
        noise: Where the privacy noise comes from.
        budget: Privacy budget of each block; None without privacy.
        ledger: What has been spent; None charges nothing.
        sizes: Records per block, public.
        blocks: The blocks that are charged.
        charge: What for.
        conditional: Whether no charge is certified, because all of it rests on open conditions.
        entries: Numbers of the ledger's entries that were made in this part.
        reservation: What the fit may cost, in a ledger that it shares with other runs on the same records, if any.
        unit: Who is protected; budgets and charges are by record all the same.

    Example:
        >>> from torchdpcate.privacy.charge import THRESHOLD
        >>> from torchdpcate.privacy.events import PureEvent
        >>> session = FitSession.open({"records": 500}, PrivacyBudget(1.0, 0.0), NoiseSource.system())
        >>> session.charging(["records"], THRESHOLD).pay(PureEvent(0.25))
        >>> session.left(["records"])
        PrivacyBudget(epsilon=0.75, delta=0.0)
    """

    noise: NoiseSource
    budget: PrivacyBudget | None = None
    ledger: Ledger | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[str, ...] = ()
    charge: Charge | None = None
    conditional: bool = False
    entries: set[int] = field(default_factory=set)
    reservation: Reservation | None = None
    unit: PrivacyUnit = RECORD

    @classmethod
    def open(
        cls,
        sizes: Mapping[str, int],
        budget: PrivacyBudget | None,
        noise: NoiseSource,
        path: str | Path | RunLedger | None = None,
        filter: str = "sums",
        unit: PrivacyUnit = RECORD,
    ) -> "FitSession":
        """Open a session with nothing spent yet, and a plan: what is charged until ``close`` has public parameters.

        Args:
            sizes: Records per block, public.
            budget: Privacy budget of each block; None for a fit without privacy.
            noise: Where the privacy noise comes from.
            path: File of the ledger, which must not exist; None keeps the ledger in memory. Of a ``SharedLedger.run``
                the budget is reserved in the shared one first.
            filter: How the ledger counts what is charged after ``close``, see ``Ledger``.
            unit: Who is protected; the budget is by record all the same (``PrivacyUnit.record_budget``).

        Raises:
            InputError: The file is there already, there is no such filter, or noise of a fixed seed in a shared ledger.
            BudgetError: The shared ledger's total does not cover the budget.
        """
        if budget is None:
            return cls(noise, sizes=sizes, unit=unit)
        run, path = (path, path.path) if isinstance(path, RunLedger) else (None, path)
        if path is not None and Path(path).exists():
            raise InputError(f"ledger_path = {path}: exists already; give each fit a ledger of its own")
        if run is not None and not noise.private:
            raise InputError(f"shared ledger {run.shared.path}: noise of a fixed seed protects nobody; leave it out")
        reservation = None if run is None else run.shared.reserve(budget, run.label, unit)
        counting: str | Filter = filter if run is None else run.shared.run_filter(budget, filter)
        session = cls(noise, budget, sizes=sizes, reservation=reservation, unit=unit)
        with session.kept_if_used():
            blocks = dict.fromkeys(sizes, budget)
            ledger = Ledger(blocks, None if path is None else Path(path), noise.private, counting, unit)
            ledger.open_plan()
        return replace(session, ledger=ledger)

    @property
    def block(self) -> str:
        """The one block that is charged; empty outside any part."""
        if len(self.blocks) > 1:
            raise InputError(f"blocks = {', '.join(self.blocks)}: one block trains here, but each would be charged")
        return self.blocks[0] if self.blocks else ""

    def close(self) -> None:
        """End the plan: later charges may be chosen by what was seen, and pass the ledger's filter.

        A fit closes its session before it returns.
        """
        if self.ledger is not None:
            self.ledger.close_plan()
        if self.reservation is not None and self.ledger is not None:
            self.reservation.note(weakest(entry.level for entry in self.ledger.entries))
            self.reservation.settle()

    @contextmanager
    def kept_if_used(self) -> Iterator[None]:
        """Give back what a shared ledger reserved where the block fails before anything was charged."""
        try:
            yield
        except BaseException:
            charged = self.ledger is not None and any(entry.reserved for entry in self.ledger.entries)
            if self.reservation is not None and not charged:
                self.reservation.give_back()
            raise

    def charging(self, blocks: Iterable[str], charge: Charge, conditional: bool = False) -> "FitSession":
        """Return the session of a part of the fit; its charges are in its own ``entries``.

        Args:
            blocks: The blocks whose records the part looks at: each of them is charged.
            charge: What for.
            conditional: Whether nothing of it is certified; so is nothing within a conditional session.
        """
        known = {"blocks": tuple(blocks), "charge": charge, "conditional": conditional or self.conditional}
        return replace(self, **known, entries=set())  # type: ignore[arg-type]

    def pay(
        self,
        event: Event,
        level: Level = Level.CERTIFIED,
        count: int = 1,
        *,
        charge: Charge | None = None,
        part: str = "",
    ) -> None:
        """Charge an event to every block of the part, before its noise is drawn; nothing without a ledger.

        Args:
            event: What happens, once.
            level: How far the claim is proved.
            count: How often it happens.
            charge: What for; None takes the part's.
            part: Which part of that; empty for all of it.

        Raises:
            BudgetError: The budget of a block does not cover it.
            InputError: Nothing names the blocks, and the charge.
        """
        if self.ledger is None:
            return
        charge = charge or self.charge
        if not self.blocks or charge is None:  # no assertion: noise that no block is charged for must not be drawn
            raise InputError("session: no block is charged, or for nothing; name both by charging(blocks, charge)")
        charge = charge.with_part(part) if part else charge
        if self.conditional and level is Level.CERTIFIED:
            level = Level.CONDITIONAL
        if self.reservation is not None:
            self.reservation.note(level)
        self.entries.update(self.ledger.charge(block, charge, event, count, level=level) for block in self.blocks)

    def of(self, block: str) -> "FitSession":
        """Return the session that charges one block of this part; its entries are this part's.

        Args:
            block: Name of the block.
        """
        return replace(self, blocks=(block,))

    def part(self, part: str) -> "FitSession":
        """Return the session of a part, whose own parts are pieces of it; its entries are this part's."""
        return self if self.charge is None else replace(self, charge=self.charge.with_part(part))

    def left(self, blocks: Iterable[str], gaussian: bool = False) -> PrivacyBudget:
        """Return the budget that each of these blocks still has.

        Args:
            blocks: Names of the blocks.
            gaussian: Whether the next charge is a Gaussian event, which counts less in a Gaussian filter.

        Raises:
            InputError: Nothing to speak of is left.
        """
        if self.ledger is None or self.budget is None:
            raise InputError("budget = None: a session without a ledger has nothing to spend")
        least = _least([self.ledger.remaining(block, gaussian) for block in blocks])
        if least is None or least.epsilon < _SMALLEST_SHARE * self.budget.epsilon:
            raise InputError("budget: nothing to speak of is left for a release; fit anew on new records")
        return least

    def spend(
        self,
        run: "Callable[[PrivacyBudget, FitSession], Result]",
        blocks: Sequence[str],
        charge: Charge,
        budget: PrivacyBudget | None = None,
        gaussian: bool = False,
    ) -> tuple[Result, set[int]]:
        """Close the plan, and run something that charges these blocks; return its result and its ledger entries.

        Args:
            run: (budget, session) -> result.
            blocks: The blocks that it looks at.
            charge: What for.
            budget: What it may spend; None takes all that is left.
            gaussian: See ``left``.

        Raises:
            InputError: Nothing to speak of is left.
            BudgetError: The budget of a block does not cover it.
        """
        self.close()
        own = self.charging(blocks, charge)
        return run(budget or self.left(blocks, gaussian), own), own.entries


def _least(budgets: Sequence[PrivacyBudget | None]) -> PrivacyBudget | None:
    """Return a budget that every block still has; None if one has none."""
    known = [budget for budget in budgets if budget is not None]
    if len(known) < len(budgets):
        return None
    return PrivacyBudget(min(budget.epsilon for budget in known), min(budget.delta for budget in known))
