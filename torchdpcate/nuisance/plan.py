"""What a DP-SGD run will do: fixed and public; and its steps, which are charged before they are taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.ledger import Ledger

ROUNDING = 2.0**-16
"""Share of the clip norm that is left for the rounding of norms and products in float32, and of sums to the grid."""

MOST_DRAWS = 2**40
"""Numbers up to which the precision of `NoiseSource.fine_gaussian` moves no epsilon by more than 8e-8."""

MOST_NOISE = 2.0**22
"""Noise multiplier times root of the trained numbers at which the noise's grid takes a quarter of `ROUNDING`."""


@dataclass(frozen=True)
class DPSGDPlan:
    r"""A run of `steps` steps, each on a Poisson sample of the records.

    The gradient of one step is

    .. math::
        \frac{1}{q n} \Big(\sum_{i \in S} g_i \min\{1, C / \|g_i\|\} + \sigma C Z\Big),

    where each record is in S with probability q, independently, and Z is standard normal. Gradients are clipped to
    `clip_norm`, a little below C, which leaves a margin for rounding.

    Args:
        noise_multiplier: :math:`\sigma`, noise over clip norm; above 0.
        max_grad_norm: clip norm C of one record's gradient; above 0.
        sampling_rate: q in (0, 1].
        steps: number of steps T, at least 1.

    Raises:
        InputError: a value out of its range.

    Example:
        >>> DPSGDPlan(noise_multiplier=2.0, max_grad_norm=0.3, sampling_rate=0.1, steps=200).epoch
        10
    """

    noise_multiplier: float
    max_grad_norm: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "max_grad_norm"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name}={value!r} must be above 0 and finite")
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"sampling_rate={self.sampling_rate!r} must be in (0, 1]")
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise InputError(f"steps={self.steps!r} must be a whole number, at least 1")

    @property
    def clip_norm(self) -> float:
        """What gradients are clipped to, C (1 - 2^-16), so that as computed and rounded none is longer than C."""
        return self.max_grad_norm * (1 - ROUNDING)

    def check_precision(self, numbers: int) -> None:
        """Refuse a run on so many trained numbers that the grid and the precision of its noise would count.

        Raises:
            InputError: `steps` times them exceeds 2^40, or the noise is too coarse for
                `clip_norm`.
        """
        if self.steps * numbers > MOST_DRAWS:
            raise InputError(
                f"steps={self.steps} of {numbers} numbers each: the noise is exact enough for 2^40 numbers in all; "
                f"give at most {MOST_DRAWS // numbers} steps"
            )
        if self.noise_multiplier * math.sqrt(numbers) > MOST_NOISE:
            raise InputError(
                f"noise_multiplier={self.noise_multiplier:g} with {numbers} numbers: the grid of so much noise is too "
                f"coarse; give at most {MOST_NOISE / math.sqrt(numbers):.3g}, by a larger epsilon or fewer weights"
            )

    @property
    def event(self) -> DPSGDEvent:
        """The ledger's event of one step."""
        return DPSGDEvent(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)

    @property
    def epoch(self) -> int:
        """Steps in which each record is expected once, `ceil(1/q)`."""
        return math.ceil(1 / self.sampling_rate - 1e-9)

    def to_dict(self) -> dict[str, float | int]:
        """Plain types, for checkpoints and summaries."""
        return asdict(self)


def check_limit(max_physical_batch: int | None, mode: str = "auto") -> None:
    """Refuse a number of records that pass at once which is none.

    Raises:
        InputError: Neither a whole number of at least 1 nor None, or a way of clipping that takes no step in parts.
    """
    if max_physical_batch is not None and not (isinstance(max_physical_batch, int) and max_physical_batch >= 1):
        raise InputError(f"max_physical_batch={max_physical_batch!r} must be a whole number, at least 1, or None")
    if max_physical_batch is not None and mode not in ("auto", "chain"):
        raise InputError(f"max_physical_batch = {max_physical_batch}: mode = {mode} cannot; use mode=chain")


def batch_problems(what: str, rate: float, n: int) -> Iterator[str]:
    """Return problems of a sampling rate: rate times n must be an integer."""
    batch = rate * n
    if not (round(batch) >= 1 and abs(batch - round(batch)) <= 1e-6 * batch):
        yield f"the sampling rate of {what} is not that of a batch of its {n} records"


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
