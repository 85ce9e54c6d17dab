"""A private choice of the covariates that a composition keeps."""

import math

import torch
from torch import Tensor

from torchdpcate.composition.steps import NoisySteps, summation_error

_BATCH = 2**22  # numbers of a batch of waves


def private_screening(u: Tensor, residual: Tensor, kept: int, steps: NoisySteps) -> tuple[int, ...]:
    r"""Return the positions of the covariates whose slope or hump against a residual is largest, in ascending order.

    .. math:: \max_b \Big|\sum_i b(u_{ij})\, r_i\Big| + N_j, \quad b \in \{\sin(\pi u / 2), \cos(\pi u)\}

    A record moves each score by at most 2, hence all q by :math:`2\sqrt{q}` in the l2 norm: one Gaussian event.

    Args:
        u: Covariates scaled to [-1, 1], [n, q].
        residual: r, outcomes about their released centre over their released scale, clipped to [-1, 1], [n].
        kept: How many.
        steps: Pays, and draws noise.
    """
    n, q = u.shape
    scores = torch.cat([_strengths(part, residual) for part in u.split(max(1, _BATCH // n), 1)])
    sensitivity = math.sqrt(q) * (2 + 2 * summation_error(n, 1.0))
    noisy = steps.release("screening", scores, sensitivity)
    return tuple(sorted(noisy.topk(kept).indices.tolist()))


def _strengths(u: Tensor, r: Tensor) -> Tensor:
    """Return the scores of some columns."""
    waves = (torch.sin(math.pi / 2 * u), torch.cos(math.pi * u))
    return torch.stack([wave.T @ r for wave in waves]).abs().amax(0)
