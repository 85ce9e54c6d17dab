"""What plans expect of records, whatever they are: public numbers, none of them found on data."""

RESIDUAL_SCALE = 1 / 14
"""Residual scale, in outcome ranges."""
SAMPLING, SAMPLING_BINARY = 0.6, 0.2
"""Variance of a record's clipped residual, in squared scales."""
INSIDE = 0.04
"""Residuals within the clip beyond its quantile, which is that of the residuals before."""
EFFECT_CURVATURE = 0.3
"""Mean curvature of the effect's features, over their energies: the mean of min(pi, 1 - pi), at most."""
PROPENSITY_CURVATURE = 0.2
"""That of a logit's."""
_APART = 0.8  # how propensities vary about the share of the treated: 0.3 is the mean of min(pi, 1 - pi) about one half
NUISANCES = 1.3
"""Noise of the effect over that of its own steps."""
LOGIT_PRIOR, LOGIT_CONSTANT = 3.0, 4.0
"""Prior variance of a logit's features over the planned one, by their weak ridge, and that of its constant."""
LOGIT_SIZE = 1.5
"""Scale by which parts of a logit are drawn to zero."""
OUTCOME_PRIOR = 2.0
"""That of the outcome regression's features, by its weak ridge."""
WANDERING = 1.1
"""Variance of what is released over that of the late steps' noise: the warm steps' share is lost."""


def effect_curvature(treated: float | None, known: bool) -> float:
    r"""Return the planned mean of min(pi, 1 - pi), by the public share of the treated.

    .. math:: \min(.3, s), \quad \min(.3, s (1 - .8 s)) \text{ where propensities vary}, \qquad s = \min(p, 1 - p)

    Args:
        treated: p; None takes .3.
        known: Whether it is the propensity of all, known by the design.

    Example:
        >>> [round(effect_curvature(share, known=False), 4) for share in (None, 0.5, 0.05)]
        [0.3, 0.3, 0.048]
    """
    if treated is None:
        return EFFECT_CURVATURE
    rare = min(treated, 1 - treated)
    return min(EFFECT_CURVATURE, rare if known else rare * (1 - _APART * rare))


def logit_curvature(treated: float | None) -> float:
    """Return the planned mean of pi (1 - pi), at most .2, by the public share of the treated; None takes that.

    Example:
        >>> [round(logit_curvature(share), 4) for share in (None, 0.5, 0.05)]
        [0.2, 0.2, 0.038]
    """
    return PROPENSITY_CURVATURE if treated is None else min(PROPENSITY_CURVATURE, _APART * treated * (1 - treated))
