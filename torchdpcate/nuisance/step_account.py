"""Counting steps against a ledger: charged before they are taken, a chunk at a time."""

from __future__ import annotations

from typing import Any

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.ledger import Ledger


class StepAccount:
    """The steps of one DP-SGD run, as the ledger sees them.

    `steps` are those behind the present weights; `spent` are those the budget was charged for.  They differ
    after a resume from a checkpoint older than the interruption: the steps taken since were seen by no one
    but were spent, so the run ends with fewer useful steps instead of overspending.

    The ledger counts a chunk (one epoch of steps) before the chunk begins, and is settled to what was really
    spent when the run ends.  A crash that leaves no time to settle wastes at most one chunk.

    Args:
        plan: what may be done in all.
        ledger: where it is charged; None counts without charging.
        block: the ledger's block whose records are sampled.
        charge: what the entry says that it is for.
    """

    def __init__(self, plan: DPSGDPlan, ledger: Ledger | None, block: str, charge: Charge | str) -> None:
        self.plan = plan
        self.ledger = ledger
        self.block = block
        self.charge = charge
        self.steps = 0
        self.spent = 0
        self.entry: int | None = None
        self._covered = self._asked = 0
        self._open = False

    @property
    def exhausted(self) -> bool:
        """Whether every planned step is spent."""
        return self.spent >= self.plan.steps

    @property
    def ahead(self) -> int:
        """Steps that the ledger has on disk, from the last one that was counted on."""
        covered = self.plan.steps if self.ledger is None else self._covered
        return covered - self.spent + 1

    def open(self) -> None:
        """Charge the first chunk, or take up the entry of the run that is resumed.

        Raises:
            BudgetError: the block cannot pay the planned steps.
            InputError: the entry to resume is not in this ledger.
        """
        if self.ledger is not None:
            if self.entry is None:
                self._charge(self.ledger)
            else:
                self._reopen(self.ledger, self.entry)
        self._open = True

    def _charge(self, ledger: Ledger) -> None:
        self._covered = self._asked = min(self.spent + self.plan.epoch, self.plan.steps)
        self.entry = ledger.charge(
            self.block, self.charge, self.plan.event, count=self._covered, planned=self.plan.steps
        )

    def _reopen(self, ledger: Ledger, entry: int) -> None:
        known = ledger.entry(entry)
        if known.event != self.plan.event or known.block != self.block:
            raise InputError(f"ledger: its entry {entry} is not the run in the checkpoint; pass the run's own")
        ledger.reopen(entry, planned=self.plan.steps)
        self.spent = self._covered = self._asked = ledger.entry(entry).count

    def count(self) -> None:
        """Count one step; call before its noise is drawn.

        Raises:
            BudgetError: all planned steps are spent.
        """
        if self.exhausted:
            raise BudgetError(f"steps={self.plan.steps}: all planned steps are spent; no step is left to take")
        if self.ledger is not None and self.spent == self._covered:
            if not self._alone(self.ledger):
                raise InputError(f"ledger: another run advances entry {self.entry} too; end one of them")
            self._asked = min(self.spent + self.plan.epoch, self.plan.steps)
            self.ledger.advance(self._entry(), self._asked)
            self._covered = self._asked
        self.spent += 1
        self.steps += 1

    def close(self) -> None:
        """Settle the entry to the steps really spent; nothing to do when closed already."""
        if self._open and self.ledger is not None and self._alone(self.ledger):
            self.ledger.settle(self._entry(), self.spent)
        self._open = False

    def _alone(self, ledger: Ledger) -> bool:
        """Whether no other run has resumed this entry meanwhile, whose steps settling would forget."""
        # Ctrl-C may fall between the ledger's write and our note of it.
        return ledger.entry(self._entry()).count in (self._covered, self._asked)

    def _entry(self) -> int:
        assert self.entry is not None, "count and close come after open"
        return self.entry

    def state_dict(self) -> dict[str, Any]:
        """Plain types for a checkpoint; neither noise nor coins are in it."""
        return {
            "steps": self.steps,
            "spent": self.spent,
            "entry": self.entry,
            "block": self.block,
            "plan": self.plan.to_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a run.

        Raises:
            InputError: the checkpoint is of another plan or block, or was charged and no ledger is given.
        """
        if state["plan"] != self.plan.to_dict() or state["block"] != self.block:
            raise InputError(f"plan={self.plan} on {self.block!r} is not the checkpoint's: {state}; resume that one")
        if state["entry"] is not None and self.ledger is None:
            raise InputError(f"ledger=None, but the checkpoint's steps are entry {state['entry']} of one; pass it")
        self.steps, self.spent, self.entry = state["steps"], state["spent"], state["entry"]
