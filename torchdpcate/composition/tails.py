"""What a clip took of a sum, by noisy counts near and beyond it on either side."""

import math
from functools import cache
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
_NODES = 2048  # quantiles of a law of residuals
_GAMMAS, _LOGNORMALS = (4.0, 1.0, 0.4, 0.2), (0.6, 1.0, 1.4)  # shapes of skewed laws
_SYMMETRIC = 0.4  # prior probability that a law of residuals is: normal, or Student's with 3 degrees of freedom
_SAME = 0.5  # prior probability that both arms have the same law
_RATIOS = ((0.6, 0.25), (1.0, 0.5), (1.7, 0.25))  # of the arms' deviations, and prior probabilities
_BY_LAWS = 0.5  # prior probability of these laws
_MISFIT = 0.1  # error of a mean square by a law, over it
_ROUNDS = 60  # of a Huber location's iteration


class Residuals(NamedTuple):
    """What is released of the residuals that scores are made of, and of the scores' mean square.

    Attributes:
        deviation: Of a normal law with the same quantile of absolute residuals, outcome units.
        quantile: Which one.
        bound: Largest residual, outcome units.
        inverse: Mean of 1 / e + 1 / e', propensities of the arm and of the reference.
        share: e over e + e'.
        square: Mean square of scores within ``far``, squared outcome units.
        noise: Standard deviation of its noise.
        far: Clip of scores in it, outcome units.
    """

    deviation: float
    quantile: float
    bound: float
    inverse: float
    share: float
    square: float
    noise: float
    far: float

    @property
    def propensities(self) -> tuple[float, float]:
        """Propensities of the arm and of the reference that have this share and this mean inverse."""
        both = 1 / (self.inverse * self.share * (1 - self.share))
        return self.share * both, (1 - self.share) * both


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


def tail_of(
    counts: Tensor,
    noise: float,
    clip: float,
    most: float,
    model: float,
    mass: float,
    residuals: Residuals | None = None,
) -> Tail:
    r"""Return what the clip took of a sum, by counts in (C/2, C] and beyond C on either side.

    .. math:: b = \sum_\pm \pm N_\pm \min\Big(\frac{.85\, C}{\alpha_\pm - 1}, .85\, C, B\Big), \quad
        N = T\, 2^{-\alpha},\ M = T - N

    of a tail whose mean excess is .85 of that by Pareto's law: the posterior mean of b, where the counts have the means
    M and N and the variances s^2 + M and s^2 + N, alpha is even on [1.2, 10], and T is 0 with probability .3, else even
    in its logarithm over as many sizes as there are records. With probability .5 both sides have the same T and
    alpha: they cancel, but for .3 of what the clip took of both as a deviation. Else the variance is the
    posterior one and that of the model: a part of b, and a third of that part of what both sides have. Counts without
    noise are what they are.

    Where released residuals are given, their laws take the place of sides that are alike. Residuals R of either arm are
    normal, of Student's law, or skewed (gamma, lognormal) to either side, and scores are R / e and -R / e': where one
    arm is rare, a clip of scores is within the bulk of its residuals, and skewness of both arms cancels nowhere. A law
    has the mean counts, the mean square and the b that its quantiles make.

    Args:
        counts: Near and beyond the clip above, then below, [4].
        noise: s, of a count.
        clip: C.
        most: B, largest mean excess.
        model: Part of the correction that is taken for its own standard error.
        mass: Records.
        residuals: Released of what the scores are made of; None of outcomes that are often at their bounds.

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
    if residuals is not None:
        return _mixed(own, other, _by_laws(counts.double(), noise, clip, mass, residuals), model)
    both = _posterior(near, far, noise, clip, most, mass)
    odds = math.log(_ALIKE / (1 - _ALIKE)) + both.evidence - own.evidence - other.evidence
    alike = float(torch.sigmoid(torch.tensor(odds, dtype=torch.float64)))
    taken, size = own.mean - other.mean, own.mean + other.mean
    apart = own.variance + other.variance + _of_model(taken, size, model)
    cancels = _APART**2 * 4 * both.square
    variance = alike * cancels + (1 - alike) * (apart + alike * taken**2)
    return Tail((1 - alike) * taken, variance, (1 - alike) * size + alike * 2 * both.mean)


class _Laws(NamedTuple):
    """Logarithm of the probability of what is released by the laws, posterior mean and variance of b, mean size."""

    evidence: float
    mean: float
    variance: float
    size: float


def _mixed(own: _Side, other: _Side, laws: _Laws, model: float) -> Tail:
    """Return what the clip took: by a tail on each side, or by laws of residuals."""
    means = laws.mean, own.mean - other.mean
    sizes = laws.size, own.mean + other.mean
    variances = laws.variance, own.variance + other.variance
    odds = math.log(_BY_LAWS / (1 - _BY_LAWS)) + laws.evidence - own.evidence - other.evidence
    weight = float(torch.sigmoid(torch.tensor(odds, dtype=torch.float64)))
    each = list(zip((weight, 1 - weight), means, variances, sizes, strict=True))
    taken = sum(part * mean for part, mean, _, _ in each)
    variance = sum(
        part * (spread + _of_model(mean, size, model) + (mean - taken) ** 2) for part, mean, spread, size in each
    )
    return Tail(taken, variance, sum(part * size for part, _, _, size in each))


@cache
def _laws(quantile: float) -> tuple[Tensor, Tensor]:
    """Return quantiles of laws of residuals [L, nodes] and their prior probabilities [L].

    Each is about its Huber location at the quantile q of absolute residuals, and has the q of a standard normal law.
    """
    from scipy.special import gammaincinv, ndtri, stdtrit

    u = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    normal = torch.special.ndtri(u)
    skewed = [torch.from_numpy(gammaincinv(shape, u.numpy())) for shape in _GAMMAS]
    skewed += [torch.exp(spread * normal) for spread in _LOGNORMALS]
    each = [normal, torch.from_numpy(stdtrit(3, u.numpy())), *skewed, *(-law.flip(0) for law in skewed)]
    x = torch.stack(each)
    centre = x.median(1, keepdim=True).values
    for _ in range(_ROUNDS):
        scale = torch.quantile((x - centre).abs(), quantile, dim=1, keepdim=True)
        centre = centre + torch.maximum(torch.minimum(x - centre, scale), -scale).mean(1, keepdim=True)
    symmetric, count = 2, 2 * len(skewed)
    prior = torch.tensor([_SYMMETRIC / symmetric] * symmetric + [(1 - _SYMMETRIC) / count] * count)
    return (x - centre) / scale * float(ndtri((1 + quantile) / 2)), prior.double()


def _counted(residuals: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return shares near and beyond a clip above, then below, [L, 4], and mean excesses on either side, [L, 2]."""
    shares, excesses = [], []
    for side in (residuals, -residuals):
        beyond = (side > clip).double().mean(1)
        shares += [(side > clip / 2).double().mean(1) - beyond, beyond]
        excesses.append((side - clip).clamp_min(0).mean(1))
    return torch.stack(shares, 1), torch.stack(excesses, 1)


