"""What a DP-SGD run will do, fixed and public: its plan, its batches, and its steps, charged before they are taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, TensorDataset, default_collate

from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

ENGINES = ("opacus", "chain")
"""What computes and clips per-record gradients: Opacus; or the fast engine of the library's own plain networks."""

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


AT_ONCE = 2**14
"""Records that pass at once: memory is bounded, and rounding of their sums grows with it."""


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
        self._covered = self._requested = 0
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

    def open(self, level: Level = Level.CERTIFIED) -> None:
        """Charge the first chunk, or take up the entry of the run that is resumed.

        Args:
            level: how far the claim is proved.

        Raises:
            BudgetError: the block cannot pay the planned steps.
            InputError: the entry to resume is not in this ledger.
        """
        if self.ledger is not None:
            if self.entry is None:
                self._charge(self.ledger, level)
            else:
                known = self.ledger.entry(self.entry)
                if known.event != self.plan.event or known.block != self.block:
                    raise InputError(
                        f"ledger: its entry {self.entry} is not the run in the checkpoint; pass the run's own"
                    )
                self.ledger.reopen(self.entry, planned=self.plan.steps)
                self.spent = self._covered = self._requested = self.ledger.entry(self.entry).count
        self._open = True

    def _charge(self, ledger: Ledger, level: Level) -> None:
        self._covered = self._requested = min(self.spent + self.plan.epoch, self.plan.steps)
        self.entry = ledger.charge(
            self.block, self.charge, self.plan.event, count=self._covered, planned=self.plan.steps, level=level
        )

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
            self._requested = min(self.spent + self.plan.epoch, self.plan.steps)
            self.ledger.advance(self._entry(), self._requested)
            self._covered = self._requested
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
        return ledger.entry(self._entry()).count in (self._covered, self._requested)

    def _entry(self) -> int:
        assert self.entry is not None, "count and close come after open"
        return self.entry

    def state_dict(self) -> dict[str, Any]:
        """Plain types for a checkpoint; neither noise nor coins are in it."""
        paid: dict[str, Any] = dict.fromkeys(("budget", "ledger", "level"))
        if self.ledger is not None and self.entry is not None:
            paid["budget"] = self.ledger.blocks[self.block].to_dict()
            paid["level"] = self.ledger.entry(self.entry).level.value
            paid["ledger"] = None if self.ledger.path is None else str(self.ledger.path)
        return {
            **paid,
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


_RECORDS = 2**11
"""Expected records of the steps whose coins are drawn together."""


class BatchDataset(Dataset):
    """A dataset that answers a whole index at once; an empty index gives an empty batch of the right shapes.

    Collating record by record costs more than a step of a small network; tensors are indexed instead.

    Args:
        dataset: a `TensorDataset`, or any map-style dataset whose records `default_collate` can join.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        """Number of records n."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        """One record."""
        return self.dataset[index]

    def __getitems__(self, index: Tensor | list[int] | slice) -> Any:
        """The batch at `index` `[B]`, collated; a slice of tensors is a view of them."""
        if isinstance(self.dataset, TensorDataset):
            tensors = self.dataset.tensors
            if isinstance(index, slice):
                return [tensor[index] for tensor in tensors]
            index = torch.as_tensor(index, dtype=torch.long)
            return [tensor.index_select(0, index.to(tensor.device)) for tensor in tensors]
        positions = range(len(self))[index] if isinstance(index, slice) else torch.as_tensor(index).tolist()
        if len(positions):
            return default_collate([self.dataset[i] for i in positions])
        return apply_to_collection(default_collate([self.dataset[0]]), Tensor, lambda part: part[:0])


def ready(batch: Any) -> Any:
    """Pass a batch that needs no collating (a function, so that worker processes can import it)."""
    return batch


class PoissonSampler(Sampler):
    """Batch sampler in which each record is in each batch independently with probability q.

    The sample is secret: amplification by sampling holds only against who cannot see who was in it.  So the
    coins come from the noise source, not from the experiment's seed, and are never saved in a checkpoint.
    Batches have no fixed size and may be empty; every step counts. The chance of each record is q to within 2^-64, and
    never above it. At q = 1 every batch is all records: a slice, for which no coin is thrown and nothing is copied.

    Args:
        size: number of records n.
        sampling_rate: q in (0, 1].
        steps: number of batches in one pass.
        noise: where the coins come from.

    Raises:
        InputError: a value out of its range.

    Example:
        >>> sampler = PoissonSampler(1000, 0.1, steps=3, noise=NoiseSource.fixed(0))
        >>> [50 < len(batch) < 150 for batch in sampler]
        [True, True, True]
    """

    def __init__(self, size: int, sampling_rate: float, steps: int, noise: NoiseSource) -> None:
        if size < 1:
            raise InputError(f"size={size} must be at least 1")
        if not 0 < sampling_rate <= 1:
            raise InputError(f"sampling_rate={sampling_rate!r} must be in (0, 1]")
        if steps < 1:
            raise InputError(f"steps={steps} must be at least 1")
        self.size = size
        self.sampling_rate = sampling_rate
        self.steps = steps
        self.private = noise.private
        self._noise = noise

    def __len__(self) -> int:
        """Number of batches in one pass."""
        return self.steps

    def __iter__(self) -> Iterator[Tensor | slice]:
        """Yield the indices `[B]` of each batch, in increasing order; a slice of all of them at rate 1."""
        if self.sampling_rate == 1:
            yield from [slice(0, self.size)] * self.steps
            return
        size = self.size
        # coins of several small steps at once, one step's behind the other's
        together = min(self.steps, max(1, int(_RECORDS / (size * self.sampling_rate))))
        for first in range(0, self.steps, together):
            steps = min(together, self.steps - first)
            heads = self._noise.chosen(steps * size, self.sampling_rate)
            step, record = heads.div(size, rounding_mode="floor"), heads % size
            yield from record.split(step.bincount(minlength=steps).tolist())


class PoissonLoader(DataLoader):
    """A data loader over a `PoissonSampler`: sampling has no memory, so it resumes without a state.

    Attributes:
        batches: The pass that was begun last; who takes from it goes on in it.
    """

    batches: Iterator[Any] = iter(())

    def __iter__(self) -> Any:
        """Fetch batches; in this process without what PyTorch does around each, which takes as long as a short step."""
        if self.num_workers or self.pin_memory:
            self.batches = super().__iter__()
        else:
            records: Any = self.dataset
            sampler: Any = self.batch_sampler
            self.batches = (self.collate_fn(records.__getitems__(index)) for index in sampler)
        return self.batches

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the coins must not be stored, and the next ones do not depend on the last."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up an empty state."""


def poisson_loader(
    dataset: Dataset, sampling_rate: float, steps: int, noise: NoiseSource, **settings: Any
) -> PoissonLoader:
    """Data loader whose batches are Poisson samples of `dataset`.

    Args:
        dataset: the records; a `TensorDataset` is indexed in one gather.
        sampling_rate: q in (0, 1].
        steps: batches in one pass.
        noise: where the coins come from.
        settings: further arguments of `DataLoader` (workers, pinning).

    Raises:
        InputError: a value out of its range.

    Example:
        >>> import torch
        >>> records = torch.utils.data.TensorDataset(torch.zeros(100, 3), torch.zeros(100))
        >>> loader = poisson_loader(records, 0.1, steps=2, noise=NoiseSource.fixed(0))
        >>> [x.shape[1] for x, a in loader]
        [3, 3]
    """
    records = BatchDataset(dataset)
    sampler = PoissonSampler(len(records), sampling_rate, steps, noise)
    return PoissonLoader(records, batch_sampler=sampler, collate_fn=ready, **settings)


def shuffled_loader(dataset: Dataset, batch_size: int, seed: int, **settings: Any) -> DataLoader:
    """Ordinary shuffled batches from a seed, for training without privacy.

    Args:
        dataset: the records.
        batch_size: records in a batch; the last one of an epoch may be smaller.
        seed: fixes the order.
        settings: further arguments of `DataLoader`.

    Example:
        >>> loader = shuffled_loader(TensorDataset(torch.arange(5)), batch_size=2, seed=0)
        >>> sorted(int(i) for (batch,) in loader for i in batch)
        [0, 1, 2, 3, 4]
    """
    records = BatchDataset(dataset)
    order = RandomSampler(records, generator=torch.Generator().manual_seed(seed))
    sampler = BatchSampler(order, batch_size, drop_last=False)
    return DataLoader(records, batch_sampler=sampler, collate_fn=ready, **settings)
