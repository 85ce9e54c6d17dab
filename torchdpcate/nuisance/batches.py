"""Batches fetched by index in one gather, for records kept in tensors as well as for any other dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset, default_collate


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
        return tree_map(_emptied, default_collate([self.dataset[0]]))


def _emptied(value: Any) -> Any:
    return value[:0] if isinstance(value, Tensor) else value


def ready(batch: Any) -> Any:
    """Pass a batch that needs no collating (a function, so that worker processes can import it)."""
    return batch


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
