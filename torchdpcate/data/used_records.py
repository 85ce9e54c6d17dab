"""Whether this process has fitted a learner to the same records before.

What is kept is a digest by a random key of this process, in its memory alone: it tells nothing of the records.
"""

import secrets

import numpy as np
import torch

from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData

_ROWS = 4_096  # at a time, so that what is worked out of them stays in a processor's cache
_MOST = 10_000  # digests

_key = secrets.token_bytes(32)
_used: dict[int, bool] = {}  # digests, the oldest first, and whether the user was told


def keyed_digest(records: CausalData | RecordStream) -> int:
    r"""Return a digest of records in whatever order and precision; of a stream, of n and its first records.

    .. math:: n + \sum_i h(x_i, a_i, y_i) \mod 2^{64}

    with h a multilinear hash of a record's float32 bits with a random key, mixed.

    Args:
        records: Within their bounds.
    """
    first = next(iter(records)) if isinstance(records, RecordStream) else records
    rows = _ROWS if isinstance(records, RecordStream) else first.n
    table = [first.x[:rows], first.a[:rows, None], first.y[:rows, None]]
    width = first.x.shape[1] + 2
    keys = torch.from_numpy(np.random.default_rng(list(_key)).integers(-(1 << 63), (1 << 63) - 1, width + 2) | 1)
    total = records.n * int(keys[-1])
    for parts in zip(*(part.split(_ROWS) for part in table), strict=True):
        # adding zero makes -0.0 the number 0.0
        bits = (torch.cat([part.cpu().float() for part in parts], 1) + 0.0).view(torch.int32)
        mixed = (bits * keys[:width]).sum(1)
        mixed = (mixed ^ (mixed >> 31)) * keys[width]
        total += int((mixed ^ (mixed >> 29)).sum())
    return total % (1 << 64)


def used_again(digest: int, told: bool = True) -> bool:
    """Note a fit; return whether there was one to the same records before, of which nobody was told yet.

    Args:
        digest: Of the records.
        told: Whether the user is told now.
    """
    again = _used.get(digest)
    _used[digest] = (again or told) if again is not None else False
    if len(_used) > _MOST:
        del _used[next(iter(_used))]
    return told and again is False
