r"""A rule's effect by one pure event: sums of outcomes times treatments times clipped covariates."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdpcate.composition.asked import Regression
from torchdpcate.composition.batch_sums import summed
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import Feature, WeightedBasis
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.mechanisms import KNormMechanism, k_norm_deviation

OBJECTIVE, SUMS, BARE = "objective", "sums", "sums, public constants"
"""How a rule's effect is found by pure events: by a perturbed objective, or by sums; then with which constants."""
CLIP = 0.5
"""Covariates are clipped here, in their spreads: a tighter clip says more of a slope for its noise."""
SPREAD = 0.4
"""Spread of covariates on [-1, 1] that is expected where no step looks at them."""
_SLOPE = math.erf(CLIP / math.sqrt(2)) / CLIP  # mean of z clip(z / c) for a standard normal z
_CENTRE_POWER, _SCALE_DECADES = 3.0, 2.0  # of the candidates of quantiles


def clip_slopes(two_levels: Sequence[bool], looked_at: bool) -> Tensor:
    r"""Return the planned means of :math:`z\,\mathrm{clip}(z/c)`, [k]: what a slope of one adds to its sum.

    Args:
        two_levels: Whether each covariate has two levels, which clipping leaves at -1 and 1.
        looked_at: Whether z is in released spreads; else its spread is ``SPREAD``.

    Example:
        >>> [round(slope, 3) for slope in clip_slopes([False, True], looked_at=True).tolist()]
        [0.766, 1.0]
    """
    slope = _SLOPE * (1.0 if looked_at else SPREAD)
    return torch.tensor([1.0 if two else slope for two in two_levels], dtype=torch.float64)


def clipped(z: Tensor, looked_at: bool) -> Tensor:
    """Return 1 and the clipped covariates, all within [-1, 1], [n, 1 + k].

    Args:
        z: Standardised covariates [n, k].
        looked_at: As of ``clip_slopes``.
    """
    unit = CLIP * (1.0 if looked_at else SPREAD)
    return torch.cat([z.new_ones(len(z), 1), (z / unit).clamp(-1, 1)], 1)


def sums_regression(two_levels: Sequence[bool], unit: float, variance: float) -> Regression:
    r"""Return the regression that sums are, of a constant and these covariates.

    .. math:: v_0 = u^2\,\frac{(p + 1)(p + 2)}{3}, \qquad v_j = v_0 / \kappa_j^2, \qquad p = 1 + k

    with the slopes kappa of standardised covariates; energies are such that they give these variances.

    Args:
        two_levels: Whether each covariate has two levels.
        unit: u, what one record may move the constant by over epsilon, in residual scales.
        variance: Prior variance of each covariate's part.

    Example:
        >>> found = sums_regression([True], 0.1, 1.0)
        >>> [round(v, 6) for v in (found.noise / found.basis.energies).tolist()]
        [0.04, 0.04]
    """
    k = len(two_levels)
    energies = torch.cat([torch.ones(1).double(), clip_slopes(two_levels, looked_at=True).square()])
    total = float(energies.sum())
    noise = (unit * k_norm_deviation(1 + k, math.inf)) ** 2 / total
    features = tuple(Feature("1", j, j) for j in range(k))
    return Regression(
        WeightedBasis(features, energies / total),
        torch.full((k,), variance, dtype=torch.float64),
        noise,
        noise * float((total / energies).sum()),
    )


def private_sums(pulls: Tensor, features: Tensor, step: str, steps: NoisySteps) -> Tensor:
    r"""Return the sums over records of pull times features, [1 + k], with K-norm noise of the largest entry.

    Guarantee:
        Certified, pure: pulls and features lie within [-1, 1], so that one record replaced moves each sum by at most
        2 (docs/guarantees/effect_sums.md).

    Args:
        pulls: Within [-1, 1], [n].
        features: Within [-1, 1], [n, 1 + k].
        step: The step that pays.
        steps: Pays, and draws noise.

    Raises:
        InputError: The step's event is not pure.
    """
    event = steps.pay(step)
    if not isinstance(event, PureEvent):
        raise InputError("effect by sums: its event is pure; give privacy.delta = 0")
    values = summed(lambda pull, rows: pull.clamp(-1, 1) @ rows.clamp(-1, 1), pulls, features)
    mechanism = KNormMechanism(event.epsilon, 2 + steps.rounding(len(pulls), 1.0), math.inf)
    return steps.session.noise.released(mechanism.add_noise(values[None], steps.session.noise)[0])


def places_of(centre: bool, count: int) -> Tensor:
    """Return which of ``count`` evenly spaced candidates a quantile looks at: they lie nearer where it is expected.

    Args:
        centre: Whether it is the outcome's centre, expected in the middle; else a scale, expected near zero.
        count: Candidates.

    Example:
        >>> places_of(True, 16).tolist(), places_of(False, 16).tolist()
        ([1, 3, 5, 6, 7, 8, 9, 10, 12, 14], [0, 1, 2, 3, 4, 5, 7, 10, 13])
    """
    steps = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    if centre:
        v = 2 * steps - 1
        at = (1 + v.sign() * v.abs() ** _CENTRE_POWER) / 2
    else:
        at = 10 ** (_SCALE_DECADES * (steps - 1))
    return (at * count).floor().long().clamp(0, count - 1).unique()
