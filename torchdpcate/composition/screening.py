"""A private choice of the covariates that a composition keeps."""

import math

import torch
from torch import Tensor

from torchdpcate.composition.batch_sums import summed
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.gumbel_top_k import gumbel_top_k
from torchdpcate.privacy.selection import top_k


def private_screening(u: Tensor, residual: Tensor, kept: int, steps: NoisySteps) -> tuple[int, ...]:
    r"""Return the positions of the covariates whose slope or hump against a residual is largest, in ascending order.

    .. math:: \max_b \Big|\sum_i b(u_{ij})\, r_i\Big|, \quad b \in \{\sin(\pi u / 2), \cos(\pi u)\}

    A record moves each score by at most 2. They are chosen one by one, each at an equal share of the step, by
    ``gumbel_top_k``: its noise grows with the number that is kept, that of released scores with all q. By pure events
    they are chosen by ``top_k``.

    Args:
        u: Covariates scaled to [-1, 1], [n, q].
        residual: r within [-1, 1], [n]; see ``screening_residual``.
        kept: How many.
        steps: Pays, and draws noise.
    """
    return screening_by_sums(screening_sums(u, residual), len(u), kept, steps)


def screening_residual(y: Tensor, clip: float, binary: bool) -> Tensor:
    """Return outcomes over their clip, within [-1, 1], [n].

    Args:
        y: Outcomes about their centre, [n].
        clip: Released; of a binary outcome its range, of which either value is one half away from the middle.
        binary: Whether it has two values.

    Example:
        >>> screening_residual(torch.tensor([-0.5, 0.5]), 1.0, binary=True).tolist()
        [-1.0, 1.0]
    """
    return (y / (clip / 2 if binary else clip)).clamp(-1, 1)


def screening_sums(u: Tensor, residual: Tensor) -> Tensor:
    """Return the sums over records u [n, q], residual [n] that ``private_screening`` compares, [2, q]."""
    return summed(_wave_sums, u, residual).cpu()


def screening_by_sums(sums: Tensor, n: int, kept: int, steps: NoisySteps) -> tuple[int, ...]:
    """Return what ``private_screening`` does, of ``screening_sums`` of n records."""
    scores = sums.abs().amax(0)
    if not steps.private:
        return tuple(sorted(scores.topk(kept).indices.tolist()))
    event, noise, sensitivity = steps.pay("screening", count=kept), steps.session.noise, 2 + steps.rounding(n, 1.0)
    if isinstance(event, PureEvent):
        return tuple(sorted(top_k(scores, kept, kept * event.epsilon, noise, sensitivity)))
    return tuple(sorted(gumbel_top_k(scores, kept, event, noise, sensitivity)))


def _wave_sums(u: Tensor, r: Tensor) -> Tensor:
    """Return the sums over some records, [2, q]."""
    return torch.stack([wave.T @ r for wave in (torch.sin(math.pi / 2 * u), torch.cos(math.pi * u))])
