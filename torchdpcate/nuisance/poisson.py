"""Poisson sampling: each record enters each step by its own coin, so a step may well be empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from torchdpcate.errors import InputError
from torchdpcate.nuisance.batches import BatchDataset, ready
from torchdpcate.privacy.noise import NoiseSource

_RECORDS = 2**11
"""Expected records of the steps whose coins are drawn together."""


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
        self.part = slice(0, size)
        """Records that are sampled here; several processes have one part each, and one rate."""
        self.private = noise.private
        self._noise = noise

    def __len__(self) -> int:
        """Number of batches in one pass."""
        return self.steps

    def __iter__(self) -> Iterator[Tensor | slice]:
        """Yield the indices `[B]` of each batch, in increasing order; a slice of all of them at rate 1."""
        if self.sampling_rate == 1:
            yield from [self.part] * self.steps
            return
        first_record, size = self.part.start, self.part.stop - self.part.start
        # coins of several small steps at once, one step's behind the other's
        together = min(self.steps, max(1, int(_RECORDS / (size * self.sampling_rate))))
        for first in range(0, self.steps, together):
            steps = min(together, self.steps - first)
            heads = self._noise.chosen(steps * size, self.sampling_rate)
            step, record = heads.div(size, rounding_mode="floor"), heads % size + first_record
            yield from record.split(step.bincount(minlength=steps).tolist())


class PoissonLoader(DataLoader):
    """A data loader over a `PoissonSampler`: sampling has no memory, so it resumes without a state."""

    def __iter__(self) -> Any:
        """Fetch batches; in this process without what PyTorch does around each, which takes as long as a short step."""
        if self.num_workers or self.pin_memory:
            return super().__iter__()
        records: Any = self.dataset
        sampler: Any = self.batch_sampler
        return (self.collate_fn(records.__getitems__(index)) for index in sampler)

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
