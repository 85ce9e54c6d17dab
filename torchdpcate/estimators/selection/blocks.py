"""Records as nuisances and scores see them: actions by position, in public blocks."""

from dataclasses import replace

import torch
from torch import LongTensor

from torchdpcate.data.records import CausalData
from torchdpcate.data.split import public_split


def by_position(records: CausalData, actions: tuple[int, ...]) -> CausalData:
    """Return records whose action is its position among the labels, 0 to K - 1.

    Args:
        records: Records; each action is one of the labels.
        actions: Labels, in increasing order.

    Example:
        >>> x = torch.zeros(2, 1, dtype=torch.float64)
        >>> by_position(CausalData(x, torch.tensor([3.0, 1.0]), x[:, 0]), (1, 3)).a.tolist()
        [1.0, 0.0]
    """
    labels = torch.tensor(actions, dtype=torch.float64)
    return replace(records, a=torch.searchsorted(labels, records.a.double()).double())


def training_and_scoring(n: int, share: float, seed: int) -> tuple[LongTensor, LongTensor]:
    """Return the positions of the records that train nuisances, and of those that score policies; see `public_split`.

    Args:
        n: Number of records.
        share: Share of the records that train.
        seed: Public seed.
    """
    return public_split(n, share, seed, "policy selection")
