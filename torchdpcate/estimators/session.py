"""What one fit may spend, what its releases pay, and the statements of both."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.statement import PrivacyStatement, make_statement

Result = TypeVar("Result")

CANDIDATE = "candidate"
"""First word of the charge of a whole rule, weights and release, that is one of several to be chosen from."""

# Composition leaves crumbs of a spent budget; a release from less than this share would be noise alone.
_SMALLEST_SHARE = 1e-3


def forget(learner: Any) -> None:
    """Remove what an earlier fit left, its account included: a fit that is refused must leave nothing to release.

    Args:
        learner: An estimator; all that its constructor does not take is of an earlier fit.
    """
    for name in vars(learner).keys() - learner.get_params(deep=False).keys():
        delattr(learner, name)


@dataclass(frozen=True, eq=False)
class Account:
    """The ledger of one fit over disjoint blocks of records, each of which may spend the whole budget.

    Attributes:
        ledger: What has been spent.
        sizes: Records per block, public.
        budget: Privacy budget of each block.
        noise: Where the privacy noise comes from.
    """

    ledger: Ledger
    sizes: Mapping[str, int]
    budget: PrivacyBudget
    noise: NoiseSource

    @classmethod
    def open(
        cls,
        sizes: Mapping[str, int],
        budget: PrivacyBudget,
        noise: NoiseSource,
        path: str | Path | None = None,
        filter: str = "sums",
    ) -> "Account":
        """Open an account with nothing spent yet, and a plan: what is paid until `close` has public parameters.

        Args:
            sizes: Records per block, public.
            budget: Privacy budget of each block.
            noise: Where the privacy noise comes from.
            path: File of the ledger, which must not exist; None keeps the ledger in memory.
            filter: How the ledger counts what is paid after `close`, see ``Ledger``.

        Raises:
            InputError: The file is there already, or there is no such filter.
        """
        if path is not None and Path(path).exists():
            raise InputError(f"ledger_path = {path}: exists already; give each fit a ledger of its own")
        blocks = dict.fromkeys(sizes, budget)
        ledger = Ledger(blocks, None if path is None else Path(path), private=noise.private, filter=filter)
        ledger.open_plan()
        return cls(ledger, sizes, budget, noise)

    def close(self) -> None:
        """End the plan: whatever is paid from here on may be chosen by what was seen, and passes the ledger's filter.

        A fit closes its account before it returns.
        """
        self.ledger.close_plan()

    def till(self, blocks: Sequence[str], label: str) -> "Till":
        """Return what takes a payment of this label from each of these blocks."""
        return Till(self.ledger, blocks, label)

    def left(self, blocks: Iterable[str], gaussian: bool = False) -> PrivacyBudget:
        """Return what each of these blocks can still pay.

        Args:
            blocks: Names of the blocks.
            gaussian: Whether the next charge is a Gaussian event, which a Gaussian filter counts more cheaply.

        Raises:
            InputError: Nothing to speak of is left.
        """
        least = _least([self.ledger.remaining(block, gaussian) for block in blocks])
        if least is None or least.epsilon < _SMALLEST_SHARE * self.budget.epsilon:
            raise InputError("budget: nothing to speak of is left for a release; fit anew on new records")
        return least

    def spend(
        self,
        run: "Callable[[PrivacyBudget, Till, NoiseSource], Result]",
        blocks: Sequence[str],
        label: str,
        budget: PrivacyBudget | None = None,
        gaussian: bool = False,
    ) -> tuple[Result, set[int]]:
        """Close the plan, and run something that pays from these blocks; return its result and its ledger entries.

        Args:
            run: (budget, charge, noise) -> result.
            blocks: The blocks that it looks at.
            label: What the ledger calls it.
            budget: What it may spend; None takes all that is left.
            gaussian: See ``left``.

        Raises:
            InputError: Nothing to speak of is left.
            BudgetError: A block cannot pay.
        """
        self.close()
        till = self.till(blocks, label)
        return run(budget or self.left(blocks, gaussian), till, self.noise), till.own

    def statement(
        self,
        guarantee: Guarantee,
        own: set[int],
        *,
        mechanism: str,
        formula: str,
        public: Mapping[str, Any],
        bounds_origin: str,
    ) -> PrivacyStatement:
        """Return the privacy statement of a release; arguments as in ``make_statement``."""
        return make_statement(
            guarantee,
            self.ledger,
            self.sizes,
            own=own,
            mechanism=mechanism,
            formula=formula,
            public=public,
            private_noise=self.noise.private,
            bounds_origin=bounds_origin,
        )


class Till:
    """Takes one payment from every block that it is of, and keeps the ledger's entries.

    Args:
        ledger: Pays.
        blocks: Names of the blocks.
        label: What the ledger calls the payment.
    """

    def __init__(self, ledger: Ledger, blocks: Sequence[str], label: str) -> None:
        self._ledger, self._blocks, self._label = ledger, blocks, label
        self.own: set[int] = set()

    def __call__(self, event: Event, level: Level = Level.CERTIFIED, count: int = 1) -> None:
        """Charge an event to every block."""
        self.own.update(self._ledger.charge(block, self._label, event, count, level=level) for block in self._blocks)


def _least(budgets: Sequence[PrivacyBudget | None]) -> PrivacyBudget | None:
    """Return a budget that every block can pay; None if one cannot."""
    known = [budget for budget in budgets if budget is not None]
    if len(known) < len(budgets):
        return None
    return PrivacyBudget(min(budget.epsilon for budget in known), min(budget.delta for budget in known))
