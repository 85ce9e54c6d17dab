"""What a clip takes of a sum of scores, by noisy counts of how many lie near it and beyond."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_POWERS = (1.2, 10.0)  # alpha; an excess is that of 2 at most
_GRID = 61  # numbers of records in a tail, and powers, that are thought of
_LEAST_TAIL = 0.5  # records, if there are any
_EXCESS = 0.85  # mean excess over a clip, over that by Pareto's law of the same counts: .4 to 1.1 on generated laws
_NO_TAIL = 0.3  # prior probability that there are none


class Tail(NamedTuple):
    """What a clip took of a sum of scores: by its counts, with the variance of that, and the size on both sides."""

    taken: float
    variance: float
    size: float


def tail_of(counts: Tensor, noise: float, clip: float, most: float, model: float, mass: float) -> Tail:
    r"""Return what the clip took of a sum, by counts in (C/2, C] and beyond C on either side.

    .. math:: b = \sum_\pm \pm N_\pm \min\Big(\frac{.85\, C}{\alpha_\pm - 1}, .85\, C, B\Big), \quad
        N = T\, 2^{-\alpha},\ M = T - N

    of a tail whose mean excess is .85 of that by Pareto's law: the posterior mean of b, where the counts have the means
    M and N and the variances s^2 + M and s^2 + N, alpha is even on [1.2, 10], and T is 0 with probability .3, else even
    in its logarithm over as many sizes as there are records. Its variance is the posterior one and that of its model: a
    part of b, and a third of that part of what cancels between the sides. Counts without noise are what they are.

    Args:
        counts: Near and beyond the clip above, then below, [4].
        noise: s, of a count.
        clip: C.
        most: B, largest mean excess.
        model: Part of the correction that is taken for its own standard error.
        mass: Records.

    Example:
        >>> found = tail_of(torch.tensor([30.0, 10.0, 0.0, 0.0]).double(), 0.0, 1.0, math.inf, 0.5, 1e3)
        >>> round(found.taken, 3), round(found.variance, 3)
        (8.5, 20.069)
    """
    near, far = counts.double().view(2, 2).T[..., None]
    if noise:
        middles = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
        alpha = _POWERS[0] + (_POWERS[1] - _POWERS[0]) * middles
        reach = 6 * (2 * noise**2 + (near + far).clamp_min(0) + 1).sqrt()
        low = (near + far - reach).clamp_min(_LEAST_TAIL)
        steps = ((near + far + reach).clamp_min(2 * _LEAST_TAIL) / low).log()
        total = low * torch.exp(steps * middles)  # [2, totals]
        each_size = steps / math.log(max(mass, 2.0)) * (1 - _NO_TAIL) / _GRID**2
        density = each_size.log().expand(-1, _GRID**2)
        beyond = total[..., None] * 2**-alpha
        before = total[..., None] - beyond
        nothing = torch.zeros(2, 1, dtype=torch.float64)
        before, beyond = (torch.cat([nothing, part.flatten(1)], 1) for part in (before, beyond))
        found = torch.cat([nothing + math.log(_NO_TAIL), density], 1)
        for count, part in ((near, before), (far, beyond)):
            found = found - 0.5 * ((count - part).square() / (noise**2 + part) + (noise**2 + part).log())
        weight = torch.softmax(found, 1)
        excess = _excess(alpha, clip).clamp_max(most).repeat(_GRID)
        each = beyond * torch.cat([excess[:1], excess])
    else:
        alpha = torch.log2((near + far) / far.clamp_min(1e-9)).clamp(*_POWERS)
        each, weight = far * _excess(alpha, clip).clamp_max(most), torch.ones_like(far)
    mean = (weight * each).sum(1)
    variance = float(((weight * each.square()).sum(1) - mean.square()).clamp_min(0).sum())
    taken, size = float(mean[0] - mean[1]), float(mean.sum())
    return Tail(taken, variance + (model * taken) ** 2 + (model * size / 3) ** 2, size)


def _excess(alpha: Tensor, clip: float) -> Tensor:
    """Return the mean excess over a clip of a tail of power alpha, which is 2 at least for it."""
    return _EXCESS * clip / (alpha - 1).clamp_min(1.0)
