"""What one regression of a plan asks for: which features, with which energies."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.water_filling import Filling
from torchdpcate.features.weighted_basis import KINDS, PRODUCTS, Feature, WeightedBasis

STEPS = "t"
"""Kind of the features that a private choice gives the effect alone."""


@dataclass(frozen=True)
class Regression:
    """What one regression of the plan asks for, and what it may expect.

    Attributes:
        basis: Its features, with energies.
        prior: Prior variance of each feature's part of the function, [p], in units of its squared scale.
        noise: Variance of the noise of a function of energy one, in units of its squared scale.
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

    What bends and interacts enters as n mu grows; products with a step are there where they were chosen.

    Args:
        features: All that may be asked for.
        variance: Prior variance of a function of them, at large n mu.
        constants: Of the plan.
        size: N mu.
        heads: How many of the covariates, the first ones, were chosen; None: all. The linear features of the others
            have ``tail_variance`` times an even part of all linear ones each, and no more than one of a chosen one.
        confounds: Whether what is not asked for may confound; else that is one such part.
    """
    low, high = constants.rough_sizes
    rough = min(max(math.log(size / low) / math.log(high / low), 0.01), 1.0)
    first = [heads is None or feature.j < heads for feature in features]
    counts = Counter(feature.kind for feature, own in zip(features, first, strict=True) if own)
    share = {feature.kind: constants.part_share(feature.kind) for feature in features}
    whole = KINDS[0], STEPS
    each = {kind: variance * share[kind] / count * (1 if kind in whole else rough) for kind, count in counts.items()}
    if not all(first):
        linear = sum(feature.kind == KINDS[0] for feature in features)
        tail = (constants.tail_variance if confounds else 1.0) * variance * constants.part_share(KINDS[0]) / linear
        tail = min(tail, each.get(KINDS[0], math.inf))
    return torch.tensor([each[f.kind] if own else tail for f, own in zip(features, first, strict=True)]).double()


def held_shares(features: Sequence[Feature], k: int, covariates: int, found: float = 1.0) -> Tensor:
    """Return the shares of prior variances that features of k chosen covariates hold, [p].

    The r-th covariate's weight is 1/r; a product needs both of its own.

    Args:
        features: Of the chosen covariates.
        k: How many are chosen.
        covariates: Number of all covariates q.
        found: Share of what the best choice holds beyond one at random that the choice holds.
    """
    weight = 1 / torch.arange(1.0, covariates + 1, dtype=torch.float64)
    share = k / covariates + found * (float(weight[:k].sum() / weight.sum()) - k / covariates)
    return torch.tensor([share ** (1 + (feature.kind in PRODUCTS)) for feature in features], dtype=torch.float64)


def asked_for(
    features: Sequence[Feature],
    prior: Tensor,
    fill: Callable[[Tensor, float], Filling],
    kinds: str,
    constant_prior: float = math.inf,
    least: float = 0.0,
) -> Regression:
    """Return what a regression asks for among features: those that are worth their noise.

    Args:
        features: All that there are.
        prior: Their prior variances, [p].
        fill: Energies by prior variances, and that of the constant.
        kinds: Kinds that may be asked for.
        constant_prior: Prior variance of the constant, which is asked for in any case.
        least: Prior variance that features must exceed, but for linear ones.
    """
    may = [
        feature.kind in kinds and (feature.kind == KINDS[0] or variance > least)
        for feature, variance in zip(features, prior.tolist(), strict=True)
    ]
    candidates = torch.nonzero(torch.tensor(may, dtype=torch.bool)).flatten()
    left_out = float(prior.sum() - prior[candidates].sum())
    found = fill(prior[candidates], max([constant_prior, *prior[candidates].tolist()]))
    there = found.energies > 0
    chosen = candidates[there]
    constant = torch.tensor([found.constant], dtype=torch.float32).double()  # rounded, as all releases have had it
    energies = torch.cat([constant, found.energies[there]])
    basis = WeightedBasis(tuple(features[j] for j in chosen.tolist()), energies)
    return Regression(basis, prior[chosen], found.noise, found.error + left_out)


def matrix_noise(basis: WeightedBasis, unit: float) -> float:
    r"""Return the planned noise of a matrix of second moments, scaled to its planned diagonal.

    Its spectral norm is about :math:`2\sqrt{p}` times the root mean square of the entries' noise.

    Args:
        basis: Features with energies; the matrix is of features of energy one.
        unit: Standard deviation of the noise of an entry beside the diagonal.
    """
    p, inverse = basis.dimension, 1 / basis.energies
    squares = inverse.outer(inverse) * (0.5 + 0.5 * torch.eye(p, dtype=torch.float64))
    return 2 * unit * math.sqrt(float(squares.mean()) * p)
