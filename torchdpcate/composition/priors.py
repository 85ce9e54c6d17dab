"""What is expected of features, which are requested with which weights, and how estimates are shrunk."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.constants import PlanConstants, RuleConstants, of_kind
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import (
    KINDS,
    PAIRED,
    PRODUCTS,
    UNITS,
    Feature,
    HiddenUnits,
    WeightedBasis,
    all_features,
)


class Filling(NamedTuple):
    """How one noise is divided.

    Attributes:
        noise: sigma^2, variance of the noise of a function of weight one.
        constant: e_0, weight of the constant.
        feature_weights: e, of the features, [p].
        error: Expected squared error of the function.
    """

    noise: float
    constant: float
    feature_weights: Tensor
    error: float


def water_filling(prior: Tensor, noise: float, constant: float = math.inf) -> tuple[float, Tensor]:
    r"""Return feature weights e_0 of the constant and e_j of features, together one, of least expected error.

    .. math:: \min_e \sum_{j \ge 0} \frac{g_j v_j}{g_j + v_j}, \quad v_j = \frac{\sigma^2}{e_j},
        \qquad e_j = \max(0, \lambda - \sigma^2/g_j)

    With an infinite prior variance of the constant, :math:`\lambda = e_0`: a feature is requested only where its prior
    variance g_j exceeds the constant's noise.

    Args:
        prior: g, variances of the features' parts of a function, float64 [p], positive.
        noise: sigma^2, variance of the noise of a function of weight one.
        constant: g_0, prior variance of the constant; at least that of any feature, so that it is always requested.

    Returns:
        e_0, and e [p].

    Example:
        >>> constant, rest = water_filling(torch.tensor([1.0, 0.1]).double(), 0.2)
        >>> round(constant, 6), [round(e, 6) for e in rest.tolist()]
        (0.6, [0.4, 0.0])
    """
    needs, own = noise / prior, noise / constant
    ordered = needs.sort().values
    level = (1 + own + torch.cat([needs.new_zeros(1), ordered.cumsum(0)])) / torch.arange(1, len(needs) + 2)
    requested = int((level[1:] > ordered).sum())  # levels exceed needs for the first few, and for no others
    return level[requested].item() - own, (level[requested] - needs).clamp_min(0)


def gaussian_filling(prior: Tensor, noise: float, constant: float = math.inf) -> Filling:
    """Return the feature weights of ``water_filling`` with what is to be expected; see there."""
    return Filling(noise, *water_filling(prior, noise, constant), sum(expected_error(prior, noise, constant)))


def sampling_filling(prior: Tensor, noise: float, constant: float = math.inf) -> Filling:
    """Return equal weights of all features whose prior variance exceeds what sampling leaves of them.

    Args:
        prior: g, [p].
        noise: Variance of a feature's part by sampling, whatever its weight.
        constant: g_0.
    """
    requested = (prior > noise).double()
    even = 1 / (1 + float(requested.sum()))
    return Filling(noise, even, even * requested, sum(expected_error(prior, noise, constant)))


def pure_filling(prior: Tensor, unit: float, constant: float = math.inf) -> Filling:
    r"""Return weights of least expected error where noise grows with the number of features.

    K-norm noise of 1 + k coefficients has the variance :math:`\sigma^2 = u (2 + k) / 2`, u that of one coefficient.
    Features are requested by falling prior variance, those of one variance together.

    Args:
        prior: g, [p], positive.
        unit: u.
        constant: Prior variance of the constant; see ``water_filling``.

    Example:
        >>> found = pure_filling(torch.tensor([1.0, 1.0, 0.1]).double(), 0.1)
        >>> round(found.noise, 6), round(found.constant, 6), [round(e, 6) for e in found.feature_weights.tolist()]
        (0.2, 0.466667, [0.266667, 0.266667, 0.0])
    """
    least, found = _constant_error(unit, constant) + float(prior.sum()), (unit, 1.0, torch.zeros_like(prior))
    for value in prior.unique().flip(0).tolist():
        requested = prior >= value
        noise = unit * (2 + int(requested.sum())) / 2
        error = sum(expected_error(prior[requested], noise, constant)) + float(prior[~requested].sum())
        if error < least:
            own, some = water_filling(prior[requested], noise, constant)
            feature_weights = torch.zeros_like(prior)
            feature_weights[requested] = some
            least, found = error, (noise, own, feature_weights)
    noise, own, feature_weights = found
    rest = float((prior * noise / (prior * feature_weights + noise)).sum())
    return Filling(noise, own, feature_weights, _constant_error(noise, constant, own) + rest)


def _constant_error(noise: float, prior: float, weight: float = 1.0) -> float:
    return noise / weight if math.isinf(prior) else prior * noise / (prior * weight + noise)


def expected_error(prior: Tensor, noise: float, constant: float = math.inf) -> tuple[float, float]:
    """Return the expected squared error of the constant, and that of all features, by ``water_filling``.

    Args:
        prior: g, [p].
        noise: sigma^2.
        constant: g_0.
    """
    own, feature_weights = water_filling(prior, noise, constant)
    first = noise / own if math.isinf(constant) else constant * noise / (constant * own + noise)
    return first, float((prior * noise / (prior * feature_weights + noise)).sum()) if noise else 0.0


@dataclass(frozen=True)
class Regression:
    """What one regression of the plan requests, and what it may expect.

    Attributes:
        basis: Its features, with weights.
        prior: Prior variance of each feature's part of the function, [p], in units of its squared scale.
        noise: Variance of the noise of a function of weight one, in units of its squared scale.
        error: Expected squared error, in units of its squared scale.
    """

    basis: WeightedBasis
    prior: Tensor
    noise: float
    error: float


def prior_variances(
    features: Sequence[Feature],
    variance: float,
    constants: PlanConstants,
    size: float,
    heads: int | None = None,
    confounds: bool = True,
) -> Tensor:
    """Return each feature's prior variance: its kind's share, evenly.

    What bends and interacts enters as n mu grows; products of a private choice are there where they were
    chosen, and have one part together.

    Args:
        features: All that may be requested.
        variance: Prior variance of a function of them, at large n mu.
        constants: Of the plan.
        size: N mu.
        heads: How many of the covariates, the first ones, were chosen; None: all. The linear features of the others
            have ``tail_variance`` times an even part of all linear ones each, and no more than one of a chosen one.
        confounds: Whether what is not requested may confound; else that is one such part.
    """
    low, high = constants.rough_sizes
    rough = min(max(math.log(size / low) / math.log(high / low), 0.01), 1.0)
    first = [heads is None or feature.j < heads for feature in features]
    counts = Counter(feature.kind for feature, own in zip(features, first, strict=True) if own)
    chosen = sum(counts[kind] for kind in PAIRED)
    each = {}
    for kind, count in counts.items():
        own = variance * constants.part_share(kind) / (chosen if kind in PAIRED else count)
        each[kind] = own if kind in (KINDS[0], *PAIRED) else own * rough
    if not all(first):
        linear = sum(feature.kind == KINDS[0] for feature in features)
        tail = (constants.tail_variance if confounds else 1.0) * variance * constants.part_share(KINDS[0]) / linear
        tail = min(tail, each.get(KINDS[0], math.inf))
    return torch.tensor([each[f.kind] if own else tail for f, own in zip(features, first, strict=True)]).double()


def held_shares(features: Sequence[Feature], k: int, covariates: int, found: float = 1.0) -> Tensor:
    """Return the shares of prior variances that features of k chosen covariates hold, [p].

    The r-th covariate's weight is 1/r; a product needs all of its own.

    Args:
        features: Of the chosen covariates.
        k: How many are chosen.
        covariates: Number of all covariates q.
        found: Share of what the best choice holds beyond one at random that the choice holds.
    """
    weight = 1 / torch.arange(1.0, covariates + 1, dtype=torch.float64)
    share = k / covariates + found * (float(weight[:k].sum() / weight.sum()) - k / covariates)
    return torch.tensor([share ** PRODUCTS.get(feature.kind, 1) for feature in features], dtype=torch.float64)


@dataclass(frozen=True)
class Request:
    """What a regression may request, and what its features cost.

    Attributes:
        constants: Of the plan.
        size: N mu.
        confounds: Whether what is not requested may confound.
        fill: Energies by prior variances, noise, and the prior variance of the constant.
        variance: Prior variance of its features; zero leaves the constant alone.
        noise: Variance of the noise of a function of weight one; by sums how far one record moves the constant, over
            epsilon.
        kinds: Kinds of features that it may have.
        constant: Prior variance of its constant, which is requested in any case.
        least: Prior variance that its features must exceed, but for linear ones of ``heads``.
        heads: How many covariates, the first ones, have features of all kinds; None: all.
    """

    constants: PlanConstants
    size: float
    confounds: bool
    fill: Callable[[Tensor, float, float], Filling]
    variance: float
    noise: float
    kinds: str
    constant: float = math.inf
    least: float = 0.0
    heads: int | None = None

    def priors(self, features: Sequence[Feature]) -> Tensor:
        """Return the prior variances of features, [p]; see ``prior_variances``."""
        return prior_variances(features, self.variance, self.constants, self.size, self.heads, self.confounds)

    def regression(
        self, two_levels: Sequence[bool], pairs: tuple[Feature, ...] = (), units: HiddenUnits | None = None
    ) -> Regression:
        """Return what is requested: the features that are worth their noise.

        Args:
            two_levels: Whether each covariate has two levels.
            pairs: Chosen products beside the features of these.
            units: Combinations of hidden units beside all those.
        """
        features = all_features(two_levels, self.constants.kinds, self.heads) + pairs if self.variance else ()
        prior = self.priors(features)
        if units is not None and self.variance:
            features += units.features
            prior = torch.cat([prior, self.variance * of_kind("effect")["units"]["variance"] * units.shares])
        rich = len(two_levels) if self.heads is None else self.heads
        may = [
            feature.kind in self.kinds and ((feature.kind == KINDS[0] and feature.j < rich) or variance > self.least)
            for feature, variance in zip(features, prior.tolist(), strict=True)
        ]
        candidates = torch.nonzero(torch.tensor(may, dtype=torch.bool)).flatten()
        left_out = float(prior.sum() - prior[candidates].sum())
        found = self.fill(prior[candidates], self.noise, max([self.constant, *prior[candidates].tolist()]))
        there = found.feature_weights > 0
        chosen = candidates[there]
        constant = torch.tensor([found.constant], dtype=torch.float32).double()  # rounded, as all releases have had it
        feature_weights = torch.cat([constant, found.feature_weights[there]])
        requested = tuple(features[j] for j in chosen.tolist())
        basis = WeightedBasis(requested, feature_weights, units if requested and requested[-1].kind == UNITS else None)
        return Regression(basis, prior[chosen], found.noise, found.error + left_out)


@dataclass(frozen=True)
class Sign:
    r"""What the sign of an effect is planned by.

    Effects have the prior of a linear rule, and several sizes: standard deviations over that of the prior.

    Attributes:
        rules: Constants of rules, with the prior variances that effects on this kind of outcome have.
        shrinks: Whether coefficients are shrunk.
        variance: Prior variance of the effect's features, as they are requested.
        found: Share of what the best choice of covariates holds beyond one at random that a choice holds.
        noise: Standard deviation of the score's noise over that of the effect's own steps.
        limit: Correlation of a score without noise, over that of one with all steps.
        sizes: Of the effects.
    """

    rules: RuleConstants
    shrinks: bool
    variance: float
    found: float
    noise: float
    limit: float
    sizes: tuple[float, ...]

    def correlation(self, effect: Regression, k: int, covariates: int) -> float:
        r"""Return the planned correlation of effects and their estimate, which its sign follows.

        .. math:: \rho^2 = \frac{1}{G} \sum_j \frac{g_j^2}{g_j + v_j} \;\text{ or }\;
            \frac{(\sum_j g_j)^2}{G \sum_j (g_j + v_j)}

        of shrunk and of unshrunk coefficients, with the noise v_j and the prior variance G of a linear rule; averaged
        over the sizes, with the size as weight.

        Args:
            effect: The effect's regression.
            k: Number of covariates that it is of, which hold their share of that variance.
            covariates: Number of all.
        """
        rules, found = self.rules, 1.0 if self.shrinks else self.found
        held = effect.prior * (rules.linear_variance / self.variance)
        held = held * held_shares(effect.basis.features, k, covariates, found)
        prior = torch.cat([held.new_tensor([rules.constant_variance]), held])
        total = rules.constant_variance + rules.linear_variance

        def of(size: float) -> float:
            noise = (self.noise / size) ** 2 * effect.noise / effect.basis.feature_weights
            if self.shrinks:
                return math.sqrt(min(float((prior.square() / (prior + noise)).sum()) / total, 1.0))
            return math.sqrt(float(prior.sum().square() / (prior + noise).sum()) / total)

        return math.fsum(size * (self.limit * of(size)) for size in self.sizes) / math.fsum(self.sizes)

    def worth(self, correlation: float, constant: bool) -> float:
        """Return what falls with a rule's planned regret: a constant rule's correlation counts for less."""
        return correlation / (self.rules.constant_gain if constant else 1.0)


def matrix_noise(basis: WeightedBasis, unit: float) -> float:
    r"""Return the planned noise of a matrix of second moments, scaled to its planned diagonal.

    Its spectral norm is about :math:`2\sqrt{p}` times the root mean square of the entries' noise.

    Args:
        basis: Features with weights; the matrix is of features of weight one.
        unit: Standard deviation of the noise of an entry beside the diagonal.
    """
    p, inverse = basis.dimension, 1 / basis.feature_weights
    squares = inverse.outer(inverse) * (0.5 + 0.5 * torch.eye(p, dtype=torch.float64))
    return 2 * unit * math.sqrt(float(squares.mean()) * p)


_TAUS = torch.logspace(-1.3010299956639813, 0.47712125471966244, 20, dtype=torch.float64)  # .05 to 3
_SPARSITY = (1.0, 0.5, 0.25, 0.1, 0.04)


@dataclass(frozen=True)
class EmpiricalBayes:
    r"""Posterior means of parameters that may be small, or mostly zero; post-processing, which costs nothing.

    .. math:: t_j \sim N(\theta_j, v_j), \qquad
        \theta_j \sim r\, N(0, (\tau s_j)^2 / r) + (1 - r)\, \delta_0

    with tau on 20 points between .05 and 3 and r in {1, .5, .25, .1, .04}, all equally likely, and tau = 0 (all of
    them are zero) with probability ``spike``. Source: after Johnstone & Silverman (2004), with weights over the grid
    in place of a maximum.

    Args:
        spike: Prior probability that all parameters are zero, in (0, 1).

    Raises:
        InputError: A spike outside (0, 1).

    Example:
        >>> t = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
        >>> EmpiricalBayes(0.5).mean(t, torch.full_like(t, 0.1), torch.ones_like(t)).round(decimals=8).tolist()
        [0.50101118, -0.13995869, 0.04641532]
    """

    spike: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.spike < 1:
            raise InputError(f"spike = {self.spike}: give a probability strictly between 0 and 1")

    def mean(self, t: Tensor, variance: Tensor, scale: Tensor) -> Tensor:
        """Return the posterior means, float64 [p]; arguments are those of ``moments``."""
        return self.moments(t, variance, scale)[0]

    def moments(self, t: Tensor, variance: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances, float64 [p] each.

        Args:
            t: Estimates [p].
            variance: v, of their noise, [p].
            scale: s, typical sizes that differ among parameters, [p].
        """
        on, off, kept, cell = self._grid(t[None], variance[None], scale[None])
        weights, share = self._weights(on, off, cell)
        means, variances = kept[0] * t, kept[0] * variance
        mean = weights[1:] @ (share * means)
        return mean, weights[1:] @ (share * (means.square() + variances)) - mean.square()

    def together(self, t: Tensor, variance: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior means of two parameters each that are zero together, and what is to be expected of errors.

        Args:
            t: Estimates [2, p].
            variance: v, [2, p].
            scale: s, [2, p].

        Returns:
            Means [2, p]; the mean square of the product of both errors, [p].
        """
        on, off, kept, cell = self._grid(t, variance, scale)
        weights, share = self._weights(on, off, cell)
        share = weights[1:, None] * share
        means, variances = kept * t[:, None], kept * variance[:, None]
        mean = (share * means).sum(1)
        errors = (means - mean[:, None]).square() + variances
        seconds = (share * errors.prod(0)).sum(0) + (1 - share.sum(0)) * mean.square().prod(0)
        return mean, seconds

    def _grid(self, t: Tensor, variance: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return, at each point of the grid, log likelihoods of what is not zero and of zeros, and what is kept."""
        tau, r = torch.meshgrid(_TAUS, torch.tensor(_SPARSITY, dtype=torch.float64), indexing="ij")
        tau, r = tau.reshape(-1, 1), r.reshape(-1, 1)
        wide = variance[:, None] + (tau * scale[:, None]).square() / r
        zeros = -0.5 * (variance.log() + t.square() / variance).sum(0)
        on = r.log() - 0.5 * (wide.log() + t[:, None].square() / wide).sum(0)
        return on, torch.log1p(-r) + zeros, 1 - variance[:, None] / wide, zeros.sum()  # log of zero where r = 1

    def _weights(self, on: Tensor, off: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights of no parameter, and of the grid; and the probability that a parameter is not zero there."""
        both = torch.logaddexp(on, off)
        cell = math.log((1 - self.spike) / len(both))
        weights = torch.softmax(torch.cat([(zeros + math.log(self.spike))[None], both.sum(1) + cell]), 0)
        return weights, (on - both).exp()
