"""What intervals of an effect hold beside the error of its features: what these miss, and what clipping hides."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torchdpcate.composition.effect_law import TYPICAL, Estimates, IntervalPlan, inverse_within
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.priors import STEPS, held_shares, prior_variances
from torchdpcate.fit.weighted_basis import UNITS, all_features
from torchdpcate.release.effect_law import EffectLaw

_LARGE = 1e9  # n mu at which a prior has all kinds of features
_AS_IT_VARIES, _BEYOND = 0.9, 0.3  # of |c|, see ``with_hidden``


def with_missed(
    law: EffectLaw, found: Estimates, plan: ComposedPlan, facts: IntervalPlan, two_levels: Sequence[bool]
) -> EffectLaw:
    """Return the law with what clipping is expected to hide, and what the features are expected to miss.

    Args:
        law: Of the projection.
        found: Estimates of the features' coefficients, and their covariance.
        plan: The public plan.
        facts: Of the interval steps.
        two_levels: Whether each retained covariate has two levels.
    """
    if not plan.constants.missed:
        return law
    hidden = law if plan.binary else with_hidden(law, found, facts)  # no residual of two values is clipped
    return replace(hidden, missed=missed_variance(law, found, plan, facts, two_levels))


def with_hidden(law: EffectLaw, found: Estimates, facts: IntervalPlan) -> EffectLaw:
    r"""Return the law with what clipped residuals are expected to hide of the projection, and of its mean.

    Clipping at S moves the arms' means apart by b(x) where the skewness of their residuals differs. The correction c
    is the mean of b, released. How b varies with the covariates, and what of it lies beyond S2, where the correction
    itself is clipped, are not released; both are expected to be of the size of c:

    .. math:: V \mathrel{+}= \frac{(.9\,c)^2}{\sqrt{a}}\, \bar e\, B (B^\top M B)^{-1} B^\top, \qquad
        \mathrm{var}(\text{average}) \mathrel{+}= (.3\,c)^2

    with the a combinations B of features beside the constant, and M over its planned size: the variance of b, a linear
    function of them, is :math:`\sqrt a\,(.9\,c)^2` over the records.

    Args:
        law: Of the projection.
        found: Estimates of the features' coefficients.
        facts: Of the interval steps.
    """
    covariance, varying = law.covariance, found.directions.shape[1] - 1
    if varying:
        size = (_AS_IT_VARIES * law.correction) ** 2 / math.sqrt(varying)
        covariance = covariance + size * TYPICAL * facts.weight * inverse_within(found.directions, found.matrix)
    hidden = (_BEYOND * law.correction) ** 2
    return replace(law, covariance=covariance, average_variance=law.average_variance + hidden)


def missed_variance(
    law: EffectLaw, found: Estimates, plan: ComposedPlan, facts: IntervalPlan, two_levels: Sequence[bool]
) -> float:
    r"""Return the variance of the effect that its features are expected to miss, in squared outcome units.

    .. math:: \kappa\, \max(\gamma, 1)^2\, \frac{1 - G}{G}\,
        \Big(\Big(\sum_j e_j (t_j^2 - V_{jj})\Big)_+ + \Big(2 \sum_j e_j^2 V_{jj}^2\Big)^{1/2}\Big)

    G is the share of the prior variance of effects that the features hold which are requested: covariates that are not
    retained, and kinds of features that are not requested, have the rest; products with a step, where there are any,
    add their own share to it, so that it is divided by that sum; hidden units are left out of it. Its size is that of
    what was found, and one standard deviation of the noise of that, or where no feature is requested the prior's. Gamma
    is the mean square of widely clipped residuals over s^2, that of normal ones with the quantile S: where tails are
    long, the clip hides effects in them.

    Args:
        law: Of the projection, whose correction holds those squares.
        found: Estimates of the features' coefficients, and their covariance.
        plan: The public plan.
        facts: Of the interval steps.
        two_levels: Whether each retained covariate has two levels.
    """
    basis, kappa = facts.basis, plan.constants.missed
    if not kappa:
        return 0.0
    kappa = kappa * max(_tails(law, found, plan, facts), 1.0) ** 2
    if not basis.features:
        return kappa * plan.head_variance * facts.scale**2
    steps = tuple(feature for feature in basis.features if feature.kind == STEPS)
    every = all_features(two_levels, plan.constants.kinds) + steps
    prior = prior_variances(every, 1.0, plan.constants, _LARGE)
    prior = prior * held_shares(every, len(two_levels), plan.covariates)
    prior = prior / (1 + (plan.constants.pair_variance if steps else 0))
    held = float(prior[[every.index(feature) for feature in basis.features if feature.kind != UNITS]].sum())
    feature_weights, noise = basis.feature_weights[1:], found.covariance.diagonal()[1:]
    size = float((feature_weights * (found.t[1:].square() - noise)).sum())
    size = max(size, 0.0) + math.sqrt(2 * float((feature_weights * noise).square().sum()))
    return kappa * size * (1 - held) / held


def _tails(law: EffectLaw, found: Estimates, plan: ComposedPlan, facts: IntervalPlan) -> float:
    """Return the mean square of widely clipped residuals over that of normal ones; one of two values."""
    if plan.binary:
        return 1.0
    total = facts.n * found.overlap
    squares = (law.correction_variance * total**2 - facts.correction_noise**2) / facts.per_person
    return squares / total / (facts.spread / plan.interval_spread) ** 2