def _by_laws(counts: Tensor, noise: float, clip: float, mass: float, residuals: Residuals) -> _Laws:
    """Return what counts and the mean square say of b where both arms have laws of ``_laws``."""
    standard, prior = _laws(residuals.quantile)
    own, other = residuals.propensities
    both = (1 - _SAME) * prior.outer(prior) + _SAME * prior.diag()
    found, means, squares, excesses = [], [], [], []
    for ratio, chance in _RATIOS:
        scales = residuals.deviation * ratio ** (1 - residuals.share), residuals.deviation * ratio**-residuals.share
        r, s = ((standard * scale).clamp(-residuals.bound, residuals.bound) for scale in scales)
        (near, excess), (its, less) = _counted(r, clip * own), _counted(s, clip * other)
        its, less = its.roll(2, 1), less.flip(1)  # the reference's residuals have the other sign in scores
        means.append(own * near[:, None] + other * its)
        excesses.append(excess[:, None] + less)
        within = [p * (x / p).clamp(-residuals.far, residuals.far).square().mean(1) for x, p in ((r, own), (s, other))]
        squares.append(within[0][:, None] + within[1])
        found.append((chance * both).log())
    mean, excess, square = (torch.stack(part).flatten(0, 2) for part in (means, excesses, squares))
    mean, excess = mass * mean, mass * excess
    spread = noise**2 + mean
    likely = torch.stack(found).flatten() - 0.5 * ((counts - mean).square() / spread + spread.log()).sum(1)
    released = square.new_tensor(residuals.square)
    error, usual = (residuals.noise**2 + (_MISFIT * at).square() for at in (square, released))
    likely = likely - 0.5 * ((released - square).square() / error + (error / usual).log())
    evidence = torch.logsumexp(likely, 0)
    weight, taken = (likely - evidence).exp(), excess[:, 0] - excess[:, 1]
    middle = float(weight @ taken)
    return _Laws(float(evidence), middle, float(weight @ (taken - middle).square()), float(weight @ excess.sum(1)))


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
