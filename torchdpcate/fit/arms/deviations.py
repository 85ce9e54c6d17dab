r"""What one replaced training record does where ridge and logistic fits are deviations from public targets.

With targets e of the arms' shares and :math:`\mu` of their means, features of norm at most ``radius``,

.. math::
    \mu_a(x) = \mu_a + R\, b_a^\top x, \qquad \log e_a(x) = \log e_a + \Theta_a^\top x + \text{const},

with ridges on b and Theta alone. All bounds are suprema over every data set in the public domain, whatever the targets
are worth. Proofs: docs/guarantees/policy_selection.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torchdpcate.causal.score import score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.fit.arms.stability import (
    IndirectBound,
    logistic_gradient_distance,
    logistic_norm,
    moved,
    ridge_gradient_bound,
    ridge_gradient_distance,
    ridge_norm,
    sigmoid,
)

_STEPS = 200  # of a fixed point


class ArmBound(NamedTuple):
    """Bounds of one arm.

    Attributes:
        beta_mu: Most movement of its outcome model, in outcome units.
        crossing: The same by a record that leaves or enters it.
        least: Least propensity.
        residual: Largest |y - mu|.
    """

    beta_mu: float
    crossing: float
    least: float
    residual: float


@dataclass(frozen=True)
class DeviationBound(IndirectBound):
    r"""A ``IndirectBound`` arm by arm; the numbers of that class are the worst of them.

    .. math::
        \text{indirect} = n \max_{t \ne b} \Big[\max\Big\{\Big(\frac1{e_t} - 1\Big) \beta_t,\ \beta_b,\
        \Big(\frac1{e_t} - 1\Big) \beta_{\times t} + \beta_{\times b}\Big\}
        + R'_t \min\Big\{\Big(\frac1{e_t} - 1\Big) (1 - e^{-\beta_l}), \frac{\beta_e}{e_t (e_t + \beta_e)}\Big\}\Big]

    Args:
        arms: Bounds of each arm.
        beta_logit: Most movement of the logit of a propensity.
        score_spread: S.
    """

    arms: tuple[ArmBound, ...] = ()
    beta_logit: float = 0.0
    score_spread: float = 0.0

    @property
    def own(self) -> float:
        """S."""
        return self.score_spread

    def indirect(self, n: int) -> float:
        """See ``IndirectBound.indirect``."""
        worst = 0.0
        for t, own in enumerate(self.arms):
            odds, others = 1 / own.least - 1, self.arms[:t] + self.arms[t + 1 :]
            models = max(odds * own.beta_mu, max(b.beta_mu for b in others))
            models = max(models, odds * own.crossing + max(b.crossing for b in others))
            inverse = min(odds * -math.expm1(-self.beta_logit), self.beta_e / (own.least * (own.least + self.beta_e)))
            worst = max(worst, models + own.residual * inverse)
        if len(self.arms) > 2:  # two arms that are not the record's own
            worst = max(worst, sum(sorted(b.crossing for b in self.arms)[-2:]))
        return n * worst


def deviation_bound(
    m: int,
    propensity: Sequence[float],
    outcome: Sequence[float],
    *,
    radius: float,
    ridge: float,
    propensity_ridge: float,
    overlap: float,
    domain: Domain,
    tolerance: float = 0.0,
    known: Sequence[Sequence[float]] | None = None,
) -> DeviationBound:
    """Return what a replaced training record does to scores whose nuisances deviate from targets.

    Args:
        m: Training records.
        propensity: ShrinkageTarget of each arm's share, at least the overlap, adding up to one.
        outcome: ShrinkageTarget of each arm's mean outcome, within the bounds.
        radius: R_x, bound of the features' norm.
        ridge: lambda of the outcome models.
        propensity_ridge: lambda of the propensity.
        overlap: zeta, to which propensities are projected.
        domain: Public bounds of the outcome.
        tolerance: tau, the largest gradient norm of a fit, outcomes in units of their range.
        known: Least and largest propensity of each arm, where no record moves it.

    Example:
        >>> settings = dict(radius=1.0, ridge=1.0, propensity_ridge=1.0, overlap=0.1, domain=Domain([0], [1], 0.0, 1.0))
        >>> bound = deviation_bound(1500, [0.8, 0.2], [0.3, 0.4], **settings)
        >>> round(bound.arms[0].least, 4), round(bound.arms[1].least, 4), round(bound.own, 4)
        (0.6715, 0.1133, 8.0456)
    """
    low, high, span = domain.outcome_low, domain.outcome_high, domain.outcome_range
    distance, beta_logit = logit_deviation(m, propensity, radius, propensity_ridge, tolerance)
    ranges = [_mixed(softmax_range(share, distance), overlap, len(propensity)) for share in propensity]
    if known is not None:
        beta_logit, ranges = 0.0, [(ends[0], ends[1]) for ends in known]
    arms, means = [], []
    for mean, (least, _) in zip(outcome, ranges, strict=True):
        # bounds for outcomes in [-1/2, 1/2], for those in [-half, half]
        twice = 2 * max(mean - low, high - mean) / span
        gradients = ridge_gradient_distance(radius, ridge), ridge_gradient_bound(radius, ridge, True)
        betas = [span * moved(radius, twice * gradient, ridge, m, tolerance) for gradient in gradients]
        far = span * radius * (twice * ridge_norm(radius, ridge) + tolerance / ridge)
        arms.append(ArmBound(betas[0], betas[1], least, min(span, span * twice / 2 + far)))
        means.append((max(low, mean - far), min(high, mean + far)))
    slope = max(_steepest(share, distance) for share in propensity)
    slope *= 1 - overlap * len(propensity) if len(propensity) > 2 else 1  # what mixing leaves of it
    spread = score_spread(domain, *(torch.tensor(ends, dtype=torch.float64) for ends in (ranges, means)))
    return DeviationBound(
        max(arm.beta_mu for arm in arms),
        slope * beta_logit,
        min(arm.least for arm in arms),
        max(arm.residual for arm in arms),
        crossing=max(arm.crossing for arm in arms),
        arms=tuple(arms),
        beta_logit=beta_logit,
        score_spread=spread,
    )


def logit_deviation(
    m: int, shares: Sequence[float], radius: float, ridge: float, tolerance: float = 0.0
) -> tuple[float, float]:
    r"""Return how far the logit of a propensity can lie from its target, and how far a replaced record moves it.

    Two arms have one logit. With more, that of an arm's softmax is :math:`\sqrt2`-Lipschitz in the vector of them.

    Args:
        m: Training records.
        shares: The targets.
        radius: R_x.
        ridge: lambda of the propensity.
        tolerance: tau.

    Example:
        >>> [round(number, 4) for number in logit_deviation(1500, [0.97, 0.03], 1.0, 1.0)]
        [0.9275, 0.0013]
    """
    if len(shares) == 2:
        offset = math.log(shares[1] / shares[0])
        norm = logistic_norm(radius, ridge, offset)
        distance = logistic_gradient_distance(radius, ridge, offset)
        return radius * (norm + tolerance / ridge), moved(radius, distance, ridge, m, tolerance)
    norm, gradient = math.sqrt(2) * radius / ridge, 0.0
    for _ in range(_STEPS):  # from above: every step is a bound
        gradient = radius * _residual([softmax_range(share, math.sqrt(2) * radius * norm) for share in shares])
        norm = gradient / ridge
    gap = math.sqrt(2) * radius * (norm + tolerance / ridge)
    return gap, math.sqrt(2) * moved(radius, 2 * gradient, ridge, m, tolerance)


def softmax_range(share: float, distance: float) -> tuple[float, float]:
    """Return the least and largest probability whose logit lies within ``distance`` of that of a share.

    Example:
        >>> softmax_range(0.25, 0.0)
        (0.25, 0.25)
    """
    logit = math.log(share / (1 - share))
    return sigmoid(logit - distance), sigmoid(logit + distance)


def _residual(ranges: Sequence[tuple[float, float]]) -> float:
    """Return the largest norm of a record's unit vector less the probabilities, each within its range."""
    worst = 0.0
    for own, (least, _) in enumerate(ranges):
        other = max(most for arm, (_, most) in enumerate(ranges) if arm != own)
        worst = max(worst, (1 - least) * (1 - least + min(other, 1 - least)))
    return math.sqrt(worst)


def _mixed(ends: tuple[float, float], overlap: float, actions: int) -> tuple[float, float]:
    """Return the range of a propensity after the overlap: clamped for two arms, mixed with it for more."""
    if actions == 2:
        return max(overlap, ends[0]), min(1 - overlap, ends[1])
    return (1 - actions * overlap) * ends[0] + overlap, (1 - actions * overlap) * ends[1] + overlap


def _steepest(share: float, distance: float) -> float:
    """Return the largest slope of the sigmoid within ``distance`` of a share's logit."""
    u = max(0.0, abs(math.log(share / (1 - share))) - distance)
    return sigmoid(u) * sigmoid(-u)
