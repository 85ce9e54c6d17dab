"""What an effect is expected to have beyond the features that a plan asks for, from released numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torchdpcate.composition.asked import STEPS, held_shares, prior_variances
from torchdpcate.composition.intervals import Estimates, IntervalPlan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.features.weighted_basis import all_features
from torchdpcate.release.effect_law import EffectLaw

_LARGE = 1e9  # n mu at which a prior has all kinds of features
_HIDDEN = 0.2  # of the mean effect where one arm alone has long tails, in deviations for each unit of gamma above one


def with_missed(
    law: EffectLaw, found: Estimates, plan: ComposedPlan, facts: IntervalPlan, two_levels: Sequence[bool]
) -> EffectLaw:
    r"""Return the law with what the features are expected to miss, and what long tails hide of the mean effect.

    The latter is a bias of :math:`.2\,(\gamma - 1)_+ s`, whose square joins the average's variance: where one arm has
    long tails, the wide clip takes more of it. Gamma and s are those of ``missed_variance``.

    Args:
        law: Of the projection.
        found: Estimates of the features' coefficients, and their covariance.
        plan: The public plan.
        facts: Of the interval steps.
        two_levels: Whether each kept covariate has two levels.
    """
    if not plan.constants.missed:
        return law
    hidden = _HIDDEN * max(_tails(law, found, plan, facts) - 1, 0.0) * facts.spread / plan.interval_spread
    missed = missed_variance(law, found, plan, facts, two_levels)
    return replace(law, missed=missed, average_variance=law.average_variance + hidden**2)


def missed_variance(
    law: EffectLaw, found: Estimates, plan: ComposedPlan, facts: IntervalPlan, two_levels: Sequence[bool]
) -> float:
    r"""Return the variance of the effect that its features are expected to miss, in squared outcome units.

    .. math:: \kappa\, \max(\gamma, 1)^2\, \frac{1 - G}{G}\,
        \Big(\Big(\sum_j e_j (t_j^2 - V_{jj})\Big)_+ + \Big(2 \sum_j e_j^2 V_{jj}^2\Big)^{1/2}\Big)

    G is the share of the prior variance of effects that the features hold which are asked for: covariates that are not
    kept, and kinds of features that are not asked for, have the rest; products with a step, where there are any, add
    their own share to it, so that it is divided by that sum. Its size is that of what was found, and
    one standard deviation of the noise of that, or where no feature is asked for the prior's. Gamma is the mean square
    of widely clipped residuals over s^2, that of normal ones with the quantile S: where tails are long, the clip hides
    effects in them.

    Args:
        law: Of the projection, whose correction holds those squares.
        found: Estimates of the features' coefficients, and their covariance.
        plan: The public plan.
        facts: Of the interval steps.
        two_levels: Whether each kept covariate has two levels.
    """
    basis, kappa = facts.basis, plan.constants.missed
    if not kappa:
        return 0.0
    kappa = kappa * max(_tails(law, found, plan, facts), 1.0) ** 2
    if not basis.features:
        return kappa * plan.priors.head_variance * facts.scale**2
    steps = tuple(feature for feature in basis.features if feature.kind == STEPS)
    every = all_features(two_levels, plan.constants.kinds) + steps
    prior = prior_variances(every, 1.0, plan.constants, _LARGE)
    prior = prior * held_shares(every, len(two_levels), plan.covariates)
    prior = prior / (1 + (plan.constants.pair_variance if steps else 0))
    held = float(prior[[every.index(feature) for feature in basis.features]].sum())
    energies, noise = basis.energies[1:], found.covariance.diagonal()[1:]
    size = float((energies * (found.t[1:].square() - noise)).sum())
    size = max(size, 0.0) + math.sqrt(2 * float((energies * noise).square().sum()))
    return kappa * size * (1 - held) / held


def _tails(law: EffectLaw, found: Estimates, plan: ComposedPlan, facts: IntervalPlan) -> float:
    """Return the mean square of widely clipped residuals over that of normal ones; one of two values."""
    if plan.binary:
        return 1.0
    total = facts.n * found.overlap
    squares = (law.correction_variance * total**2 - facts.correction_noise**2) / facts.per_person
    return squares / total / (facts.spread / plan.interval_spread) ** 2
