"""Batches of records: Poisson samples, into which each record enters by its own coin, and shuffled ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, TensorDataset, default_collate

from torchdpcate.errors import InputError
from torchdpcate.privacy.noise import NoiseSource

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
