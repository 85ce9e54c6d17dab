"""The utility of every policy of a library: sums of scores, a block of records at a time."""

import torch
from torch import Tensor

from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.errors import InputError

_BLOCK = 2**21  # decisions in memory at once: some MB, which larger caches hold


def utilities(scores: Tensor, library: PolicyLibrary, x: Tensor) -> Tensor:
    r"""Return the sum of each policy's scores.

    .. math::
        U(\pi) = \sum_i \phi_i(\pi(x_i))
        = \sum_i \phi_i(0) + \sum_{a \ge 1} \sum_i 1\{\pi(x_i) = a\} (\phi_i(a) - \phi_i(0))

    one matrix product for each block of records and action but the first. Decisions of two million pairs of record and
    policy are in memory at once, however many there are.

    Args:
        scores: phi, float64 [..., n, K]; leading dimensions are nuisances side by side. On the grid of
            ``sum_grid(n, bound)`` all sums are exact; float32 would not do.
        library: The policies, set up on the domain.
        x: Encoded covariates [n, q].

    Returns:
        U, float64 [..., M]. The curator's.

    Raises:
        InputError: Scores and covariates of different records, or scores that are not float64.

    Example:
        >>> from torchdpcate.candidates import PolicyLibrary, Thresholds
        >>> from torchdpcate.data import Domain
        >>> library = PolicyLibrary.of(Thresholds("x0", [0.3, 0.6])).setup(Domain([0.0], [1.0], -1, 1), (0, 1))
        >>> scores = torch.tensor([[0.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
        >>> utilities(scores, library, torch.tensor([[0.5], [0.9]], dtype=torch.float64)).tolist()
        [5.0, 4.0]
    """
    if scores.dtype != torch.float64 or scores.shape[-2] != len(x):
        raise InputError(
            f"scores: {str(scores.dtype).removeprefix('torch.')} of shape {list(scores.shape)} for {len(x)} records; "
            "they must be float64, a row for each record"
        )
    gains = (scores[..., 1:] - scores[..., :1]).movedim(-1, 0)
    total = scores[..., 0].sum(-1, keepdim=True).repeat_interleave(len(library), -1)
    block = max(1, _BLOCK // len(library))
    for start in range(0, len(x), block):
        rows = slice(start, start + block)
        decisions = library.decide(x[rows])
        for action, gain in enumerate(gains, start=1):
            total += gain[..., rows] @ (decisions == action).double()
    return total
