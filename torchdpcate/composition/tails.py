"""What a clip took of a sum, by noisy counts near and beyond it on either side."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_POWERS = (1.2, 10.0)  # alpha; an excess is that of 2 at most
_GRID = 61  # numbers of records in a tail, and powers, that are thought of
_LEAST_TAIL = 0.5  # records, if there are any
_EXCESS = 0.85  # mean excess over a clip, over that by Pareto's law of the same counts: .4 to 1.1 on generated laws
_NO_TAIL = 0.3  # prior probability that there are none
_ALIKE = 0.5  # prior probability that both sides are alike
_APART = 0.3  # deviation of what does not cancel between sides that are alike, over both together


class Tail(NamedTuple):
    """What a clip took of a sum, the variance of that, and what it took on both sides together."""

    taken: float
    variance: float
    size: float


class _Side(NamedTuple):
    """Logarithm of the probability of some counts, posterior mean of what the clip took, and of its square."""

    evidence: float
    mean: float
    square: float

    @property
    def variance(self) -> float:
        return max(self.square - self.mean**2, 0.0)


def tail_of(counts: Tensor, noise: float, clip: float, most: float, model: float, mass: float) -> Tail:
    r"""Return what the clip took of a sum, by counts in (C/2, C] and beyond C on either side.

    .. math:: b = \sum_\pm \pm N_\pm \min\Big(\frac{.85\, C}{\alpha_\pm - 1}, .85\, C, B\Big), \quad
        N = T\, 2^{-\alpha},\ M = T - N

    of a tail whose mean excess is .85 of that by Pareto's law: the posterior mean of b, where the counts have the means
    M and N and the variances s^2 + M and s^2 + N, alpha is even on [1.2, 10], and T is 0 with probability .3, else even
    in its logarithm over as many sizes as there are records. With probability .5 both sides have the same T and
    alpha: they cancel, but for .3 of what the clip took of both as a deviation. Else the variance is the
    posterior one and that of the model: a part of b, and a third of that part of what both sides have. Counts without
    noise are what they are.

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
    near, far = counts.double().view(2, 2).T
    if noise == 0:
        alpha = torch.log2((near + far) / far.clamp_min(1e-9)).clamp(*_POWERS)
        above, below = (far * _excess(alpha, clip).clamp_max(most)).tolist()
        return Tail(above - below, _of_model(above - below, above + below, model), above + below)
    own, other = (_posterior(near[k : k + 1], far[k : k + 1], noise, clip, most, mass) for k in (0, 1))
    both = _posterior(near, far, noise, clip, most, mass)
    odds = math.log(_ALIKE / (1 - _ALIKE)) + both.evidence - own.evidence - other.evidence
    alike = float(torch.sigmoid(torch.tensor(odds, dtype=torch.float64)))
    taken, size = own.mean - other.mean, own.mean + other.mean
    apart = own.variance + other.variance + _of_model(taken, size, model)
    cancels = _APART**2 * 4 * both.square
    variance = alike * cancels + (1 - alike) * (apart + alike * taken**2)
    return Tail((1 - alike) * taken, variance, (1 - alike) * size + alike * 2 * both.mean)


def _of_model(taken: float, size: float, model: float) -> float:
    """Return the variance of what the model of tails makes of a correction."""
    return (model * taken) ** 2 + (model * size / 3) ** 2


def _posterior(near: Tensor, far: Tensor, noise: float, clip: float, most: float, mass: float) -> _Side:
    """Return what counts near and beyond the clip, [sides] each, say of the tail that all these sides have."""
    middles = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
    alpha = _POWERS[0] + (_POWERS[1] - _POWERS[0]) * middles
    seen = max(float((near + far).mean()), 0.0)
    reach = 6 * math.sqrt((2 * noise**2 + seen + 1) / len(near))
    low, high = max(seen - reach, _LEAST_TAIL), max(seen + reach, 2 * _LEAST_TAIL)
    width = math.log(high / low)
    total = low * torch.exp(width * middles)
    beyond = (total[:, None] * 2**-alpha).flatten()
    before = total.repeat_interleave(_GRID) - beyond
    prior = (1 - _NO_TAIL) * width / math.log(max(mass, 2.0)) / _GRID**2
    before, beyond = (torch.cat([part.new_zeros(1), part]) for part in (before, beyond))
    found = torch.full_like(beyond, math.log(prior))
    found[0] = math.log(_NO_TAIL)
    for counts, mean in ((near, before), (far, beyond)):
        variance = noise**2 + mean
        found = found - 0.5 * ((counts[:, None] - mean).square() / variance + variance.log()).sum(0)
    evidence = torch.logsumexp(found, 0)
    weight = torch.exp(found - evidence)
    excess = _excess(alpha, clip).clamp_max(most).repeat(_GRID)
    taken = beyond * torch.cat([excess[:1], excess])
    return _Side(float(evidence), float((weight * taken).sum()), float((weight * taken.square()).sum()))


def _excess(alpha: Tensor, clip: float) -> Tensor:
    """Return the mean excess over a clip of a tail of power alpha, which is 2 at least for it."""
    return _EXCESS * clip / (alpha - 1).clamp_min(1.0)
